"""Drives one destination worker and its backlog through random histories, next to a model of the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import NOT_SENT, Answers, OutgoingMessage, PublishFailure, Verdict
from salon_jobs.outbox.backlog import Backlog
from salon_jobs.outbox.destination_worker import DestinationWorker
from salon_jobs.outbox.marker import MarkBatch
from salon_jobs.outbox.queries import Blocked
from tests.outbox.scene import ORDERS, failure, message

PARTITIONS = frozenset({0, 1})
AGGREGATES = ("", "a", "b", "c")
ANSWERS = (None, None, None, *Verdict)


def filled(*messages: OutgoingMessage, upto: int = 100, blocked: Sequence[Blocked] = ()) -> Backlog:
    """Return a backlog of partition 0 that was read up to an id, after rows that block aggregates."""
    backlog = Backlog(100)
    backlog.own({0})
    backlog.refresh(blocked)
    backlog.accept(backlog.page_requests(ORDERS, upto), messages, upto)
    return backlog


def test_message_in_flight_is_not_added_again() -> None:
    """Not even when its partition is read again."""
    first, second = message(1), message(2)
    backlog = filled(first, second)
    assert backlog.take(1) == [first]
    backlog.own(())
    backlog.own({0})
    backlog.accept(backlog.page_requests(ORDERS, 100), [first, second], 100)
    backlog.put_back([first])
    assert backlog.take(9) == [first, second]


def test_retry_without_an_aggregate_is_waited_for() -> None:
    backlog = filled(message(5, ""), message(6, ""), blocked=[Blocked(ORDERS, "", 0, 5, False)])
    assert backlog.take(9) == [message(6, "")]
    backlog.refresh([Blocked(ORDERS, "", 0, 5, True)])
    [(key, hold, _)] = backlog.to_catch_up(9)
    assert backlog.accept_caught_up(key, hold, [message(5, "")]) is None
    assert backlog.take(9) == [message(5, "")]


def test_deleted_row_is_read_at_once() -> None:
    backlog = filled(blocked=[Blocked(ORDERS, "", 0, 5, False)])
    backlog.refresh([])
    [(_, hold, _)] = backlog.to_catch_up(9)
    assert hold.after == 4


def test_unread_head_does_not_count_as_gone() -> None:
    backlog = filled(upto=49, blocked=[Blocked(ORDERS, "a", 0, 50, True)])
    assert backlog.to_catch_up(9) == []
    backlog.accept(backlog.page_requests(ORDERS, 50), [], 50)
    assert len(backlog.to_catch_up(9)) == 1


def test_failure_holds_its_aggregate_in_memory() -> None:
    """One of a partition that was lost holds nothing."""
    backlog = filled(message(1), message(2), message(3, "b"))
    backlog.fail([failure(each) for each in backlog.take(1)])
    assert backlog.take(9) == [message(3, "b")]
    backlog = filled(message(1))
    batch = backlog.take(1)
    backlog.own(())
    backlog.fail([failure(each) for each in batch])
    assert (backlog.on_hold, backlog.size) == (0, 0)


def test_nothing_is_read_of_a_failed_aggregate() -> None:
    backlog = filled(message(1))
    backlog.fail([failure(each) for each in backlog.take(1)])
    backlog.accept(backlog.page_requests(ORDERS, 200), [message(101), message(102, "b")], 200)
    assert backlog.take(9) == [message(102, "b")]
    assert backlog.blocked_aggregates() == ["a"]


def test_page_read_before_its_head_failed() -> None:
    backlog = filled(message(1), message(2))
    backlog.refresh([Blocked(ORDERS, "a", 0, 0, True)])  # left behind by another relay
    [(key, hold, _)] = backlog.to_catch_up(9)
    backlog.fail([failure(message(1))])
    assert backlog.accept_caught_up(key, hold, [message(1)]) is None
    assert backlog.take(9) == []


def test_outage_ends_before_anything_is_read() -> None:
    """Nothing is read until what is in flight has ended, and what is blocked is known."""
    first, second, third = message(1), message(2), message(3)
    backlog = filled(first, second, third)
    assert backlog.take(2) == [first, second]
    backlog.forget()
    backlog.refresh([])
    assert not backlog.waiting
    assert backlog.page_requests(ORDERS, 100) == []
    backlog.put_back([second])
    backlog.marked([first])
    assert backlog.drained
    assert backlog.page_requests(ORDERS, 100) == []
    backlog.refresh([])
    [request] = backlog.page_requests(ORDERS, 100)
    assert request.after == 0
    others = [message(1, message_id=UUID(int=91)), message(2, message_id=UUID(int=92))]
    backlog.accept([request], others, 100)
    assert backlog.take(9) == others


def test_messages_before_failed_head_after_outage() -> None:
    """The database may have lost that they were sent: they are read again before the head."""
    first, second, third = message(1), message(2), message(3, "b")
    for is_known in (False, True):
        backlog = filled(first, second, third)
        backlog.marked(backlog.take(1))
        backlog.forget()
        if is_known:  # by the time that the rows are read, the failure is written
            backlog.marked([second])
        else:
            backlog.fail([failure(second)])
            backlog.written([failure(second)])
        backlog.marked([third])
        backlog.refresh([Blocked(ORDERS, "a", 0, 2, True)])
        backlog.accept(backlog.page_requests(ORDERS, 100), [], 100)
        [(key, hold, _)] = backlog.to_catch_up(9)
        assert hold.after == 0
        assert backlog.accept_caught_up(key, hold, [first]) is None
        assert backlog.take(9) == [first]


def test_bound_of_aggregates_caught_up_at_once() -> None:
    backlog = filled(blocked=[Blocked(ORDERS, f"a{n}", 0, n, True) for n in range(1, 50)])
    assert len(backlog.to_catch_up(9)) == 9


def test_size_of_payloads_bounds_what_is_read() -> None:
    backlog = Backlog(1000)
    backlog.own({0})
    [first] = backlog.page_requests(ORDERS, 10_000)
    assert first.take == 1000, "until a size is known, few are read"
    large = [message(number, payload="x" * 1_000_000) for number in range(1, 4)]
    backlog.accept([first], large, 3)
    [request] = backlog.page_requests(ORDERS, 10_000)
    assert request.take == 64 - 3
    backlog.marked(backlog.take(9))
    for last in range(4, 24):
        [request] = backlog.page_requests(ORDERS, 10_000)
        backlog.accept([request], [message(last)], last)
        backlog.marked(backlog.take(9))
    assert request.take == 4000, "small ones again"


@dataclass(slots=True)
class Row:
    """One message of the table; ``sent`` counts how often the broker got it."""

    message: OutgoingMessage
    status: str = "pending"
    sent: int = 0
    excused: bool = False


@dataclass(slots=True)
class Scripted(MemoryPublisher):
    """Answers by the script, and as a broker must: nothing of an aggregate after one that was not sent."""

    script: list[Verdict | None] = field(default_factory=list[Verdict | None])
    sent: Callable[[OutgoingMessage], None] = lambda _: None
    skipped: set[UUID] = field(default_factory=set[UUID])

    def publish(self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]) -> Answers:
        answers: Answers = []
        held: set[str] = set()
        for each in messages:
            verdict = self.script.pop() if self.script else None
            if each.aggregate_id in held or not should_continue():
                verdict = Verdict.NOT_SENT
            if verdict is None:
                self.sent(each)
            elif verdict is Verdict.SKIPPED:
                self.skipped.add(each.message_id)
            elif each.aggregate_id:
                held.add(each.aggregate_id)
            is_tried = verdict is not Verdict.NOT_SENT
            answers.append(None if verdict is None else PublishFailure(verdict, "T") if is_tried else NOT_SENT)
        return answers


class KeptMarks(list[MarkBatch]):
    """Stands for the marker: keeps what it gets until the machine writes it."""

    put = list.append


class Histories(RuleBasedStateMachine):
    """One relay with one destination, another relay that now and then owns its partitions, and an operator.

    The database is lost now and then, and may have lost its last transactions when it is back.
    """

    @initialize()
    def begin(self) -> None:
        self.rows: dict[int, Row] = {}
        self.violations: list[str] = []
        self.emitted = 0
        self.blocked: dict[Any, tuple[int, str]] = {}  # key: head, status
        self.marks, self.publisher = KeptMarks(), Scripted()
        self.publisher.sent = self.arrive
        marks: Any = self.marks
        self.worker = DestinationWorker(ORDERS, self.publisher, marks, owns=lambda: True, on_change=lambda: None)
        self.worker.backlog = Backlog(4)
        self.worker.tokens = None
        self.backlog = self.worker.backlog
        self.mine: frozenset[int] = frozenset()
        self.batch: tuple[list[OutgoingMessage], Callable[[], bool], Answers] | None = None

    def arrive(self, each: OutgoingMessage) -> None:
        """Check what reaches the broker: never twice, and nothing of its aggregate before it is missing."""
        row = self.row_of(each)
        if row is None:
            return  # its transaction was lost
        if row.sent and not row.excused:
            self.violations.append(f"{each.id} twice")
        row.sent += 1
        if each.aggregate_id:
            for id_, other in self.rows.items():
                earlier = other.message.aggregate_id == each.aggregate_id and id_ < each.id and not other.sent
                skipped = other.message.message_id in self.publisher.skipped
                if earlier and not skipped and other.status in ("pending", "failed"):
                    self.violations.append(f"{each.id} before {id_}")

    def row_of(self, each: OutgoingMessage) -> Row | None:
        """Return the row of a message, as statements find it; None if another message has its number."""
        row = self.rows.get(each.id)
        return row if row is not None and row.message.message_id == each.message_id else None

    @rule(aggregate=st.sampled_from(AGGREGATES), count=st.integers(1, 9))
    def emit(self, aggregate: str, count: int) -> None:
        for _ in range(count):
            id_ = len(self.rows) + 1
            self.emitted += 1
            partition = id_ % 2 if not aggregate else ord(aggregate) % 2
            self.rows[id_] = Row(message(id_, aggregate, partition, message_id=UUID(int=self.emitted)))

    @rule(lost=st.integers(0, 9), unmarked=st.integers(0, 9), anew=st.integers(0, 12))
    def lose_the_database(self, lost: int, unmarked: int, anew: int) -> None:
        """Lose some of the last messages, and what was written about some before them; their numbers are used again."""
        kept = max(0, len(self.rows) - lost)
        for id_ in range(kept + 1, len(self.rows) + 1):
            del self.rows[id_]
        if lost:
            for id_ in range(max(0, kept - unmarked) + 1, kept + 1):
                row = self.rows[id_]
                row.excused |= row.status == "published"
                row.status = "pending"
            heads = {id_ for id_ in self.rows if id_ <= kept - unmarked}
            self.blocked = {key: row for key, row in self.blocked.items() if row[0] in heads}
        for _ in range(anew if lost else 0):
            self.emit("a", 1)
        self.worker.forget()

    def fetch(self, rows: Sequence[Row], after: int, upto: int, take: int) -> list[OutgoingMessage]:
        """Read the pending ones between two ids."""
        pending = [row.message for row in rows if row.status == "pending"]
        return [message for message in pending if after < message.id <= upto][:take]

    def go_on(self, between: bool) -> None:
        """Let the publisher and the marker go on between two steps of the relay."""
        if between:
            self.end_batch()
            self.mark()

    @rule(between=st.booleans())
    def read(self, between: bool) -> None:
        """Read what is next, while the others may go on."""
        bound = len(self.rows)
        requests = self.backlog.page_requests(ORDERS, bound)
        held = self.backlog.blocked_aggregates()
        found: list[OutgoingMessage] = []
        for want in requests:
            rows = [row for row in self.rows.values() if row.message.partition == want.partition]
            rows = [row for row in rows if row.message.aggregate_id not in held]
            found += self.fetch(rows, want.after, bound, want.take)
        self.go_on(between)
        self.backlog.accept(requests, found, bound)
        for key, hold, upto in self.backlog.to_catch_up(2):
            last = upto if isinstance(key, str) else hold.after + 1
            rows = [row for row in self.rows.values() if row.message.aggregate_id == hold.aggregate_id]
            found = self.fetch(rows, hold.after, last, hold.page)
            self.go_on(between)
            stale = self.backlog.accept_caught_up(key, hold, found)
            if stale is not None and (stale not in self.rows or self.rows[stale].status != "pending"):
                self.blocked = {k: row for k, row in self.blocked.items() if row[0] != stale}

    @rule(due=st.booleans(), between=st.booleans())
    def refresh(self, due: bool, between: bool) -> None:
        """Learn what is blocked, while the others may go on. The relay writes failures first."""
        self.write_failures()
        rows: list[Blocked] = []
        for key, (head, status) in self.blocked.items():
            partition, aggregate = self.rows[head].message.partition, key if isinstance(key, str) else ""
            if partition in self.mine:
                rows.append(Blocked(ORDERS, aggregate, partition, head, status == "waiting" and due))
        self.go_on(between)
        self.backlog.refresh(rows)

    @precondition(lambda self: self.batch is None)
    @rule(script=st.lists(st.sampled_from(ANSWERS), max_size=9), size=st.integers(1, 9), at_once=st.booleans())
    def publish(self, script: list[Verdict | None], size: int, at_once: bool) -> None:
        """Publish a batch; what came of it is handled now or later."""
        self.worker.breaker.close()
        if not self.backlog.waiting:
            return
        self.worker.tokens = size
        batch, should_continue = self.worker._next_batch()
        self.publisher.script = script
        self.batch = batch, should_continue, self.worker._publish(batch, should_continue)
        if at_once:
            self.end_batch()

    @rule()
    def end_batch(self) -> None:
        if self.batch is not None:
            batch, should_continue, answers = self.batch
            self.batch = None
            self.worker._handle(batch, answers, should_continue)
            self.worker._busy = False

    @rule()
    def mark(self) -> None:
        marks, self.marks[:] = list(self.marks), []
        for each in marks:
            skipped = [message for message, _ in each.skipped]
            marked = [(message, self.row_of(message)) for message in (*each.published, *skipped)]
            for number, (_, row) in enumerate(marked):
                if row is not None and number < len(each.published):
                    row.status = "published"
                elif row is not None and row.status == "pending":
                    row.status = "skipped"
            gone = {message.id for message, row in marked if row is not None}
            self.blocked = {key: row for key, row in self.blocked.items() if row[0] not in gone}
            each.backlog.marked([*each.published, *skipped])

    @rule()
    def write_failures(self) -> None:
        """Write what failed, unless it is another relay's by now."""
        failures = self.worker.take_failures()
        for each in failures:
            row = self.row_of(each.message)
            if row is None or row.status != "pending" or each.message.partition not in self.mine:
                continue
            row.status = "failed" if each.final else "pending"
            key = each.message.aggregate_id or each.message.id
            if not each.tries:
                self.blocked.setdefault(key, (each.message.id, "waiting"))  # a row of another message stays
                continue
            row.message = row.message._replace(retry_count=each.tries)
            self.blocked.pop(key, None)
            if not each.final or each.message.aggregate_id:
                self.blocked[key] = (each.message.id, "parked" if each.final else "waiting")
        self.worker.failures_written(failures)

    @rule(partitions=st.sets(st.sampled_from(sorted(PARTITIONS))))
    def change_hands(self, partitions: set[int]) -> None:
        """Lose partitions to another relay, and get them back. What was sent and is not marked may be sent again."""
        kept, mine = self.mine & partitions, frozenset(partitions)
        lost = self.mine - kept
        for row in self.rows.values():
            row.excused |= row.message.partition in lost
        self.mine = mine
        self.backlog.own(kept)
        if lost:
            self.worker.abandon_batch()
        self.backlog.own(mine)
        self.refresh(False, False)

    @rule(skip=st.booleans())
    def operate(self, skip: bool) -> None:
        """Retry or skip every head that is parked."""
        for key, (head, status) in list(self.blocked.items()):
            if status == "parked" and self.rows[head].status == "failed":
                self.rows[head].status = "skipped" if skip else "pending"
                self.rows[head].message = self.rows[head].message._replace(retry_count=0)
                self.blocked[key] = (head, "waiting")
                if skip:
                    del self.blocked[key]

    @rule(number=st.integers(1, 30), is_told=st.booleans())
    def skip(self, number: int, is_told: bool) -> None:
        """Skip a message that is not sent, wherever it is; the relay may learn of it, and of those before."""
        row = self.rows.get(number)
        if row is not None and row.status in ("pending", "failed"):
            row.status = "skipped"
            self.blocked = {key: held for key, held in self.blocked.items() if held[0] != number}
        if is_told:
            self.backlog.drop({id_ for id_ in self.backlog.waiting_ids() if self.rows[id_].status != "pending"})

    @invariant()
    def nothing_is_known_twice(self) -> None:
        if hasattr(self, "backlog"):
            waiting = [each.id for each in (*self.backlog._first, *self.backlog._queue)]
            assert len(waiting) == len(set(waiting))
            assert set(waiting) <= set(self.backlog._unmarked)
            assert self.violations == []

    def teardown(self) -> None:
        """Let it run out: everything that is not parked is sent and marked."""
        if not hasattr(self, "backlog"):
            return
        self.end_batch()
        self.change_hands(set(PARTITIONS))
        for _ in range(len(self.rows) + 20):
            self.publish([], 9, True)
            self.end_batch()
            self.write_failures()
            self.mark()
            self.operate(False)
            self.refresh(True, False)
            self.read(False)
        assert self.violations == []
        left = [id_ for id_, row in self.rows.items() if row.status == "pending"]
        failed = [id_ for id_, row in self.rows.items() if row.status == "failed" and row.message.aggregate_id]
        assert (left, failed, self.blocked, self.backlog.size, self.backlog.on_hold) == ([], [], {}, 0, 0)


TestHistories = Histories.TestCase
TestHistories.settings = settings(stateful_step_count=60)
