"""Shows that nothing is read past a writer that may still add before, whatever the writer does."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connections

from salon_jobs.core.records import PARTITIONS
from salon_jobs.outbox import queries
from salon_jobs.outbox.queries import Gate, PageRequest
from tests import settings as test_settings
from tests.outbox.scene import ORDERS, arrived, emitted, numbers_by_aggregate, relay_in_burst, relaying, statuses
from tests.settings import TEST_DATABASE
from tests.support import change, seen
from tests.waiting import LIMIT_S, eventually

EMIT = "SELECT salon_jobs_emit(%s, %s, 'e', json_build_object('number', %s::int), wake => false)"
INSERT = (
    "INSERT INTO salon_jobs_message (message_id, aggregate_type, aggregate_id, event, payload)"
    " SELECT gen_random_uuid(), %s, 'a', 'e', json_build_object('number', n) FROM generate_series(%s::int, %s::int) n"
)


@contextmanager
def writer(role: str | None = "app") -> Generator[psycopg.Connection[Any]]:
    """Open a connection of a role (None: the superuser)."""
    with psycopg.connect(test_settings.url_for(role)) as connection:
        yield connection
        connection.rollback()


def gate() -> Gate:
    return queries.gate(using="default")


def held() -> tuple[int, tuple[int, ...]]:
    """Return up to where can be read, and the PIDs of those who hold the gate there."""
    return gate().bound, gate().holders


def say(connection: psycopg.Connection[Any], aggregate: str, number: int) -> None:
    connection.execute(EMIT, (ORDERS, aggregate, number))


def read(gate: Gate) -> list[int]:
    """Return the numbers that a relay reads up to a gate."""
    wanted = [PageRequest(ORDERS, partition, 0, 100) for partition in range(PARTITIONS)]
    messages = sorted(queries.fetch(wanted, gate.bound, using="default"))
    return [int(message.payload.rpartition(":")[2].strip(" }")) for message in messages]


def test_writer_before_the_gate_bounds_it() -> None:
    emitted("a", number=1)
    with writer() as slow:
        say(slow, "a", 2)
        emitted("a", number=3)
        first = gate()
        assert (first.allocated, first.bound, first.holders) == (3, 1, (slow.info.backend_pid,))
        assert read(first) == [1]
        slow.commit()
        assert read(first) == [1]
    assert read(gate()) == [1, 2, 3]


def test_writer_after_the_gate_is_beyond_it() -> None:
    emitted("a", number=1)
    first = gate()
    with writer() as late:
        say(late, "a", 2)
        emitted("a", number=3)
        assert read(first) == [1]
        late.commit()
    assert read(first) == [1]
    assert read(gate()) == [1, 2, 3]


def test_writer_that_ends_between_gate_and_read() -> None:
    with writer() as one, writer() as other:
        say(one, "a", 1)
        say(other, "b", 2)
        one.commit()
        first = gate()
        assert first.bound == 1  # one id was given when the second came
        other.commit()
        assert read(first) == [1]
    assert read(gate()) == [1, 2]


def test_savepoint_takes_lock_and_mark_along() -> None:
    with writer() as one:
        one.execute("SELECT 1")
        one.execute("SAVEPOINT s")
        say(one, "a", 1)
        one.execute("ROLLBACK TO SAVEPOINT s")
        assert gate().holders == ()
        say(one, "a", 2)
        assert gate().bound == 1
        one.execute("SAVEPOINT t")
        one.execute("SAVEPOINT u")
        say(one, "a", 3)
        one.execute("RELEASE SAVEPOINT u")
        one.execute("ROLLBACK TO SAVEPOINT t")
        assert gate().bound == 1
        one.commit()
    assert gate().holders == ()
    assert read(gate()) == [2]


def test_released_savepoint_keeps_the_gate() -> None:
    with writer() as one:
        one.execute("SAVEPOINT s")
        say(one, "a", 1)
        one.execute("RELEASE SAVEPOINT s")
        say(one, "a", 2)
        assert held() == (0, (one.info.backend_pid,))


def test_transaction_takes_one_lock() -> None:
    with writer() as one:
        one.execute(
            "DO $$ BEGIN FOR n IN 1..500 LOOP PERFORM salon_jobs_emit('rn::memory:::orders', '', 'e',"
            " '{}', wake => false); END LOOP; END $$"
        )
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %s"
        assert seen(locks, one.info.backend_pid) == [(1,)]
        one.rollback()
        assert gate()[:3] == (500, 500, ())


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_stricter_isolation_changes_nothing(isolation: str) -> None:
    for role in ("app", "worker_runtime"):
        change(f"ALTER ROLE {role} IN DATABASE {TEST_DATABASE} SET default_transaction_isolation = '{isolation}'")
    connections["default"].close()
    try:
        with writer() as one, writer() as other:
            one.execute("SELECT 1")  # its snapshot, and nothing read that a serializable reader could mind
            say(other, "a", 1)
            other.commit()
            say(one, "a", 2)
            emitted("a", number=3)
            assert read(gate()) == [1]
            one.commit()
        assert relay_in_burst()
        assert arrived() == [("a", 1), ("a", 2), ("a", 3)]
    finally:
        for role in ("app", "worker_runtime"):
            change(f"ALTER ROLE {role} IN DATABASE {TEST_DATABASE} RESET default_transaction_isolation")
        connections["default"].close()


def test_insert_and_copy_hold_the_gate() -> None:
    with writer(None) as one:
        one.execute(INSERT, (ORDERS, 1, 3))
        assert held() == (0, (one.info.backend_pid,))
        one.commit()
        columns = "message_id, aggregate_type, aggregate_id, event, payload"
        with one.cursor().copy(f"COPY salon_jobs_message ({columns}) FROM STDIN") as copy:
            copy.write_row(("7b1c4b8e-4d0e-4f3c-9f38-4a8b7f1f2a11", ORDERS, "a", "e", '{"number": 4}'))
        assert held() == (3, (one.info.backend_pid,))
        one.commit()
    assert read(gate()) == [1, 2, 3, 4]


def test_prepared_transaction_holds_the_gate(preparing: str) -> None:
    """Its PID is 0."""
    with psycopg.connect(preparing) as one, psycopg.connect(preparing, autocommit=True) as other:
        say(one, "a", 1)
        one.execute("PREPARE TRANSACTION 'two'")
        try:
            locks = (
                "SELECT pid, granted FROM pg_locks WHERE locktype = 'advisory'"
                " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
            assert other.execute(locks).fetchall() == [(None, True)]
            assert gate()[:3] == (1, 0, (0,))
        finally:
            other.execute("COMMIT PREPARED 'two'")
    assert gate()[:3] == (1, 1, ())


def test_writer_that_emits_nothing_delays_nobody() -> None:
    with writer("worker_runtime") as one:
        one.execute("SELECT pg_current_xact_id()")
        emitted("a", number=1)
        assert relay_in_burst()
        assert arrived() == [("a", 1)]


def test_lock_of_a_session_holds_nobody() -> None:
    with writer() as one:
        one.execute("SELECT pg_advisory_lock_shared(23117::bigint << 48)")
        one.commit()
        emitted("a", number=1)
        assert gate()[:3] == (1, 1, ())
        say(one, "a", 2)
        assert gate()[:3] == (2, 0, (one.info.backend_pid,))
        one.commit()
        assert read(gate()) == [1, 2]


def test_sweep_finds_what_was_written_past_the_gate(tune: Callable[..., None]) -> None:
    tune(sweep_s=0.2)
    with relaying() as relay, writer() as liar:
        relay.wait_for_partitions()
        liar.execute("SELECT set_config('salon_jobs.gate', pg_current_xact_id()::text, true)")
        say(liar, "a", 1)
        emitted("b", number=2)
        eventually(arrived, [("b", 2)])
        liar.commit()
        eventually(arrived, [("b", 2), ("a", 1)])
        eventually(statuses, {"published": 2})


def test_truncated_table_is_read_from_the_beginning() -> None:
    with relaying():
        for number in range(5):
            emitted("a", number=number)
        eventually(statuses, {"published": 5})
        change("TRUNCATE salon_jobs_message RESTART IDENTITY")
        emitted("a", number=9)
        eventually(lambda: arrived()[-1], ("a", 9))


def write_at_random(seed: int, transactions: int) -> None:
    """Count up counters under their row locks and emit each count, in transactions with savepoints and rollbacks."""
    dice = random.Random(seed)
    count = "UPDATE counted SET number = number + 1 WHERE name = %s RETURNING number"
    with psycopg.connect(test_settings.url_for(None)) as connection:
        for _ in range(transactions):
            for aggregate in sorted(dice.sample("abcdef", dice.randint(1, 3))):
                for _ in range(dice.randint(1, 3)):
                    connection.execute("SAVEPOINT s")
                    [(number,)] = connection.execute(count, (aggregate,)).fetchall()
                    say(connection, aggregate, number)
                    connection.execute("ROLLBACK TO SAVEPOINT s" if dice.random() < 0.3 else "RELEASE SAVEPOINT s")
            (connection.rollback if dice.random() < 0.2 else connection.commit)()


@pytest.mark.parametrize("relays", [1, 2])
def test_random_writers(relays: int) -> None:
    """Everything arrives once, and in the order of cause."""
    change("CREATE TABLE IF NOT EXISTS counted (name text PRIMARY KEY, number int NOT NULL DEFAULT 0)")
    change("INSERT INTO counted (name) SELECT unnest(ARRAY['a', 'b', 'c', 'd', 'e', 'f'])")
    try:
        with relaying(), relaying() if relays == 2 else writer():
            with ThreadPoolExecutor(5) as pool:
                writing = [pool.submit(write_at_random, seed, 30) for seed in range(5)]
                for each in writing:
                    each.result(LIMIT_S)
            eventually(lambda: set(statuses()) <= {"published"})
        committed = dict(seen("SELECT name, number FROM counted"))
    finally:
        change("DROP TABLE counted")
    assert sum(committed.values()) > 150
    # The counter goes back with what was rolled back: each number commits once, in the order of the row's lock.
    assert numbers_by_aggregate() == {aggregate: [*range(1, last + 1)] for aggregate, last in committed.items()}
