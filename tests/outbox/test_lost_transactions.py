"""Shows what a relay does after the database was lost, also one whose last transactions are gone.

As after the promotion of an asynchronous standby: rows are gone, the sequence went back, and what is written from then
on gets the numbers of the lost rows.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pytest
from django.db import connections, transaction

from salon_jobs import emit_many
from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure, Verdict
from salon_jobs.core.errors import NotReady
from salon_jobs.outbox import queries, relay
from tests.outbox.scene import (
    ORDERS,
    answer_with,
    arrived,
    blocked_count,
    draft,
    emitted,
    ids,
    numbers_by_aggregate,
    outages,
    relaying,
    statuses,
)
from tests.servers.nats import NatsBroker
from tests.support import change, seen
from tests.waiting import eventually


def cut() -> None:
    """End the sessions of every other role, as the end of a primary does."""
    change(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend' AND usename <> current_user"
    )
    connections["default"].close()


def lose_after(last: int) -> None:
    """Forget all messages after this number, and give out their numbers again."""
    change("DELETE FROM salon_jobs_blocked_aggregate WHERE head_id > %s", last)
    change("DELETE FROM salon_jobs_message WHERE id > %s", last)
    change("SELECT setval('salon_jobs_message_id_seq', greatest(1, %s), %s > 0)", last, last)


def write(first: int, count: int, *, aggregates: int = 3, to: str = ORDERS) -> None:
    """Write numbered messages as the owner, in the transaction that is open."""
    change(
        "SELECT salon_jobs_emit(%s, 'a' || n %% %s, 'e', json_build_object('number', n))"
        " FROM generate_series(%s::int, %s::int) AS n",
        to,
        aggregates,
        first,
        first + count - 1,
    )


@contextmanager
def nothing_written() -> Generator[None]:
    """Let nobody else change a message: what the relay writes waits, until a lost database makes it try again."""
    with transaction.atomic(using="owner"):
        change("LOCK TABLE salon_jobs_message IN SHARE ROW EXCLUSIVE MODE")
        yield


def in_order(numbers: dict[str, list[int]]) -> bool:
    return all(each == sorted(set(each)) for each in numbers.values())


VERDICTS = (None, Verdict.REFUSED, Verdict.RETRY, Verdict.UNRESOLVABLE, Verdict.SKIPPED)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_what_came_of_lost_messages_is_not_written_to_those_that_got_their_numbers(verdict: Verdict | None) -> None:
    tried: list[int] = []

    def answer(message: OutgoingMessage) -> PublishFailure | None:
        number = json.loads(message.payload)["number"]
        tried.append(number)
        return PublishFailure(verdict, "TEST.NO") if verdict is not None and number < 100 else None

    MemoryPublisher.answer = answer
    with transaction.atomic():
        emit_many(draft(f"a{n % 3}", n) for n in range(20))
    before = ids()
    with relaying():
        with nothing_written():
            eventually(lambda: len(tried), 20 if verdict in (None, Verdict.SKIPPED) else 3)
            lose_after(0)
            write(100, 20)
            cut()
        eventually(statuses, {"published": 20})
        eventually(blocked_count, 0)
    assert before == ids(), "the numbers were not used again"
    again = {name: [number for number in each if number >= 100] for name, each in numbers_by_aggregate().items()}
    assert sorted(chain(*again.values())) == list(range(100, 120))
    assert in_order(again)


@pytest.mark.parametrize("pooled", [False, True], ids=["connections are lost", "a pooler keeps the connections"])
def test_messages_with_lower_numbers_than_those_read_are_sent_in_order_and_at_once(
    monkeypatch: pytest.MonkeyPatch, pooled: bool
) -> None:
    read, started = queries.gate, [0.0]
    if pooled:
        monkeypatch.setattr(queries, "gate", lambda using: read(using=using)._replace(server=started[0]))
    with transaction.atomic():
        emit_many(draft(f"a{n % 3}", n) for n in range(20))
    with relaying():
        eventually(statuses, {"published": 20})
        with transaction.atomic(using="owner"):
            lose_after(10)
            write(100, 40)
            started[0] = 1.0
            if not pooled:
                cut()
        eventually(statuses, {"published": 50})
    assert in_order(numbers_by_aggregate())
    assert sorted(number for _, number in arrived()) == [*range(20), *range(100, 140)]


def test_a_message_that_is_pending_again_is_repeated_as_the_same_and_in_its_place() -> None:
    first = [emitted("a0", number=number) for number in range(5)]
    with relaying():
        eventually(statuses, {"published": 5})
        with transaction.atomic(using="owner"):
            change("UPDATE salon_jobs_message SET status = 'pending', sent_at = NULL WHERE id > %s", ids()[2])
            write(100, 1, aggregates=1)
            cut()
        eventually(statuses, {"published": 6})
    assert arrived() == [("a0", number) for number in (0, 1, 2, 3, 4, 3, 4, 100)]
    assert [message.message_id for message in list(MemoryPublisher.published)[3:7]] == [*first[3:], *first[3:]]


def test_a_lost_connection_repeats_nothing() -> None:
    stop = threading.Event()

    def cut_now_and_then() -> None:
        try:
            while not stop.wait(0.15):
                cut()
        finally:
            connections.close_all()

    with relaying() as relay:
        relay.wait_for_partitions()
        with transaction.atomic(using="owner"):
            write(0, 2000, aggregates=50)
        cutting = threading.Thread(target=cut_now_and_then)
        cutting.start()
        try:
            eventually(lambda: len(MemoryPublisher.published) >= 1000)
        finally:
            stop.set()
            cutting.join()
            connections["default"].close()
        eventually(statuses, {"published": 2000})
    assert len(MemoryPublisher.published) == 2000
    assert in_order(numbers_by_aggregate())


@pytest.mark.parametrize("loses_connection", [True, False])
def test_a_destination_whose_row_is_gone_gets_it_back(
    change_settings: Callable[..., None], loses_connection: bool
) -> None:
    change_settings(OUTBOX={"THROUGHPUT": {"*": 1000}})
    with relaying():
        emitted("a", number=0)
        eventually(statuses, {"published": 1})
        with transaction.atomic(using="owner"):
            change("DELETE FROM salon_jobs_destination")
            write(1, 200)
            if loses_connection:
                cut()
        eventually(statuses, {"published": 201})
    assert seen("SELECT aggregate_type FROM salon_jobs_destination") == [(ORDERS,)]


def test_a_destination_that_gets_no_tokens_makes_the_relay_unready(
    change_settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_settings(OUTBOX={"THROUGHPUT": {"*": 1000}})
    monkeypatch.setattr(relay, "_STARVED_FOR_S", 0.5)
    grant = queries.grant_tokens
    monkeypatch.setattr(queries, "grant_tokens", lambda wanted, using: {})
    emitted("a")
    with relaying() as running:
        eventually(lambda: bool(unready(running.facts)))
        assert ORDERS in unready(running.facts)
        assert "gets no tokens" in unready(running.facts)
        monkeypatch.setattr(queries, "grant_tokens", grant)
        eventually(statuses, {"published": 1})
        eventually(lambda: not unready(running.facts))


def unready(facts: Callable[[], Any]) -> str:
    try:
        facts()
    except NotReady as error:
        return str(error)
    return ""


def test_all_partitions_are_made_again_and_served() -> None:
    with relaying() as relay:
        relay.wait_for_partitions()
        with transaction.atomic(using="owner"):
            change("DELETE FROM salon_jobs_partition")
            write(0, 50, aggregates=50)
            cut()
        eventually(statuses, {"published": 50})
        relay.wait_for_partitions()


def test_an_outage_of_a_destination_is_what_it_was_however_its_row_reads() -> None:
    broken = "rn::memory:::broken"
    answer_with(Verdict.OUTAGE, aggregate="b")
    emitted("b", to=broken)
    emitted("a")
    with relaying():
        eventually(outages, ["TEST.NO", ""])
        change("UPDATE salon_jobs_destination SET outage_code = CASE outage_code WHEN '' THEN 'TEST.OLD' ELSE '' END")
        cut()
        eventually(outages, ["TEST.NO", ""])
        change("DELETE FROM salon_jobs_destination WHERE aggregate_type = %s", broken)
        eventually(outages, ["TEST.NO", ""])


def test_an_aggregate_that_was_parked_by_a_lost_message_goes_on() -> None:
    answer_with(Verdict.REFUSED, times=1)
    for number in range(3):
        emitted("a0", number=number)
    with relaying():
        eventually(lambda: statuses() == {"failed": 1, "pending": 2} and blocked_count() == 1)
        with transaction.atomic(using="owner"):
            lose_after(0)
            write(100, 5, aggregates=1)
            cut()
        eventually(statuses, {"published": 5})
    assert arrived() == [("a0", number) for number in range(100, 105)]


@pytest.fixture
def stream(change_settings: Callable[..., None]) -> Generator[NatsBroker]:
    broker = NatsBroker()
    broker.start()
    change_settings(NATS=broker.settings()["NATS"])
    yield broker
    broker.close()


def test_jetstream_has_everything_once_and_in_order(stream: NatsBroker) -> None:
    to = stream.destination("orders")
    with transaction.atomic():
        emit_many(draft(f"a{n % 3}", n, to=to) for n in range(200))
    with relaying():
        with nothing_written():
            eventually(lambda: len(stream.received(to)), 200)
            lose_after(50)
            write(1000, 200, to=to)
            cut()
        eventually(statuses, {"published": 250})
    numbers: dict[str, list[int]] = {}
    for envelope in stream.received(to):
        numbers.setdefault(envelope.aggregate_id, []).append(json.loads(envelope.payload)["number"])
    assert sorted(chain(*numbers.values())) == [*range(200), *range(1000, 1200)]
    assert in_order(numbers)
