"""Shows that what committed is published, in order, and what did not is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connections, transaction

from salon_jobs import emit, emit_many
from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure, Verdict
from salon_jobs.outbox import Draft, queries
from salon_jobs.outbox import emit as wake
from salon_jobs.outbox.partitions import Ownership
from salon_jobs.outbox.relay import Relay
from tests.e2e.worker_process import eventually
from tests.outbox.scene import ORDERS, RunningRelay, arrived, emitted, relay_in_burst, relaying, statuses
from tests.support import change, seen


def test_a_message_is_published_if_its_transaction_committed() -> None:
    emitted("a", number=1)
    with transaction.atomic():
        emit(ORDERS, aggregate_id="a", event="order.created", payload={"number": 2})
        transaction.set_rollback(True)
    assert relay_in_burst()
    assert arrived() == [("a", 1)]
    assert statuses() == {"published": 1}


def test_what_was_sent_is_not_sent_again() -> None:
    emitted("a", number=1)
    assert relay_in_burst()
    emitted("a", number=2)
    assert relay_in_burst()
    assert arrived() == [("a", 1), ("a", 2)]


def test_many_messages_arrive_in_the_order_of_each_aggregate() -> None:
    with transaction.atomic():
        emit_many(
            Draft(aggregate_type=ORDERS, aggregate_id=f"a{n % 50}", event="e", payload={"number": n})
            for n in range(12_345)
        )
    assert relay_in_burst()
    found = arrived()
    assert len(MemoryPublisher.published) == MemoryPublisher.published.maxlen
    by_aggregate: dict[str, list[int]] = {}
    for aggregate, number in found:
        by_aggregate.setdefault(aggregate, []).append(number)
    assert all(numbers == sorted(numbers) for numbers in by_aggregate.values())
    assert statuses() == {"published": 12_345}


def test_reading_what_is_blocked_takes_a_tenth_of_the_time_where_it_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0

    def slow(_: object) -> list[Any]:
        nonlocal now
        now += 3
        return []

    monkeypatch.setattr("salon_jobs.outbox.relay.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(queries, "blocked", slow)
    relay, ownership = Relay(lambda: 1), Ownership(1)
    relay._refresh(ownership)
    assert relay._refresh_at == 1001
    relay._refresh(ownership)
    assert relay._refresh_at == 1003 + 30
    relay._hear(wake.OPERATOR)
    assert relay._refresh_at == 1006, "what operators change is read at once"


def test_a_relay_is_woken_by_the_commit() -> None:
    with relaying() as relay:
        eventually(lambda: len(relay.facts()["partitions"]) == 16)
        emitted("a", number=1)
        eventually(lambda: arrived() == [("a", 1)])
        eventually(lambda: statuses() == {"published": 1})


class Failing:
    """Fails the messages of one aggregate so many times."""

    def __init__(self, aggregate: str, verdict: Verdict, times: int) -> None:
        self.aggregate, self.verdict, self.times = aggregate, verdict, times

    def __call__(self, message: OutgoingMessage) -> PublishFailure | None:
        if message.aggregate_id != self.aggregate or not self.times:
            return None
        self.times -= 1
        return PublishFailure(self.verdict, "TEST.NO", "not this time")


def test_when_one_fails_the_later_ones_of_its_aggregate_wait_and_others_go_on(monkeypatch: Any) -> None:
    monkeypatch.setattr(MemoryPublisher, "answer", staticmethod(Failing("a", Verdict.RETRY, 3)))
    for number in range(5):
        emitted("a", number=number)
        emitted("b", number=number)
    with relaying():
        eventually(lambda: [n for aggregate, n in arrived() if aggregate == "b"] == [0, 1, 2, 3, 4])
        eventually(lambda: [n for aggregate, n in arrived() if aggregate == "a"] == [0, 1, 2, 3, 4], 10)
        eventually(lambda: statuses() == {"published": 10})
    assert seen("SELECT retry_count FROM salon_jobs_message ORDER BY id LIMIT 1") == [(3,)]
    assert seen("SELECT count(*) FROM salon_jobs_blocked_aggregate") == [(0,)]


def test_a_message_that_is_refused_parks_its_aggregate_until_an_operator_decides(monkeypatch: Any) -> None:
    monkeypatch.setattr(MemoryPublisher, "answer", staticmethod(Failing("a", Verdict.REFUSED, 1)))
    for number in range(3):
        emitted("a", number=number)
    with relaying():
        eventually(lambda: statuses() == {"failed": 1, "pending": 2})
        emitted("b", number=9)
        eventually(lambda: arrived() == [("b", 9)])
        assert seen("SELECT status, code FROM salon_jobs_blocked_aggregate") == [("parked", "TEST.NO")]
        change("UPDATE salon_jobs_message SET status = 'skipped' WHERE status = 'failed'")
        change("DELETE FROM salon_jobs_blocked_aggregate")
        eventually(lambda: arrived() == [("b", 9), ("a", 1), ("a", 2)], 10)
        eventually(lambda: statuses() == {"skipped": 1, "published": 3})


def test_an_outage_costs_no_attempt(monkeypatch: Any) -> None:
    monkeypatch.setattr(MemoryPublisher, "answer", staticmethod(Failing("a", Verdict.OUTAGE, 3)))
    emitted("a", number=1)
    emitted("a", number=2)
    with relaying():
        eventually(lambda: seen("SELECT outage_code FROM salon_jobs_destination") == [("TEST.NO",)])
        eventually(lambda: statuses() == {"published": 2}, 10)
        eventually(lambda: seen("SELECT outage_code, outage_since FROM salon_jobs_destination") == [("", None)])
    assert arrived() == [("a", 1), ("a", 2)]
    assert seen("SELECT DISTINCT retry_count FROM salon_jobs_message") == [(0,)]


def test_a_message_of_no_aggregate_is_retried_alone(monkeypatch: Any) -> None:
    refused = iter([True, True])

    def answer(message: OutgoingMessage) -> PublishFailure | None:
        if '"number":0' in message.payload and next(refused, False):
            return PublishFailure(Verdict.RETRY, "TEST.NO")
        return None

    monkeypatch.setattr(MemoryPublisher, "answer", staticmethod(answer))
    for number in range(3):
        emitted(number=number)
    with relaying():
        eventually(lambda: statuses() == {"published": 3}, 10)
    assert sorted(arrived()[:2]) == [("", 1), ("", 2)]
    assert arrived()[2:] == [("", 0)]
    assert seen("SELECT count(*) FROM salon_jobs_blocked_aggregate") == [(0,)]


def test_nothing_is_read_past_a_writer_that_may_still_add_before(migrated: None) -> None:
    with relaying() as relay:
        eventually(lambda: len(relay.facts()["partitions"]) == 16)
        web = connections["web"]
        with transaction.atomic(using="web"), web.cursor() as cursor:
            cursor.execute("SELECT salon_jobs_emit(%s, 'a', 'e', '{\"number\": 1}', wake => false)", [ORDERS])
            emitted("a", number=2)
            eventually(lambda: relay.facts()["gate"]["holders"] != [])
            assert arrived() == []
        eventually(lambda: arrived() == [("a", 1), ("a", 2)])
    web.close()


def test_two_relays_share_the_partitions_and_hand_them_over(settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "PROCESS_SILENT_AFTER": 1}
    first, second = RunningRelay(), None
    try:
        eventually(lambda: len(first.facts()["partitions"]) == 16)
        second = RunningRelay()
        eventually(lambda: (len(first.facts()["partitions"]), len(second.facts()["partitions"])) == (8, 8), 10)
        for number in range(40):
            emitted(f"a{number % 20}", number=number)
        eventually(lambda: statuses() == {"published": 40})
        assert len(arrived()) == 40
    finally:
        first.stop()
    eventually(lambda: len(second.facts()["partitions"]) == 16, 10)
    assert second.stop()


def test_a_busy_destination_keeps_no_new_one_from_being_found(settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "OUTBOX": {**settings.SALON_JOBS["OUTBOX"], "FETCH_LIMIT": 5}}
    queries.add_destinations([ORDERS])
    with transaction.atomic():
        emit_many(Draft(aggregate_type=ORDERS, event="e", payload={"number": n}) for n in range(500))
        emit("rn::memory:::new", event="e", payload={})
    assert relay_in_burst()
    places = [number for number, message in enumerate(MemoryPublisher.published) if message.aggregate_type != ORDERS]
    assert len(places) == 1
    assert places[0] < 400


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_relay_whose_stream_has_ended_by_an_error_ends_too(monkeypatch: Any) -> None:
    monkeypatch.setattr(MemoryPublisher, "publish", lambda _, messages, should_continue: ["no answer"] * len(messages))
    emitted("a")
    with pytest.raises(RuntimeError, match="has ended by an error"):
        relay_in_burst()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_relay_whose_marker_has_ended_by_an_error_ends_too(monkeypatch: Any) -> None:
    monkeypatch.setattr("salon_jobs.outbox.backlog.Backlog.marked", None)
    emitted("a")
    with pytest.raises(RuntimeError, match="the marker has ended"):
        relay_in_burst()


def test_what_could_not_be_marked_before_the_end_is_told_and_its_partition_is_not_handed_over(settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "SHUTDOWN_GRACE": 3}
    running = RunningRelay()
    eventually(lambda: len(running.facts()["partitions"]) == 16)
    change("REVOKE UPDATE ON salon_jobs_message FROM worker_runtime")
    try:
        emitted("a", number=1)
        eventually(lambda: arrived() == [("a", 1)])
        assert not running.stop()
    finally:
        change("GRANT UPDATE ON salon_jobs_message TO worker_runtime")
    assert seen("SELECT count(*) FROM salon_jobs_partition WHERE owner IS NOT NULL") == [(1,)]


def test_the_types_of_destinations_that_nobody_can_parse_hold_up_no_other() -> None:
    emitted("a", number=1)
    change(
        "INSERT INTO salon_jobs_message (message_id, aggregate_type, event, payload)"
        " VALUES (gen_random_uuid(), %s, 'e', '{}')",
        "rn::memory:::a\u0001b",
    )
    relay_in_burst()
    assert arrived() == [("a", 1)]
    assert statuses() == {"pending": 1, "published": 1}


def test_a_relay_is_ready_though_nobody_here_serves_a_destination() -> None:
    for name in ("rn::nobody:::orders", "rn::memory:::a\u0001b"):
        change(
            "INSERT INTO salon_jobs_message (message_id, aggregate_type, event, payload)"
            " VALUES (gen_random_uuid(), %s, 'e', '{}')",
            name,
        )
    emitted("a")
    with relaying() as relay:
        eventually(lambda: relay.facts()["destinations"].keys() >= {"rn::nobody:::orders", "rn::memory:::a\u0001b"})
        eventually(lambda: relay.facts()["brokers"].keys() == {"memory"})

        def outage() -> object:
            return relay.facts()["destinations"]["rn::nobody:::orders"]["outage"]

        eventually(lambda: outage() == "OUTBOX.NO_PUBLISHER")


def test_the_rate_of_a_destination_holds_for_all_relays_together_and_for_no_other(settings: Any) -> None:
    slow = "rn::memory:::slow"
    outbox = {**settings.SALON_JOBS["OUTBOX"], "THROUGHPUT": 20, "THROUGHPUT_OF": {"memory": None, slow: 20}}
    settings.SALON_JOBS = {**settings.SALON_JOBS, "OUTBOX": outbox}
    with relaying() as first, relaying() as second:
        eventually(lambda: [len(relay.facts()["partitions"]) for relay in (first, second)] == [8, 8], 10)
        with transaction.atomic():
            for to, count in ((slow, 30), (ORDERS, 300)):
                emit_many(Draft(aggregate_type=to, aggregate_id=f"a{n}", event="e", payload={}) for n in range(count))
        eventually(lambda: statuses() == {"published": 330}, 20)
    took = "SELECT extract(epoch FROM max(sent_at) - min(created_at)) FROM salon_jobs_message WHERE aggregate_type = %s"
    # A bucket that was empty at first, and holds two.
    assert seen(took, slow)[0][0] >= (30 - 2) / 20
    assert seen(took, ORDERS)[0][0] < (300 - 2) / 20


def test_what_a_former_owner_published_holds_nothing_back_although_it_was_parked_meanwhile(monkeypatch: Any) -> None:
    monkeypatch.setattr(MemoryPublisher, "answer", staticmethod(Failing("a", Verdict.REFUSED, 1)))
    emitted("a", number=1)
    assert relay_in_burst()
    [(head,)] = seen("SELECT head_id FROM salon_jobs_blocked_aggregate WHERE status = 'parked'")
    queries.mark_published([head])
    assert statuses() == {"published": 1}
    assert seen("SELECT count(*) FROM salon_jobs_blocked_aggregate") == [(0,)]
