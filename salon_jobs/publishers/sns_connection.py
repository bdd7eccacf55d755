"""Talks to SNS: lists topics, publishes one batch, answers a ping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from salon_jobs.conf import settings
from salon_jobs.core.errors import NotReady
from salon_jobs.publishers import aws
from salon_jobs.publishers.base import NOT_SENT, Answers, Unpublished, Verdict
from salon_jobs.publishers.sns_entries import Entry
from salon_jobs.publishers.sns_topics import Topics

_PING_S: Final = 2.0  # to connect, and again for the answer
_NO_ANSWER: Final = Unpublished(Verdict.RETRY, "SNS.NO_ANSWER", "SNS answered for others of its batch alone")


class SnsConnection:
    """Owns the clients and the known topics. Threads share it. Made without I/O."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        given = settings.sns
        # One more attempt, on a new connection: a kept one may have been closed by the other side.
        self._client = aws.client("sns", timeout_s=given.timeout.total_seconds(), attempts=2)
        self._pinging = aws.client("sns", timeout_s=_PING_S, attempts=1)
        refetch_s = given.refetch_interval.total_seconds() if given.refetch else None
        self.topics = Topics(self._topic_arns, refetch_s=refetch_s, clock=clock)

    def find_topic(self, name: str) -> str | Unpublished:
        """Return the ARN of a topic, or why there is none."""
        try:
            arn = self.topics.find(name)
        except aws.ERRORS as error:
            return aws.verdict_of(error)
        if arn is None:
            return Unpublished(Verdict.MISSING, "SNS.NO_TOPIC", f"there is no topic {name!r} in this account")
        return arn

    def publish_batch(self, arn: str, entries: Sequence[Entry], *, may_go_on: Callable[[], bool]) -> Answers:
        """Publish entries of different aggregates in one request, and return an answer for each, in their order."""
        batch = [{**entry.fields, "Id": str(place)} for place, entry in enumerate(entries)]
        try:
            done = self._client.publish_batch(TopicArn=arn, PublishBatchRequestEntries=batch)  # type: ignore[arg-type]
        except aws.ERRORS as error:
            answer = aws.verdict_of(error)
            if answer.verdict is Verdict.REFUSED and len(entries) > 1:
                return self._one_by_one(arn, entries, may_go_on=may_go_on)
            return [answer] * len(entries)
        published = {answer.get("Id") for answer in done.get("Successful", [])}
        failed = {answer["Id"]: answer for answer in done.get("Failed", [])}
        answers: Answers = []
        for place in map(str, range(len(entries))):
            if place in failed:
                code, detail = failed[place]["Code"], failed[place].get("Message", "")
                answers.append(aws.verdict_of_code(code, detail=f"{code}: {detail}"))
            else:
                answers.append(None if place in published else _NO_ANSWER)
        return answers

    def ping(self) -> None:
        """Ask SNS for its topics. Raises NotReady."""
        try:
            self._pinging.list_topics()
        except aws.ERRORS as error:
            raise NotReady(f"SNS does not answer: {error}") from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._pinging.close()

    def _one_by_one(self, arn: str, entries: Sequence[Entry], *, may_go_on: Callable[[], bool]) -> Answers:
        """Find out which of them the refusal of their request was about: the others are not to blame."""
        answers: Answers = []
        for entry in entries:
            answers += self.publish_batch(arn, [entry], may_go_on=may_go_on) if may_go_on() else [NOT_SENT]
        return answers

    def _topic_arns(self) -> list[str]:
        pages = self._client.get_paginator("list_topics").paginate()
        return [topic.get("TopicArn", "") for page in pages for topic in page.get("Topics", [])]
