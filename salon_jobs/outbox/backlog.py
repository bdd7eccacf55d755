"""Unmarked messages of one destination that a relay has read: ordered, bounded, without blocked aggregates."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final

from salon_jobs.brokers.publisher import OutgoingMessage
from salon_jobs.core.states import moved
from salon_jobs.outbox.failures import Failure
from salon_jobs.outbox.queries import Blocked, PageRequest

# An aggregate ID or, for a message without an aggregate, its number (``id``, not ``message_id``).
Key = str | int
_PAGE_GROWTH = 8
# Characters of payloads in memory, by the mean of the last read; before any read, by a cautious guess.
_MOST_SIZE = 64_000_000
_UNKNOWN_SIZE = 64_000


class Blocking(Enum):
    """State of a blocked aggregate.

    ===========  =================================================  ===========================================
    State        Meaning                                            Goes on to
    ===========  =================================================  ===========================================
    FAILED       the row that blocks it is about to be written      BLOCKED
    BLOCKED      the row is in the table                            CATCHING_UP, when it is due or gone
    CATCHING_UP  its messages are read again, page by page          free, with the last page; or another failure
    ===========  =================================================  ===========================================
    """

    FAILED = "failed"
    BLOCKED = "blocked"
    CATCHING_UP = "catching up"


_NEXT: Final = {
    Blocking.FAILED: (Blocking.BLOCKED,),
    Blocking.BLOCKED: (Blocking.CATCHING_UP,),
    Blocking.CATCHING_UP: (),
}


@dataclass(slots=True)
class HeldAggregate:
    """A blocked aggregate: reading stops until its messages are caught up from ``after``.

    ``head_id`` is None after an operator deleted the row. ``outstanding`` counts messages that were caught up but
    neither published nor skipped yet. ``lost_marks``: messages before the head may be unmarked, since it dates from
    before the database was lost.
    """

    aggregate_id: str
    partition: int
    head_id: int | None
    after: int
    state: Blocking
    page: int = 1
    outstanding: int = 0
    lost_marks: bool = False

    @property
    def is_catching_up(self) -> bool:
        return self.state is Blocking.CATCHING_UP

    def go_on_to(self, state: Blocking) -> None:
        self.state = moved(self.state, state, _NEXT)

    def catch_up(self, *, after: int) -> None:
        """Read its messages again, first one, then pages that grow."""
        self.go_on_to(Blocking.CATCHING_UP)
        self.after, self.page = after, 1

    @property
    def first_id(self) -> int:
        """ID up to which its partition must be read before it is caught up."""
        return self.after if self.head_id is None else self.head_id


class Backlog:
    """Buffer filled by the relay's reading thread and emptied by the publishing thread.

    Invariants: a message is in memory only once; of an aggregate on hold, only caught-up messages are in memory;
    ``take`` returns the messages of an aggregate in ID order; all messages in memory were read from one history of the
    table, in which an ID names one message (``forget`` begins another). Every method takes the lock; ``changed`` is
    notified when there is more to take.
    """

    def __init__(self, fetch_limit: int) -> None:
        self.changed = threading.Condition()
        self._most = 4 * fetch_limit
        self._mean_size = _UNKNOWN_SIZE
        self._after: dict[int, int] = {}
        self._first: deque[OutgoingMessage] = deque()
        self._queue: deque[OutgoingMessage] = deque()
        # Every message that was read but not marked yet, with its partition.
        self._unmarked: dict[int, int] = {}
        self._holds: dict[Key, HeldAggregate] = {}
        # Whether nothing may be read, because messages from before ``forget`` are still in flight.
        self._draining = False

    def own(self, partitions: Collection[int]) -> None:
        """Read only these partitions from now on, new ones from their beginning."""
        with self.changed:
            lost = set(self._after) - set(partitions)
            self._after = {partition: self._after.get(partition, 0) for partition in partitions}
            if lost:
                self._drop(lambda message: message.partition in lost)
                self._holds = {key: hold for key, hold in self._holds.items() if hold.partition not in lost}

    def forget(self) -> None:
        """Drop messages not taken yet, and read everything from the beginning; for when the database was lost.

        The database may now be in an earlier state, which gives out the IDs of lost messages again. So nothing is read
        until each message in flight is marked, has failed, or was put back, which drops it, and ``refresh`` has then
        reported which aggregates are blocked.
        """
        with self.changed:
            self._drop(lambda _: True)
            self._holds.clear()
            self._after = dict.fromkeys(self._after, 0)
            self._draining = True

    @property
    def drained(self) -> bool:
        """Whether ``refresh`` would let the reading begin again after ``forget``."""
        return self._draining and not self._unmarked

    def page_requests(self, destination: str, bound: int) -> list[PageRequest]:
        """Return the next requests, as memory allows, for partitions not yet read up to the gate's bound."""
        with self.changed:
            most = min(self._most, max(1, _MOST_SIZE // self._mean_size))
            room = most - len(self._unmarked)
            behind = [(partition, after) for partition, after in self._after.items() if after < bound]
            if self._draining or room < max(1, most // 16) or not behind:
                return []
            take = -(-room // len(behind))
            return [PageRequest(destination, partition, after, take) for partition, after in behind]

    def is_behind(self, bound: int) -> bool:
        """Return whether something up to the gate's bound is unread or still being caught up."""
        with self.changed:
            unread = any(after < bound for after in self._after.values())
            return self._draining or unread or any(hold.is_catching_up for hold in self._holds.values())

    def uses(self, partition: int) -> bool:
        with self.changed:
            return partition in self._unmarked.values()

    def blocked_aggregates(self) -> list[str]:
        with self.changed:
            return [key for key in self._holds if isinstance(key, str)]

    def accept(self, requests: Sequence[PageRequest], messages: Sequence[OutgoingMessage], bound: int) -> None:
        """Add messages that were read on request, up to the gate's bound, skipping those already in memory.

        A message still in flight comes up again when its partition is reread from the beginning.
        """
        counts = Counter([message.partition for message in messages])
        last = {message.partition: message.id for message in messages}
        with self.changed:
            for request in requests:
                full = counts[request.partition] >= request.take
                self._after[request.partition] = last[request.partition] if full else max(bound, request.after)
            if messages:
                mean = sum([len(message.payload) for message in messages]) // len(messages)
                self._mean_size = max(1, mean, self._mean_size // 2)
            if self._holds or self._unmarked:
                unmarked, holds = self._unmarked, self._holds
                messages = [m for m in messages if m.id not in unmarked and (m.aggregate_id or m.id) not in holds]
            self._add(self._queue, messages)

    def read_so_far(self) -> tuple[dict[int, int], list[int]]:
        """Return how far each partition was read, and the messages in memory."""
        with self.changed:
            return dict(self._after), list(self._unmarked)

    def accept_late(self, messages: Sequence[OutgoingMessage]) -> int:
        """Add messages found below what was already read; return how many are new."""
        with self.changed:
            late_messages = [m for m in messages if m.id not in self._unmarked and _key(m) not in self._holds]
            self._add(self._queue, late_messages)
            return len(late_messages)

    def refresh(self, rows: Iterable[Blocked]) -> None:
        """Sync with blocked aggregates: stop new ones, resume those that are due or unblocked."""
        with self.changed:
            if self._draining and self._unmarked:
                return
            lost_marks, self._draining = self._draining, False
            blocked: set[Key] = set()
            for row in rows:
                key: Key = row.aggregate_id or row.head_id
                blocked.add(key)
                if row.head_id in self._unmarked:
                    continue  # being sent, or sent and about to be marked
                hold = self._holds.get(key)
                if hold is None:
                    hold = HeldAggregate(
                        row.aggregate_id, row.partition, row.head_id, row.head_id - 1, Blocking.BLOCKED
                    )
                    hold.lost_marks = lost_marks
                    self._holds[key] = hold
                    self._drop_of({key})
                elif hold.state is not Blocking.BLOCKED:
                    continue
                hold.head_id = row.head_id
                if row.due:
                    hold.catch_up(after=0 if hold.lost_marks and row.aggregate_id else row.head_id - 1)
            for key, hold in self._holds.items():
                if key not in blocked and hold.state is Blocking.BLOCKED:
                    hold.catch_up(after=key - 1 if isinstance(key, int) else 0)
                    hold.head_id = None

    def to_catch_up(self, most: int) -> list[tuple[Key, HeldAggregate, int]]:
        """Return up to ``most`` aggregates with a next page to read, and the ID up to which to read.

        An aggregate waits until its partition was read up to the message that blocks it; otherwise that message would
        seem to be gone from the page.
        """
        with self.changed:
            ready = (
                (key, hold, self._after[hold.partition])
                for key, hold in self._holds.items()
                if hold.is_catching_up and not hold.outstanding and self._after.get(hold.partition, -1) >= hold.first_id
            )
            return list(islice(ready, most))

    def accept_caught_up(self, key: Key, hold: HeldAggregate, messages: Sequence[OutgoingMessage]) -> int | None:
        """Add the next page; a short page ends its hold. Return a head whose row is stale.

        The first page begins with the head, or with an earlier message that is pending.
        """
        with self.changed:
            if self._holds.get(key) is not hold:
                return None  # one of its messages failed in the meantime
            stale = None
            if hold.head_id is not None and not (messages and messages[0].id <= hold.head_id):
                stale = hold.head_id
            # Later pages begin after this one.
            hold.head_id = None
            new_messages = [message for message in messages if message.id not in self._unmarked]
            self._add(self._first, new_messages)
            hold.outstanding += len(new_messages)
            if isinstance(key, int) or len(messages) < hold.page:
                del self._holds[key]
            else:
                hold.after = messages[-1].id
                hold.page = min(hold.page * _PAGE_GROWTH, self._most // 4)
            return stale

    def waiting_ids(self) -> list[int]:
        """Return the messages that are not taken yet."""
        with self.changed:
            return [message.id for message in (*self._first, *self._queue)]

    def drop(self, ids: Collection[int]) -> None:
        """Drop those of these messages that are not taken yet: they are not pending any more."""
        with self.changed:
            self.done([message for message in (*self._first, *self._queue) if message.id in ids])
            self._drop(lambda message: message.id in ids)

    def take(self, most: int) -> list[OutgoingMessage]:
        """Take up to ``most`` messages to publish; they stay known until they are marked or put back."""
        with self.changed:
            batch: list[OutgoingMessage] = []
            for waiting in (self._first, self._queue):
                while waiting and len(batch) < most:
                    batch.append(waiting.popleft())
            return batch

    def put_back(self, messages: Sequence[OutgoingMessage]) -> None:
        """Put unsent messages back at the front, except those on hold, to be read again, or in lost partitions."""
        with self.changed:
            kept: list[OutgoingMessage] = []
            for message in messages:
                hold = self._holds.get(_key(message))
                may_go = message.partition in self._after and (hold is None or hold.is_catching_up)
                if may_go and not self._draining:
                    kept.append(message)
                else:
                    self._unmarked.pop(message.id, None)
            self._first.extendleft(reversed(kept))

    def done(self, messages: Iterable[OutgoingMessage]) -> None:
        """Count messages that were published or skipped, also by an operator."""
        with self.changed:
            if self._holds:
                for message in messages:
                    hold = self._holds.get(_key(message))
                    if hold is not None and hold.outstanding:
                        hold.outstanding -= 1

    def marked(self, messages: Iterable[OutgoingMessage]) -> None:
        """Forget messages that are marked in the table."""
        with self.changed:
            for message in messages:
                self._unmarked.pop(message.id, None)

    def fail(self, failures: Sequence[Failure]) -> None:
        """Hold the aggregates of messages that could not be published, and drop their messages in memory."""
        with self.changed:
            for failure in failures:
                message = failure.message
                self._unmarked.pop(message.id, None)
                key = _key(message)
                # Move to the end, so that every aggregate gets its turn when more are due than fit in one poll.
                self._holds.pop(key, None)
                if failure.final and not message.aggregate_id:
                    continue
                if message.partition in self._after:
                    hold = HeldAggregate(
                        message.aggregate_id, message.partition, message.id, message.id - 1, Blocking.FAILED
                    )
                    hold.lost_marks = self._draining
                    self._holds[key] = hold
            self._drop_of({_key(failure.message) for failure in failures})

    def written(self, failures: Sequence[Failure]) -> None:
        """Mark these failures as saved."""
        with self.changed:
            for failure in failures:
                hold = self._holds.get(_key(failure.message))
                if hold is not None and hold.head_id == failure.message.id and hold.state is Blocking.FAILED:
                    hold.go_on_to(Blocking.BLOCKED)

    @property
    def size(self) -> int:
        return len(self._unmarked)

    @property
    def waiting(self) -> bool:
        return bool(self._first or self._queue)

    @property
    def on_hold(self) -> int:
        return len(self._holds)

    def _add(self, waiting: deque[OutgoingMessage], messages: Sequence[OutgoingMessage]) -> None:
        waiting.extend(messages)
        self._unmarked.update([(message.id, message.partition) for message in messages])
        self.changed.notify_all()

    def _drop_of(self, keys: Collection[Key]) -> None:
        self._drop(lambda message: _key(message) in keys)

    def _drop(self, unwanted: Callable[[OutgoingMessage], bool]) -> None:
        for waiting in (self._first, self._queue):
            kept = [message for message in waiting if not unwanted(message)]
            if len(kept) < len(waiting):
                for message in waiting:
                    if unwanted(message):
                        self._unmarked.pop(message.id, None)
                waiting.clear()
                waiting.extend(kept)


def _key(message: OutgoingMessage) -> Key:
    return message.aggregate_id or message.id
