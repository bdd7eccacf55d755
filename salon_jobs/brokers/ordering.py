"""Order within each aggregate while many aggregates are sent at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from salon_jobs.brokers.publisher import NOT_SENT, Answers, OutgoingMessage, PublishFailure, Verdict

# Verdicts that say nothing about the message: others sent to the same place would fare no better.
_OF_THE_WAY: Final = (Verdict.OUTAGE, Verdict.MISSING)


@dataclass(slots=True, eq=False)
class Aggregate:
    """Unpublished messages of one aggregate, as positions in the call's messages; the first is next."""

    aggregate_id: str
    positions: deque[int]
    retries: int = 0


class AggregateOrder:
    """Messages of one ``publish``, grouped by aggregate; only the first of each aggregate may be in flight.

    A message without an aggregate is one of its own. ``ready`` holds the aggregates whose first message may be sent
    now. After a message that was not published, the rest of its aggregate stays NOT_SENT. After an outage, or when the
    destination does not exist, nothing more becomes ready: the first message of each aggregate gets the same answer.
    Threads may share an order: each takes one aggregate at a time and answers it.
    """

    def __init__(self, messages: Sequence[OutgoingMessage], *, skipped: Sequence[PublishFailure | None] = ()) -> None:
        self.ready: deque[Aggregate] = deque()
        self.stopped_by: PublishFailure | None = None
        self.messages = messages
        self.answers: Answers = [NOT_SENT] * len(messages)
        by_id: dict[str, Aggregate] = {}
        for position, message in enumerate(messages):
            if skipped and skipped[position] is not None:
                self.answers[position] = skipped[position]
            elif message.aggregate_id and (aggregate := by_id.get(message.aggregate_id)):
                aggregate.positions.append(position)
            else:
                aggregate = by_id[message.aggregate_id] = Aggregate(message.aggregate_id, deque((position,)))
                self.ready.append(aggregate)

    def take(self) -> Aggregate | None:
        """Remove and return an aggregate that is ready; None when there is none."""
        try:
            return self.ready.popleft()
        except IndexError:
            return None

    def first_of(self, aggregate: Aggregate) -> OutgoingMessage:
        """Return the next message of an aggregate."""
        return self.messages[aggregate.positions[0]]

    def answer(self, aggregate: Aggregate, failure: PublishFailure | None) -> None:
        """Record the answer to an aggregate's first message; if it was published, the next one becomes ready."""
        if failure is not None:
            self.answers[aggregate.positions[0]] = failure
            if failure.verdict in _OF_THE_WAY:
                self.stop(failure)
            return
        self.answers[aggregate.positions.popleft()] = None
        self.resume(aggregate)

    def resume(self, aggregate: Aggregate) -> None:
        """Make an aggregate ready again, if messages of it are left."""
        if aggregate.positions:
            self.ready.append(aggregate)
            # After the append: whoever stops at the same time either sees this aggregate or is seen here.
            if self.stopped_by is not None:
                self.stop(self.stopped_by)

    def stop(self, failure: PublishFailure) -> None:
        """Send nothing more; the first message of each aggregate that is ready gets this answer."""
        self.stopped_by = failure
        while (aggregate := self.take()) is not None:
            self.answers[aggregate.positions[0]] = failure


def publish_one_by_one(
    messages: Sequence[OutgoingMessage],
    publish: Callable[[OutgoingMessage], PublishFailure | None],
    *,
    should_continue: Callable[[], bool],
) -> Answers:
    """Publish messages in the order given; after one that is neither published nor skipped, hold its aggregate."""
    answers: Answers = []
    held: set[str] = set()
    for message in messages:
        answer = NOT_SENT if message.aggregate_id in held or not should_continue() else publish(message)
        answers.append(answer)
        if answer is not None and answer.verdict is not Verdict.SKIPPED and message.aggregate_id:
            held.add(message.aggregate_id)
    return answers
