"""Requests to SNS, and the topics that exist there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from salon_jobs.brokers.aws import client as aws
from salon_jobs.brokers.aws.sns import Entry
from salon_jobs.brokers.publisher import NOT_SENT, Answers, PublishFailure, Verdict
from salon_jobs.conf import settings
from salon_jobs.core import events
from salon_jobs.core.events import log_event

# Minimum time between fetches for the same absent topic, or after a failed fetch.
AGAIN_S: Final = 60.0


class Topics:
    """Topic ARNs by name. Thread-safe; two threads fetching at once do no harm.

    ``read`` returns the ARNs of all topics and raises the SDK's errors. With ``refetch_s`` None, they are never
    refetched because of their age.
    """

    def __init__(self, read: Callable[[], Iterable[str]], *, refetch_s: float | None, clock: Callable[[], float]):
        self._read = read
        self._refetch_s = refetch_s
        self._clock = clock
        self._arns: dict[str, str] | None = None
        self._looked_for: dict[str, float] = {}
        self._due_at: float | None = float("-inf")
        self._failing = False

    def find(self, name: str) -> str | None:
        """Return a topic's ARN, or None if it does not exist or did not within the last minute.

        Raises the SDK's errors when SNS cannot be asked.
        """
        now = self._clock()
        arn = (self._arns or {}).get(name)
        if arn is None and now - self._looked_for.get(name, -AGAIN_S) >= AGAIN_S:
            arn = self._fetch().get(name)
            self._looked_for[name] = now
        return arn

    def discover(self) -> None:
        """Fetch the topics unless they are known. Log a failure."""
        if self._arns is None:
            self._refresh()

    def refresh_when_due(self) -> float | None:
        """Fetch the topics if due; return in how many seconds they are due next, or None for never.

        After a failure, the known topics stay and the next fetch is due in a minute. Only the first of several failures
        in a row is logged.
        """
        if self._due_at is not None and self._clock() >= self._due_at:
            self._refresh()
        return None if self._due_at is None else max(0.0, self._due_at - self._clock())

    def forget(self, name: str) -> None:
        """Forget a topic that SNS reports missing. It is looked for again in a minute."""
        self._looked_for[name] = self._clock()
        self._arns = {other: arn for other, arn in (self._arns or {}).items() if other != name}

    def _refresh(self) -> None:
        try:
            self._fetch()
        except aws.ERRORS as error:
            self._due_at = self._clock() + AGAIN_S
            if not self._failing:
                log_event(logging.WARNING, events.SNS_TOPICS_NOT_READ, error=str(error))
            self._failing = True

    def _fetch(self) -> dict[str, str]:
        arns = {arn.rpartition(":")[2]: arn for arn in self._read()}
        self._arns, self._failing = arns, False
        self._due_at = None if self._refetch_s is None else self._clock() + self._refetch_s
        log_event(logging.INFO, events.SNS_TOPICS_READ, topics=len(arns))
        return arns


_PING_S: Final = 2.0  # for connecting, and again for the answer
_NO_ANSWER: Final = PublishFailure(Verdict.RETRY, "SNS.NO_ANSWER", "SNS answered only for other messages of its batch")


class SnsConnection:
    """Owner of the clients and the known topics. Thread-safe; created without I/O."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        sns = settings.sns
        # One retry, on a new connection: the server may have closed an idle one.
        self._client = aws.client("sns", timeout_s=aws.TIMEOUT_S, attempts=2)
        self._pinging = aws.client("sns", timeout_s=_PING_S, attempts=1)
        refetch_s = None if sns.refetch_interval is None else sns.refetch_interval.total_seconds()
        self.topics = Topics(self._topic_arns, refetch_s=refetch_s, clock=clock)

    def find_topic(self, name: str) -> str | PublishFailure:
        """Return a topic's ARN, or why there is none."""
        try:
            arn = self.topics.find(name)
        except aws.ERRORS as error:
            return aws.verdict_of(error)
        if arn is None:
            return PublishFailure(Verdict.MISSING, "SNS.NO_TOPIC", f"there is no topic {name!r} in this account")
        return arn

    def publish_batch(self, arn: str, entries: Sequence[Entry], *, should_continue: Callable[[], bool]) -> Answers:
        """Publish entries of different aggregates in one request; return an answer for each, in order."""
        batch = [{**entry.fields, "Id": str(place)} for place, entry in enumerate(entries)]
        try:
            done = self._client.publish_batch(TopicArn=arn, PublishBatchRequestEntries=batch)  # type: ignore[arg-type]
        except aws.ERRORS as error:
            answer = aws.verdict_of(error)
            if answer.verdict is Verdict.REFUSED and len(entries) > 1:
                return self._one_by_one(arn, entries, should_continue=should_continue)
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
        """Check readiness by asking SNS for its topics. Raises NotReady."""
        with aws.require_answer("SNS"):
            self._pinging.list_topics()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._pinging.close()

    def _one_by_one(self, arn: str, entries: Sequence[Entry], *, should_continue: Callable[[], bool]) -> Answers:
        """Find out which entries caused the rejection of their request; the others are not to blame."""
        answers: Answers = []
        for entry in entries:
            answers += (
                self.publish_batch(arn, [entry], should_continue=should_continue) if should_continue() else [NOT_SENT]
            )
        return answers

    def _topic_arns(self) -> list[str]:
        pages = self._client.get_paginator("list_topics").paginate()
        return [topic.get("TopicArn", "") for page in pages for topic in page.get("Topics", [])]
