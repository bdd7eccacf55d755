"""Order within each aggregate while many aggregates are sent at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from salon_jobs.brokers.publisher import NOT_SENT, Answers, OutgoingMessage, PublishFailure, Verdict

# Verdicts that say nothing about the message: others sent to the same place would fare no better.
_OF_THE_WAY: Final = (Verdict.OUTAGE, Verdict.MISSING)


class AggregateOrder:
    """Messages of one ``publish``, grouped by aggregate; only the first of each group may be in flight.

    A message without an aggregate forms its own group. ``ready`` holds the positions of the messages that may be sent
    now. After a message that was not published, the rest of its group stays NOT_SENT. After an outage, or when the
    destination does not exist, nothing more becomes ready: the first message of each group gets the same answer. Not
    thread-safe.
    """

    def __init__(self, messages: Sequence[OutgoingMessage], *, skipped: Sequence[PublishFailure | None]) -> None:
        self.answers: Answers = [NOT_SENT if answer is None else answer for answer in skipped]
        self.ready: deque[int] = deque()
        self._behind: dict[int, int] = {}  # the next one of the same aggregate
        self._stopped: PublishFailure | None = None
        last: dict[str, int] = {}
        for place, message in enumerate(messages):
            if skipped[place] is not None:
                continue
            before = last.get(message.aggregate_id) if message.aggregate_id else None
            if before is None:
                self.ready.append(place)
            else:
                self._behind[before] = place
            last[message.aggregate_id] = place

    def answer(self, places: Sequence[int], answers: Sequence[PublishFailure | None]) -> None:
        """Record the answers for sent messages, and make those behind published ones ready."""
        for place, answer in zip(places, answers, strict=True):
            self.answers[place] = answer
            if answer is None and place in self._behind:
                self.ready.append(self._behind[place])
            elif answer is not None and answer.verdict in _OF_THE_WAY:
                self._stopped = answer
        if self._stopped is not None:
            self.stop(self._stopped)

    def stop(self, answer: PublishFailure) -> None:
        """Send nothing more; the first message of each waiting group gets this answer."""
        self._stopped = answer
        for place in self.ready:
            self.answers[place] = answer
        self.ready.clear()
