"""Publishers to nowhere: what a relay itself costs, also with one aggregate that is refused every time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.messages import POISON
from salon_jobs.brokers.publisher import NOT_SENT, Answers, OutgoingMessage, Publisher, PublishFailure, Verdict

_REFUSED = PublishFailure(Verdict.RETRY, "BENCH.POISON")


class NullPublisher(Publisher):
    """Publisher that accepts everything and keeps nothing, to measure the cost of the relay itself."""

    service = "null"

    def check(self, message: OutgoingMessage) -> None:
        """Accept everything."""

    def publish(self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]) -> Answers:
        """Report all messages as published."""
        return [None] * len(messages) if should_continue() else [NOT_SENT] * len(messages)

    def ping(self) -> None:
        """Do nothing, because nowhere is always there."""


class PoisonedPublisher(NullPublisher):
    """Refuses the head of the poisoned aggregate."""

    service = "poisoned"

    def publish(self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]) -> Answers:
        """Say that all were published but those."""
        answers: Answers = []
        refused = False
        for message in messages:
            is_poison = message.aggregate_id == POISON
            answers.append((NOT_SENT if refused else _REFUSED) if is_poison else None)
            refused = refused or is_poison
        return answers
