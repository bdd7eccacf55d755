"""Shows that what committed is published, in order, and what did not is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import transaction

from salon_jobs import emit, emit_many
from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure, Verdict
from salon_jobs.outbox import emit as wake
from salon_jobs.outbox import queries
from salon_jobs.outbox import relay as relay_module
from salon_jobs.outbox.relay import Relay
from tests.outbox.scene import (
    ORDERS,
    RunningRelay,
    answer_with,
    arrived,
    blocked_count,
    draft,
    emitted,
    numbers_by_aggregate,
    outages,
    relay_in_burst,
    relaying,
    statuses,
)
from tests.outbox.test_backlog import message
from tests.support import change, seen
from tests.waiting import eventually


def test_a_message_is_published_if_its_transaction_committed() -> None:
    emitted("a", number=1)
    with transaction.atomic():
        emit(ORDERS, aggregate_id="a", event="order.created", payload={"number": 2})
        transaction.set_rollback(True)
    assert relay_in_burst()
    assert arrived() == [("a", 1)]
    assert statuses() == {"published": 1}


def test_many_messages_arrive_in_the_order_of_each_aggregate(change_settings: Callable[..., None]) -> None:
    change_settings(OUTBOX={"FETCH_LIMIT": 100})
    with transaction.atomic():
        emit_many(draft(f"a{n % 50}", n) for n in range(2345))
    assert relay_in_burst()
    assert numbers_by_aggregate() == {f"a{n}": [*range(n, 2345, 50)] for n in range(50)}
    assert statuses() == {"published": 2345}


def test_reading_what_is_blocked_takes_a_tenth_of_the_time_where_it_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0

    def slow(_: object, *, using: str) -> list[Any]:
        nonlocal now
        now += 3
        return []

    monkeypatch.setattr("salon_jobs.outbox.relay.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(queries, "blocked", slow)
    relay = Relay(lambda: 1, using="default")
    relay._refresh()
    assert relay._refresh_at == pytest.approx(1000.1)
    relay._refresh()
    assert relay._refresh_at == 1003 + 30
    relay._hear(wake.OPERATOR)
    assert relay._refresh_at == 1006, "what operators change is read at once"


def test_when_one_fails_the_later_ones_of_its_aggregate_wait_and_others_go_on() -> None:
    answer_with(Verdict.RETRY, aggregate="a", times=3)
    for number in range(5):
        emitted("a", number=number)
        emitted("b", number=number)
    with relaying():
        eventually(lambda: numbers_by_aggregate().get("b"), [0, 1, 2, 3, 4])
        eventually(lambda: numbers_by_aggregate().get("a"), [0, 1, 2, 3, 4])
        eventually(statuses, {"published": 10})
    assert seen("SELECT retry_count FROM salon_jobs_message ORDER BY id LIMIT 1") == [(3,)]
    assert blocked_count() == 0


def test_another_relay_counts_the_attempts_on_until_they_are_used_up(change_settings: Callable[..., None]) -> None:
    change_settings(OUTBOX={"RETRY_BACKOFF": 60, "RETRY_COUNT": 3})
    answer_with(Verdict.RETRY)
    emitted("a")
    for attempts, status in ((1, "pending"), (2, "pending"), (3, "failed")):
        assert relay_in_burst()
        assert seen("SELECT retry_count, status FROM salon_jobs_message") == [(attempts, status)]
        change("UPDATE salon_jobs_blocked_aggregate SET retry_at = now()")
    assert seen("SELECT status FROM salon_jobs_blocked_aggregate") == [("parked",)]


def test_after_an_outage_a_relay_sends_nothing_before_its_next_heartbeat() -> None:
    relay = Relay(lambda: 1, using="default")
    relay._beat()
    assert relay._owns()
    relay.on_outage()
    assert not relay._owns()
    relay._beat()
    assert relay._owns()


def test_a_relay_that_lost_a_partition_sends_no_more_of_the_batch_that_it_is_sending() -> None:
    relay = Relay(lambda: 1, using="default")
    relay._beat()
    worker = relay._worker(ORDERS)
    should_continue = partial(worker._should_continue, worker._generation)
    assert should_continue()
    change("UPDATE salon_jobs_partition SET owner = 99, epoch = epoch + 1 WHERE partition = 3")
    relay._beat()
    assert not should_continue()
    worker.stop()


def test_an_outage_costs_no_attempt() -> None:
    answer_with(Verdict.OUTAGE, aggregate="a", times=3)
    for number in (1, 2):
        emitted("a", number=number)
    with relaying():
        eventually(outages, ["TEST.NO"])
        eventually(statuses, {"published": 2})
        eventually(lambda: seen("SELECT outage_code, outage_since FROM salon_jobs_destination"), [("", None)])
    assert arrived() == [("a", 1), ("a", 2)]
    assert seen("SELECT DISTINCT retry_count FROM salon_jobs_message") == [(0,)]


def test_a_message_of_no_aggregate_is_retried_alone() -> None:
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


def test_two_relays_share_the_partitions_and_hand_them_over(change_settings: Callable[..., None]) -> None:
    change_settings(PROCESS_SILENT_AFTER=1)
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


def test_a_busy_destination_keeps_no_new_one_from_being_found(change_settings: Callable[..., None]) -> None:
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
def test_a_relay_ends_with_a_thread_that_ended_by_an_error(monkeypatch: Any, broken: str, by: Any, said: str) -> None:
    monkeypatch.setattr(f"salon_jobs.{broken}", by)
    emitted("a")
    with pytest.raises(RuntimeError, match=said):
        relay_in_burst()


def test_what_could_not_be_marked_before_the_end_is_logged_and_its_partition_is_not_handed_over(
    change_settings: Callable[..., None],
) -> None:
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


def test_the_types_of_destinations_that_nobody_can_parse_hold_up_no_other_and_make_no_relay_unready() -> None:
    for name in ("rn::nobody:::orders", "rn::carrier-pigeon:::orders", "rn::memory:::a\u0001b"):
        change("SELECT salon_jobs_emit(%s, 'a', 'e', '{}')", name)
    with relaying() as relay:
        eventually(lambda: len(relay.facts()["destinations"]), 3)
        assert relay.facts()["brokers"] == {}
        emitted("a", number=1)
        eventually(relay.facts()["brokers"].keys, {"memory"})
        eventually(statuses, {"pending": 3, "published": 1})
        eventually(lambda: relay.facts()["destinations"]["rn::nobody:::orders"]["outage"], "OUTBOX.NO_PUBLISHER")
        assert relay.relay.samples()
    assert arrived() == [("a", 1)]


def test_any_number_of_destinations_holds_up_none_that_was_registered(monkeypatch: Any) -> None:
    monkeypatch.setattr(relay_module, "_MOST", 5)
    queries.add_destinations([ORDERS], using="default")
    change("SELECT salon_jobs_emit('rn::memory:::a' || n, 'a', 'e', '{}') FROM generate_series(1, 20) n")
    emitted("a", number=1)
    assert relay_in_burst()
    assert arrived() == [("a", 1)]
    assert statuses() == {"published": 5, "pending": 16}
    assert seen("SELECT count(*) FROM salon_jobs_destination") == [(5,)]


def test_the_rate_of_a_destination_holds_for_all_relays_together_and_for_no_other(
    change_settings: Callable[..., None],
) -> None:
    slow = "rn::memory:::slow"
    change_settings(OUTBOX={"THROUGHPUT": {"*": 20, "memory": None, slow: 20}})
    with relaying() as first, relaying() as second:
        first.wait_for_partitions(8)
        second.wait_for_partitions(8)
        with transaction.atomic():
            for to, count in ((slow, 30), (ORDERS, 300)):
                emit_many(draft(f"a{n}", to=to) for n in range(count))
        eventually(statuses, {"published": 330})
    took = "SELECT extract(epoch FROM max(sent_at) - min(created_at)) FROM salon_jobs_message WHERE aggregate_type = %s"
    # A bucket that was empty at first, and holds two.
    assert seen(took, slow)[0][0] >= (30 - 2) / 20
    assert seen(took, ORDERS)[0][0] < (300 - 2) / 20


def test_what_a_former_owner_published_holds_nothing_back_although_it_was_parked_meanwhile() -> None:
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
