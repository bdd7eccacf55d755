"""Topics of SNS by name, and requests to them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from salon_jobs.brokers.aws import client as aws
from salon_jobs.brokers.aws.settings import sns_settings
from salon_jobs.brokers.publisher import Answers, PublishFailure, Verdict
from salon_jobs.core import events
from salon_jobs.core.events import log_event

if TYPE_CHECKING:
    from mypy_boto3_sns.type_defs import PublishBatchRequestEntryTypeDef

# Minimum time between fetches for the same absent topic, or after a failed fetch.
AGAIN_S: Final = 60.0


class Topics:
    """Topic ARNs by name. Thread-safe; two threads fetching at once do no harm.

    ``read`` returns the ARNs of all topics and raises the SDK's errors.
    """

    def __init__(self, read: Callable[[], Iterable[str]], *, clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._arns: dict[str, str] | None = None
        self._looked_for: dict[str, float] = {}
        self._due_at: float | None = float("-inf")
        self._failing = False

    def find(self, name: str) -> str | None:
        """Return a topic's ARN, or None if it does not exist or did not within the last minute.

        Raises the SDK's errors when SNS does not answer.
        """
        now = self._clock()
        arn = (self._arns or {}).get(name)
        if arn is None and now - self._looked_for.get(name, -AGAIN_S) >= AGAIN_S:
            arn = self._fetch().get(name)
            self._looked_for[name] = now
        return arn

    def refresh_when_due(self) -> float | None:
        """Fetch the topics if due; return in how many seconds they are due next, or None for never.

        After a failure, the known topics stay and the next fetch is due in a minute. Only the first of several failures
        in a row is logged.
        """
        if self._due_at is not None and self._clock() >= self._due_at:
            try:
                self._fetch()
            except aws.ERRORS as error:
                self._due_at = self._clock() + AGAIN_S
                if not self._failing:
                    log_event(logging.WARNING, events.TOPICS_NOT_READ, error=str(error))
                self._failing = True
        return None if self._due_at is None else max(0.0, self._due_at - self._clock())

    def forget(self, name: str) -> None:
        """Forget a topic that SNS reports missing. The next search for it is in a minute."""
        self._looked_for[name] = self._clock()
        self._arns = {other: arn for other, arn in (self._arns or {}).items() if other != name}

    def _fetch(self) -> dict[str, str]:
        arns = {arn.rpartition(":")[2]: arn for arn in self._read()}
        self._arns, self._failing = arns, False
        interval = sns_settings.refetch_interval
        self._due_at = None if interval is None else self._clock() + interval.total_seconds()
        log_event(logging.INFO, events.TOPICS_READ, topics=len(arns))
        return arns


_PING_S: Final = 2.0  # for connecting, and again for the answer
_NO_ANSWER: Final = PublishFailure(Verdict.OUTAGE, "SNS.NO_ANSWER", "SNS left the message out of its answer")


class SnsTransport:
    """Transport of one publisher: clients for SNS, and the known topics. Thread-safe; created without I/O."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        # One retry, on a new connection: the server may have closed an idle one.
        self._client = aws.client("sns", timeout_s=aws.TIMEOUT_S, attempts=2)
        self._pinging = aws.client("sns", timeout_s=_PING_S, attempts=1)
        self.topics = Topics(self._topic_arns, clock=clock)

    def find_topic(self, name: str) -> str | PublishFailure:
        """Return a topic's ARN, or why there is none."""
        try:
            arn = self.topics.find(name)
        except aws.ERRORS as error:
            return aws.verdict_of(error)
        if arn is None:
            return PublishFailure(Verdict.MISSING, "SNS.NO_TOPIC", f"there is no topic {name!r} in this account")
        return arn

    def publish_batch(self, arn: str, entries: Sequence[PublishBatchRequestEntryTypeDef]) -> Answers | PublishFailure:
        """Publish entries of different aggregates in one request; return an answer for each, in order, or for all."""
        batch = [{**entry, "Id": str(place)} for place, entry in enumerate(entries)]
        try:
            done = self._client.publish_batch(TopicArn=arn, PublishBatchRequestEntries=batch)  # type: ignore[arg-type]
        except aws.ERRORS as error:
            return aws.verdict_of(error)
        published = {answer.get("Id") for answer in done.get("Successful", [])}
        failed = {answer["Id"]: answer for answer in done.get("Failed", [])}
        answers: Answers = []
        for place in map(str, range(len(entries))):
            if place in failed:
                code, detail = failed[place]["Code"], failed[place].get("Message", "")
                failure = aws.verdict_of_code(code, detail=f"{code}: {detail}")
            elif place in published:
                answers.append(None)
                continue
            else:
                failure = _NO_ANSWER
            # A failure next to messages that the topic accepted is no outage of the topic, unless it asks to wait.
            if published and failure.verdict is Verdict.OUTAGE and failure.code != aws.THROTTLED:
                failure = replace(failure, verdict=Verdict.UNRESOLVABLE)
            answers.append(failure)
        return answers

    def ping(self) -> None:
        """Check readiness by asking SNS for its topics. Raises NotReady."""
        with aws.require_answer("SNS"):
            self._pinging.list_topics()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._pinging.close()

    def _topic_arns(self) -> list[str]:
        pages = self._client.get_paginator("list_topics").paginate()
        return [topic.get("TopicArn", "") for page in pages for topic in page.get("Topics", [])]
