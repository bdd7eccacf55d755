"""Shows that what committed is published, in order, and what did not is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from threading import Event
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction

from salon_jobs import emit, emit_many, tenant_context
from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import OutgoingMessage, PublishBroken, PublishFailure, Verdict
from salon_jobs.control import resume_destination
from salon_jobs.outbox import queries
from tests.outbox.rows import OPERATOR
from tests.outbox.scene import (
    ORDERS,
    RunningRelay,
    answer_with,
    arrived,
    blocked_count,
    draft,
    emitted,
    message,
    numbers_by_aggregate,
    outages,
    relay_by_hand,
    relay_in_burst,
    relaying,
    statuses,
)
from tests.support import change, seen
from tests.waiting import LIMIT_S, eventually

Change = Callable[..., None]


def test_rolled_back_message_is_not_published() -> None:
    emitted("a", number=1)
    with transaction.atomic():
        emit(ORDERS, aggregate_id="a", event="order.created", payload={"number": 2})
        transaction.set_rollback(True)
    assert relay_in_burst()
    assert arrived() == [("a", 1)]
    assert statuses() == {"published": 1}


def test_order_of_each_aggregate(change_settings: Change) -> None:
    change_settings(OUTBOX={"FETCH_LIMIT": 100})
    with transaction.atomic():
        emit_many(draft(f"a{n % 50}", n) for n in range(2345))
    assert relay_in_burst()
    assert numbers_by_aggregate() == {f"a{n}": [*range(n, 2345, 50)] for n in range(50)}
    assert statuses() == {"published": 2345}


def test_share_of_reading_what_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where much is blocked, reading it takes a tenth of the time; what operators change is read at once."""
    now, reads = 1000.0, 0

    def slow(_: object, *, using: str) -> list[Any]:
        nonlocal now, reads
        reads += 1
        now += 3
        return []

    monkeypatch.setattr("salon_jobs.outbox.relay.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(queries, "blocked", slow)
    with relay_by_hand() as relay:
        for at, expected in ((1000.0, 1), (1003.1, 2), (1033.0, 2), (1033.2, 3), (1063.0, 3)):
            now = at
            relay.poll()
            assert (at, reads) == (at, expected)

        def read_again() -> int:
            relay.poll()
            return reads

        eventually(lambda: relay.facts()["listening"], True)
        resume_destination(ORDERS, using=OPERATOR)
        eventually(read_again, 4)


def test_failed_message_holds_its_aggregate_alone() -> None:
    answer_with(Verdict.RETRY, aggregate="a", times=3)
    for number in range(5):
        emitted("a", number=number)
        emitted("b", number=number)
    with relaying():
        eventually(statuses, {"published": 10})
    assert numbers_by_aggregate() == {"a": [0, 1, 2, 3, 4], "b": [0, 1, 2, 3, 4]}
    assert [name for name, _ in arrived()][:4] == ["b"] * 4, "they waited for none"
    assert seen("SELECT retry_count FROM salon_jobs_message ORDER BY id LIMIT 1") == [(3,)]
    assert blocked_count() == 0


def test_stores_share_an_aggregate(stores: list[UUID]) -> None:
    """It is its type and its ID, whichever store wrote the messages: one that failed holds up those of the others."""
    answer_with(Verdict.REFUSED, aggregate="order-7", times=1)
    for store in stores[:2]:
        with tenant_context(store):
            emitted("order-7")
            emitted(f"{store}:7")
    assert relay_in_burst()
    rows = seen("SELECT store_id, aggregate_id, status FROM salon_jobs_message ORDER BY id")
    own = [(store, f"{store}:7", "published") for store in stores[:2]]
    assert rows == [(stores[0], "order-7", "failed"), own[0], (stores[1], "order-7", "pending"), own[1]]


def outage_of_another_relay(code: str) -> None:
    """Write the row of an outage as a relay leaves it that died meanwhile."""
    change(
        "INSERT INTO salon_jobs_destination (aggregate_type, outage_code, outage_since) VALUES (%s, %s, '2026-05-06')",
        *(ORDERS, code),
    )


def test_outage_that_outlives_its_relay() -> None:
    """Whoever has its partitions says that it is over, but not before the destination answers."""
    outage_of_another_relay("TEST.NO")
    answer_with(Verdict.OUTAGE)
    emitted("a")
    with relaying() as running:
        eventually(lambda: [each["outage"] for each in running.facts()["destinations"].values()], ["TEST.NO"])
        assert seen("SELECT outage_since FROM salon_jobs_destination WHERE outage_since < '2026-05-07'")
        MemoryPublisher.answer = None
        eventually(outages, [""])


def test_silence_that_outlives_its_relay(tune: Change) -> None:
    """It ends with the first answer to a ping, without a message."""
    tune(pings_s=0.0)
    outage_of_another_relay("OUTBOX.BROKER_SILENT")
    with relaying():
        eventually(outages, [""])


def test_another_relay_counts_the_attempts_on(change_settings: Change) -> None:
    change_settings(OUTBOX={"RETRY_BACKOFF": 60, "RETRY_COUNT": 3})
    answer_with(Verdict.RETRY)
    emitted("a")
    for attempts, status in ((1, "pending"), (2, "pending"), (3, "failed")):
        assert relay_in_burst()
        assert seen("SELECT retry_count, status FROM salon_jobs_message") == [(attempts, status)]
        change("UPDATE salon_jobs_blocked_aggregate SET retry_at = now()")
    assert seen("SELECT status FROM salon_jobs_blocked_aggregate") == [("parked",)]


def test_outage_holds_all_until_the_next_heartbeat() -> None:
    with relay_by_hand() as relay:
        relay.poll()
        assert relay.owned == 16
        relay.on_outage()
        assert relay.owned == 0
        relay.poll()
        assert relay.owned == 16


def test_lost_partition_ends_the_batch_being_sent() -> None:
    sending, go_on = Event(), Event()

    def answer(_: OutgoingMessage) -> None:
        sending.set()
        assert go_on.wait(LIMIT_S)

    MemoryPublisher.answer = answer
    with transaction.atomic():
        emit_many(draft(f"a{n}", n) for n in range(9))
    with relay_by_hand() as relay:
        relay.poll()
        assert sending.wait(LIMIT_S)
        change("UPDATE salon_jobs_partition SET owner = 99, epoch = epoch + 1 WHERE partition = 3")
        relay.beat()
        [worker] = relay.workers
        worker.stop()
        go_on.set()
        worker.thread.join(LIMIT_S)
        assert len(MemoryPublisher.published) == 1


def test_outage_costs_no_attempt() -> None:
    answer_with(Verdict.OUTAGE)
    for number in (1, 2):
        emitted("a", number=number)
    with relaying():
        eventually(outages, ["TEST.NO"])
        answer_with(Verdict.OUTAGE, times=0)
        eventually(statuses, {"published": 2})
        eventually(lambda: seen("SELECT outage_code, outage_since FROM salon_jobs_destination"), [("", None)])
    assert arrived() == [("a", 1), ("a", 2)]
    assert seen("SELECT DISTINCT retry_count FROM salon_jobs_message") == [(0,)]


def test_publisher_that_breaks_sends_nothing_twice(caplog: pytest.LogCaptureFixture) -> None:
    """What the broker accepted before an unexpected error is marked as sent; the rest is sent later, in order."""
    errors = [ZeroDivisionError("no")]

    def answer(message: OutgoingMessage) -> None:
        if json.loads(message.payload)["number"] == 2 and errors:
            raise errors.pop()

    MemoryPublisher.answer = answer
    with transaction.atomic():
        emit_many(draft("a", number) for number in range(4))
    with relaying():
        eventually(statuses, {"published": 4})
    assert arrived() == [("a", number) for number in range(4)]
    [record] = [each for each in caplog.records if getattr(each, "event", "") == "publisher_broken"]
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


@pytest.mark.parametrize("known", [0, 2])
def test_answers_so_far_are_fewer_than_messages(known: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher of somebody else's may name only those that it has: the others were not sent."""
    publish, broken = MemoryPublisher.publish, Event()

    def break_once(self: MemoryPublisher, messages: Any, **how: Any) -> Any:
        if broken.is_set():
            return publish(self, messages, **how)
        broken.set()
        raise PublishBroken(publish(self, messages[:known], **how))

    monkeypatch.setattr(MemoryPublisher, "publish", break_once)
    with transaction.atomic():
        emit_many(draft("a", number) for number in range(4))
    with relaying():
        eventually(statuses, {"published": 4})
    assert arrived() == [("a", number) for number in range(4)]


def test_publisher_that_refuses_a_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of somebody else's may answer so for messages of one aggregate, too: only the first of them has failed."""
    publish, refused = MemoryPublisher.publish, Event()

    def refuse_once(self: MemoryPublisher, messages: Any, **how: Any) -> Any:
        if refused.is_set():
            return publish(self, messages, **how)
        refused.set()
        return [PublishFailure(Verdict.RETRY, "TEST.NO")] * len(messages)

    monkeypatch.setattr(MemoryPublisher, "publish", refuse_once)
    with transaction.atomic():
        emit_many(draft(aggregate, number) for number in range(3) for aggregate in ("a", "b", ""))
    with relaying():
        eventually(statuses, {"published": 9})
    arrived_in = numbers_by_aggregate()
    assert (arrived_in["a"], arrived_in["b"]) == ([0, 1, 2], [0, 1, 2])
    tries = "SELECT aggregate_id, array_agg(retry_count ORDER BY id) FROM salon_jobs_message GROUP BY 1 ORDER BY 1"
    assert seen(tries) == [("", [1, 1, 1]), ("a", [1, 0, 0]), ("b", [1, 0, 0])]


def test_message_of_no_aggregate_is_retried_alone() -> None:
    refused = iter([True, True])

    def answer(message: OutgoingMessage) -> PublishFailure | None:
        first = json.loads(message.payload)["number"] == 0
        return PublishFailure(Verdict.RETRY, "TEST.NO") if first and next(refused, False) else None

    MemoryPublisher.answer = answer
    for number in range(3):
        emitted(number=number)
    with relaying():
        eventually(statuses, {"published": 3})
    assert sorted(arrived()[:2]) == [("", 1), ("", 2)]
    assert arrived()[2:] == [("", 0)]
    assert blocked_count() == 0


def test_two_relays_share_the_partitions(change_settings: Change) -> None:
    """The one that stops hands its own over."""
    change_settings(PROCESS_SILENT_AFTER=5)
    with relaying() as first:
        first.wait_for_partitions()
        with relaying() as second:
            first.wait_for_partitions(8)
            second.wait_for_partitions(8)
            for number in range(40):
                emitted(f"a{number % 20}", number=number)
            eventually(statuses, {"published": 40})
            assert len(arrived()) == 40
            assert first.stop()
            second.wait_for_partitions()
            assert second.stop()


def test_busy_destination_hides_no_new_one(change_settings: Change) -> None:
    change_settings(OUTBOX={"FETCH_LIMIT": 5})
    queries.add_destinations([ORDERS], using="default")
    with transaction.atomic():
        emit_many(draft(number=n) for n in range(500))
        emit("rn::memory:::new", event="e", payload={})
    assert relay_in_burst()
    [place] = [number for number, message in enumerate(MemoryPublisher.published) if message.aggregate_type != ORDERS]
    assert place < 400


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("broken", "by", "said"),
    [
        ("brokers.memory.MemoryPublisher.publish", lambda *_, **__: ["no answer"], "ended with an error"),
        ("outbox.backlog.Backlog.marked", None, "the marker ended with an error"),
    ],
    ids=["destination worker", "marker"],
)
def test_relay_ends_with_a_broken_thread(monkeypatch: pytest.MonkeyPatch, broken: str, by: Any, said: str) -> None:
    monkeypatch.setattr(f"salon_jobs.{broken}", by)
    emitted("a")
    with pytest.raises(RuntimeError, match=said):
        relay_in_burst()


def test_unmarked_messages_keep_their_partition(change_settings: Change) -> None:
    change_settings(SHUTDOWN_GRACE=3)
    running = RunningRelay()
    running.wait_for_partitions()
    change("REVOKE UPDATE ON salon_jobs_message FROM worker_runtime")
    try:
        emitted("a", number=1)
        eventually(arrived, [("a", 1)])
        assert not running.stop()
    finally:
        change("GRANT UPDATE ON salon_jobs_message TO worker_runtime")
    assert seen("SELECT count(*) FROM salon_jobs_partition WHERE owner IS NOT NULL") == [(1,)]


def test_unparsable_destinations_hold_up_no_other() -> None:
    """Nor do they make a relay unready."""
    for name in ("rn::nobody:::orders", "rn::carrier-pigeon:::orders", "rn::memory:::a\u0001b"):
        change("SELECT salon_jobs_emit(%s, 'a', 'e', '{}')", name)
    with relaying() as relay:
        eventually(lambda: len(relay.facts()["destinations"]), 3)
        assert relay.facts()["brokers"] == {}
        emitted("a", number=1)
        eventually(lambda: set(relay.facts()["brokers"]), {"memory"})
        eventually(statuses, {"pending": 3, "published": 1})
        eventually(lambda: relay.facts()["destinations"]["rn::nobody:::orders"]["outage"], "OUTBOX.NO_PUBLISHER")
        assert relay.relay.samples()
    assert arrived() == [("a", 1)]


def test_bound_of_destinations_spares_registered_ones(tune: Callable[..., None]) -> None:
    tune(most_destinations=5)
    queries.add_destinations([ORDERS], using="default")
    change("SELECT salon_jobs_emit('rn::memory:::a' || n, 'a', 'e', '{}') FROM generate_series(1, 20) n")
    emitted("a", number=1)
    assert relay_in_burst()
    assert arrived() == [("a", 1)]
    assert statuses() == {"published": 5, "pending": 16}
    assert seen("SELECT count(*) FROM salon_jobs_destination") == [(5,)]


def test_rate_of_a_destination(change_settings: Change) -> None:
    """It holds for all relays together, and for no other destination."""
    slow = "rn::memory:::slow"
    change_settings(OUTBOX={"THROUGHPUT": {"*": 20, "memory": None, slow: 20}})
    # A bucket that was empty at first, and holds two.
    sent = (
        "SELECT count(sent_at), 2 + 20 * extract(epoch FROM clock_timestamp() - min(created_at))"
        " FROM salon_jobs_message WHERE aggregate_type = %s"
    )
    with relaying() as first, relaying() as second:
        first.wait_for_partitions(8)
        second.wait_for_partitions(8)
        with transaction.atomic():
            for to, count in ((slow, 2000), (ORDERS, 300)):
                emit_many(draft(f"a{n}", to=to) for n in range(count))
        eventually(lambda: seen(sent, ORDERS)[0][0], 300)
        eventually(lambda: seen(sent, slow)[0][0] >= 20)
        [(count, allowed)] = seen(sent, slow)
    assert count <= allowed < 2000, "the other destination was not limited to that"


def test_former_owners_mark_frees_a_parked_aggregate() -> None:
    answer_with(Verdict.REFUSED, times=1)
    emitted("a", number=1)
    assert relay_in_burst()
    [(head,)] = seen("SELECT head_id FROM salon_jobs_blocked_aggregate WHERE status = 'parked'")
    [(message_id,)] = seen("SELECT message_id FROM salon_jobs_message")
    queries.mark_published([message(head + 1, message_id=message_id)], using="default")
    queries.mark_published([message(head)], using="default")
    assert (statuses(), blocked_count()) == ({"failed": 1}, 1)
    queries.mark_published([message(head, message_id=message_id)], using="default")
    assert statuses() == {"published": 1}
    assert blocked_count() == 0
