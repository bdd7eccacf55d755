"""Moves the times of messages that ended otherwise than by a publish, forwards and backwards, while others write."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

import psycopg
import pytest

from tests.migrations.test_migrations import fresh
from tests.migrations.test_under_load import busy, migrate, through
from tests.settings import url_for

__all__ = ["busy", "fresh"]  # fixtures

OLD, COLUMNS, ROWS = "0007_queue_minute", "0008_message_ended_at", "0009_message_ended_at_rows"
# As processes of the release before write them.
OLD_WRITES = (
    "UPDATE salon_jobs_message SET status = 'skipped', sent_at = clock_timestamp(), retry_at = NULL WHERE id = ({})",
    "UPDATE salon_jobs_message SET status = 'failed', sent_at = clock_timestamp(), retry_count = 10 WHERE id = ({})",
    "UPDATE salon_jobs_message SET status = 'published', sent_at = clock_timestamp() WHERE id = ({})",
)
NEXT = "SELECT min(id) FROM salon_jobs_message WHERE status = 'pending'"
WRONG = (
    "SELECT count(*) FROM salon_jobs_message WHERE (status = 'published') <> (sent_at IS NOT NULL)"
    " OR (status IN ('failed', 'skipped')) <> (ended_at IS NOT NULL)"
)


@pytest.fixture
def owner(busy: str) -> Generator[psycopg.Connection[tuple[object, ...]]]:
    """Give the tables as the release before left them, with what it wrote, and a connection of the superuser."""
    migrate(OLD)
    with psycopg.connect(url_for(None, busy), autocommit=True) as connection:
        connection.execute(
            "INSERT INTO salon_jobs_message (message_id, aggregate_type, event, payload, status, sent_at)"
            " SELECT gen_random_uuid(), 'rn::memory:::orders', 'e', '{}', kind,"
            "        CASE WHEN kind <> 'pending' THEN now() - n * interval '1 minute' END"
            "   FROM generate_series(1, 2500) AS n,"
            "        unnest('{pending,published,failed,skipped}'::text[]) AS kind"
        )
        connection.execute("CREATE TABLE before AS SELECT id, status, sent_at FROM salon_jobs_message")
        yield connection


def one(connection: psycopg.Connection[tuple[object, ...]], statement: str) -> object:
    """Return the only value of a query."""
    [(value,)] = connection.execute(statement.encode()).fetchall()
    return value


@contextmanager
def old_processes(database: str) -> Generator[list[BaseException]]:
    """End one message after the other as the release before does, on a connection of its own."""
    errors: list[BaseException] = []
    stop = threading.Event()

    def write() -> None:
        try:
            with psycopg.connect(url_for("worker_runtime", database), autocommit=True) as connection:
                while not stop.is_set():
                    for statement in OLD_WRITES:
                        connection.execute(statement.format(NEXT).encode())
        except BaseException as error:  # told by the test's own thread
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield errors
    finally:
        stop.set()
        thread.join()


def test_times_move_while_the_release_before_goes_on_and_move_back(
    busy: str, owner: psycopg.Connection[tuple[object, ...]]
) -> None:
    lies = "SELECT count(*) FROM salon_jobs_message WHERE sent_at IS NOT NULL AND status <> 'published'"
    assert one(owner, lies) == 5000
    with old_processes(busy) as errors:
        assert any(through(partial(migrate, COLUMNS)) for _ in range(10))
        assert any(through(partial(migrate, ROWS)) for _ in range(10))
    assert errors == []
    assert one(owner, WRONG) == 0
    assert one(owner, lies) == 0
    written = "SELECT count(*) FROM salon_jobs_message m JOIN before b USING (id) WHERE m.status <> b.status"
    assert one(owner, written) != 0, "others wrote meanwhile"
    moved = (
        "SELECT count(*) FROM salon_jobs_message m JOIN before b USING (id) WHERE b.status <> 'pending'"
        " AND coalesce(m.ended_at, m.sent_at) IS DISTINCT FROM b.sent_at"
    )
    assert one(owner, moved) == 0, "each kept its time"

    migrate(OLD)
    back = (
        "SELECT count(*) FROM salon_jobs_message m JOIN before b USING (id) WHERE b.status <> 'pending'"
        " AND m.sent_at IS DISTINCT FROM b.sent_at"
    )
    assert one(owner, back) == 0
    assert one(owner, "SELECT count(*) FROM salon_jobs_message WHERE (sent_at IS NULL) <> (status = 'pending')") == 0
    assert "sent_at = clock_timestamp()" in str(
        one(owner, "SELECT prosrc FROM pg_proc WHERE proname = 'salon_jobs_skip_messages'")
    )
    migrate(ROWS)
    assert (one(owner, WRONG), one(owner, moved)) == (0, 0)


def test_a_row_that_somebody_holds_ends_it_with_the_batches_before_done(
    busy: str, owner: psycopg.Connection[tuple[object, ...]]
) -> None:
    migrate(COLUMNS)
    late = "SELECT id FROM salon_jobs_message WHERE status = 'failed' ORDER BY id OFFSET 1500 LIMIT 1"
    with psycopg.connect(url_for(None, busy)) as holder:
        holder.execute(f"SELECT FROM salon_jobs_message WHERE id = ({late}) FOR UPDATE".encode())
        assert not through(partial(migrate, ROWS))
        done = "SELECT count(*) FROM salon_jobs_message WHERE ended_at IS NOT NULL"
        assert one(owner, done) == 1000, "a batch is a transaction of its own"
    assert through(partial(migrate, ROWS))
    assert one(owner, WRONG) == 0
