"""Shows what a relay does after the database was lost, also one whose last transactions are gone.

As after the promotion of an asynchronous standby: rows are gone, the sequence went back, and what is written from then
on gets the numbers of the lost rows.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connections, transaction

from salon_jobs import emit_many
from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure, Verdict
from salon_jobs.core.errors import NotReady
from salon_jobs.outbox import queries
from tests.outbox import scene
from tests.outbox.scene import ORDERS, answer_with, arrived, blocked_count, draft, emitted, ids, relaying, statuses
from tests.servers.forwarder import Forwarder
from tests.servers.nats import NatsBroker
from tests.settings import url_for
from tests.support import change, event_fields, seen
from tests.waiting import eventually


def cut() -> None:
    """End the sessions of every other role, as the end of a primary does."""
    change(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend' AND usename <> current_user"
    )
    connections["default"].close()


@contextmanager
def losing() -> Generator[None]:
    """Cut all sessions, and commit at that moment what the owner does in the block."""
    with transaction.atomic(using="owner"):
        yield
        cut()


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


def emit_numbers(count: int, to: str = ORDERS) -> None:
    with transaction.atomic():
        emit_many(draft(f"a{n % 3}", n, to=to) for n in range(count))


def write_nothing() -> None:
    """Let nobody else change a message: what the relay writes waits, until a lost database makes it try again."""
    change("LOCK TABLE salon_jobs_message IN SHARE ROW EXCLUSIVE MODE")


def assert_in_order(numbers: dict[str, list[int]], expected: list[int]) -> None:
    """Assert that these numbers arrived, in the order of each aggregate."""
    assert all(each == sorted(set(each)) for each in numbers.values())
    assert sorted(chain(*numbers.values())) == expected


VERDICTS = (None, Verdict.REFUSED, Verdict.RETRY, Verdict.UNRESOLVABLE, Verdict.SKIPPED)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_ends_of_lost_messages_are_not_written(verdict: Verdict | None) -> None:
    """Not to those that got their numbers."""
    tried: list[int] = []

    def answer(message: OutgoingMessage) -> PublishFailure | None:
        number = json.loads(message.payload)["number"]
        tried.append(number)
        return PublishFailure(verdict, "TEST.NO") if verdict is not None and number < 100 else None

    MemoryPublisher.answer = answer
    emit_numbers(20)
    before = ids()
    with relaying():
        with losing():
            write_nothing()
            eventually(lambda: len(tried), 20 if verdict in (None, Verdict.SKIPPED) else 3)
            lose_after(0)
            write(100, 20)
        eventually(statuses, {"published": 20})
        eventually(blocked_count, 0)
    assert before == ids(), "the numbers were not used again"
    found = scene.numbers_by_aggregate()
    again = {name: [number for number in each if number >= 100] for name, each in found.items()}
    assert_in_order(again, list(range(100, 120)))


@pytest.mark.parametrize("pooled", [False, True], ids=["connections are lost", "a pooler keeps the connections"])
def test_lower_numbers_than_those_read(monkeypatch: pytest.MonkeyPatch, pooled: bool) -> None:
    """Their messages are sent in order and at once."""
    read, started = queries.gate, [0.0]
    if pooled:
        monkeypatch.setattr(queries, "gate", lambda using: read(using=using)._replace(server=started[0]))
    emit_numbers(20)
    with relaying():
        eventually(statuses, {"published": 20})
        with transaction.atomic(using="owner"):
            lose_after(10)
            write(100, 40)
            started[0] = 1.0
            if not pooled:
                cut()
        eventually(statuses, {"published": 50})
    assert_in_order(scene.numbers_by_aggregate(), [*range(20), *range(100, 140)])


def test_message_pending_again_is_repeated_in_its_place() -> None:
    first = [emitted("a0", number=number) for number in range(5)]
    with relaying():
        eventually(statuses, {"published": 5})
        with losing():
            change("UPDATE salon_jobs_message SET status = 'pending', sent_at = NULL WHERE id > %s", ids()[2])
            write(100, 1, aggregates=1)
        eventually(statuses, {"published": 6})
    assert arrived() == [("a0", number) for number in (0, 1, 2, 3, 4, 3, 4, 100)]
    assert [message.message_id for message in list(MemoryPublisher.published)[3:7]] == [*first[3:], *first[3:]]


def test_lost_connection_repeats_nothing() -> None:
    def cut_now_and_then(_: OutgoingMessage) -> None:
        if len(MemoryPublisher.published) % 200 == 150:
            cut()

    MemoryPublisher.answer = cut_now_and_then
    with relaying():
        with transaction.atomic(using="owner"):
            write(0, 2000, aggregates=50)
        eventually(statuses, {"published": 2000})
        connections["default"].close()  # this thread's, which was cut too
    assert len(MemoryPublisher.published) == 2000
    assert_in_order(scene.numbers_by_aggregate(), list(range(2000)))


@pytest.mark.parametrize("loses_connection", [True, False])
def test_lost_row_of_a_destination_comes_back(change_settings: Callable[..., None], loses_connection: bool) -> None:
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


def test_destination_without_tokens_is_unready(
    change_settings: Callable[..., None], tune: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    change_settings(OUTBOX={"THROUGHPUT": {"*": 1000}})
    tune(starved_for_s=0.5)
    grant = queries.grant_tokens
    monkeypatch.setattr(queries, "grant_tokens", lambda wanted, using: {})
    emitted("a")

    def unready() -> str:
        try:
            running.facts()
        except NotReady as error:
            return str(error)
        return ""

    with relaying() as running:
        assert "gets no tokens" in (said := eventually(unready))
        assert ORDERS in said
        monkeypatch.setattr(queries, "grant_tokens", grant)
        eventually(statuses, {"published": 1})
        eventually(unready, "")


def test_lost_partitions_are_made_again() -> None:
    with relaying() as relay:
        relay.wait_for_partitions()
        with losing():
            change("DELETE FROM salon_jobs_partition")
            write(0, 50, aggregates=50)
        eventually(statuses, {"published": 50})
        relay.wait_for_partitions()


def test_row_of_an_outage_is_written_again() -> None:
    broken = "rn::memory:::broken"
    answer_with(Verdict.OUTAGE, aggregate="b")
    emitted("b", to=broken)
    emitted("a")
    with relaying():
        eventually(scene.outages, ["TEST.NO", ""])
        change("UPDATE salon_jobs_destination SET outage_code = CASE outage_code WHEN '' THEN 'TEST.OLD' ELSE '' END")
        cut()
        eventually(scene.outages, ["TEST.NO", ""])
        change("DELETE FROM salon_jobs_destination WHERE aggregate_type = %s", broken)
        eventually(scene.outages, ["TEST.NO", ""])


def test_aggregate_parked_by_a_lost_message_goes_on() -> None:
    answer_with(Verdict.REFUSED, times=1)
    for number in range(3):
        emitted("a0", number=number)
    with relaying():
        eventually(lambda: statuses() == {"failed": 1, "pending": 2} and blocked_count() == 1)
        with losing():
            lose_after(0)
            write(100, 5, aggregates=1)
        eventually(statuses, {"published": 5})
    assert arrived() == [("a0", number) for number in range(100, 105)]


def test_jetstream_has_everything_once(brokers: Callable[[str], Any], change_settings: Callable[..., None]) -> None:
    stream: NatsBroker = brokers("nats")
    change_settings(NATS=stream.settings()["NATS"])
    to = stream.destination("lost-transactions")
    emit_numbers(200, to)
    with relaying():
        with losing():
            write_nothing()
            eventually(lambda: len(stream.received(to)), 200)
            lose_after(50)
            write(1000, 200, to=to)
        eventually(statuses, {"published": 250})
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for envelope in stream.received(to):
        numbers[envelope.aggregate_id].append(json.loads(envelope.payload)["number"])
    assert_in_order(numbers, [*range(200), *range(1000, 1200)])


@pytest.fixture
def network() -> Iterator[Forwarder]:
    """Have new connections of the relay pass a proxy, and fail soon after what they send is not acknowledged."""
    forwarder = Forwarder(urlsplit(url_for(None)).port or 0)
    forwarder.open()
    settings: dict[str, Any] = connections.settings["default"]
    before = settings["HOST"], settings["PORT"], settings["OPTIONS"]
    quick = {"tcp_user_timeout": 500, "keepalives_idle": 1, "keepalives_interval": 1}
    settings.update(HOST="127.0.0.1", PORT=str(forwarder.port), OPTIONS={**settings["OPTIONS"], **quick})
    yield forwarder
    settings["HOST"], settings["PORT"], settings["OPTIONS"] = before
    connections.close_all()
    forwarder.cut()


def test_idle_marker_notices_a_dead_network(
    network: Forwarder, tune: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing arrives on its connection, and nothing closes it; it notices before there is something to mark."""
    tune(marker_pings_s=0.1)

    def was(event: str) -> bool:
        return any(fields.get("loop") == "marker" for fields in event_fields(caplog, event))

    caplog.set_level("INFO")
    with relaying():
        emitted("a", number=1)
        eventually(statuses, {"published": 1})
        network.lose_packets()
        connections.close_all()
        eventually(lambda: was("database_lost") and was("database_back"))
        emitted("a", number=2)
        eventually(statuses, {"published": 2})
