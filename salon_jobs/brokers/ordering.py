"""Keeps the order within each aggregate while many aggregates are sent at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from salon_jobs.brokers.publisher import NOT_SENT, Answers, OutgoingMessage, PublishFailure, Verdict

# They say nothing about the message: whatever else goes the same way would fare no better.
_OF_THE_WAY: Final = (Verdict.OUTAGE, Verdict.MISSING)


class AggregateOrder:
    """Holds the messages of one ``publish``: one lane for each aggregate, of which only the first may be in flight.

    A message without an aggregate has a lane of its own. ``ready`` are the places of the messages that may be sent
    now. A lane whose first was not published ends: its others stay NOT_SENT. After an outage, or when the destination
    is not there, nothing more becomes ready: the first of each lane gets the same answer. Used by one thread.
    """

    def __init__(self, messages: Sequence[OutgoingMessage], *, skipped: Sequence[PublishFailure | None]) -> None:
        self.answers: Answers = [NOT_SENT if answer is None else answer for answer in skipped]
        self.ready: deque[int] = deque()
        self._behind: dict[int, int] = {}  # the next of the same aggregate
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
        """Take the answers for messages that were sent, and make ready what comes behind the published ones."""
        for place, answer in zip(places, answers, strict=True):
            self.answers[place] = answer
            if answer is None and place in self._behind:
                self.ready.append(self._behind[place])
            elif answer is not None and answer.verdict in _OF_THE_WAY:
                self._stopped = answer
        if self._stopped is not None:
            self.stop(self._stopped)

    def stop(self, answer: PublishFailure) -> None:
        """Send nothing more: the first of each lane that waits gets this answer."""
        self._stopped = answer
        for place in self.ready:
            self.answers[place] = answer
        self.ready.clear()
