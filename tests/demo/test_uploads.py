"""Tests what the demo does with files: it keeps each with its message, parses it once, and verifies both."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any
from uuid import UUID

import psycopg
import pytest

from project.demo.management.commands.upload_files import Command
from project.demo.tasks import parse_upload
from project.demo.verify import Verifier
from project.demo.verify_messages import UploadVerifier
from project.demo.worker_log import TaskFigures
from project.salon.demo_data import load, make_demo_data
from project.salon.demo_instants import DemoInstants
from salon_jobs import tenant_context
from tests.settings import url_for

STORES = 12
DIFFERENT = """
    SELECT count(*) FROM demo_expected.uploaded_file AS e
    FULL JOIN uploaded_file AS f USING (store_id, name, lines, total) WHERE e.name IS NULL OR f.name IS NULL
"""


@pytest.fixture
def connection(database: None) -> Iterator[psycopg.Connection[Any]]:
    """Fill the tables with the demo's rows, and compute what must become of them."""
    with psycopg.connect(url_for(None), autocommit=True, options="-c timezone=UTC") as connection:
        instants = DemoInstants.at(connection.execute("SELECT now()").fetchall()[0][0])
        load(connection, make_demo_data(instants, stores=STORES))
        Verifier(connection, instants).prepare(())
        yield connection
        connection.execute("DROP SCHEMA IF EXISTS demo_before, demo_expected CASCADE")
        connection.execute("TRUNCATE store, operator CASCADE")


def uploaded(connection: psycopg.Connection[Any]) -> tuple[int, int]:
    """Run the command; returns how many it says were kept, and how many rolled back."""
    stores = [row[0] for row in connection.execute("SELECT id FROM store").fetchall()]
    printed = StringIO()
    Command(stdout=printed).handle(store=stores)
    count, rolled_back = map(int, printed.getvalue().split())
    return count, rolled_back


def taken_in(connection: psycopg.Connection[Any]) -> None:
    """Mark all as published and taken in, under ids of the broker."""
    connection.execute("UPDATE salon_jobs_message SET status = 'published', sent_at = now()")
    connection.execute(
        "INSERT INTO salon_jobs_inbox (consumer, message_id, status, job_id) "
        "SELECT 'uploads', gen_random_uuid(), 'enqueued', id FROM salon_jobs_message"
    )


def verifier(connection: psycopg.Connection[Any], jobs: int, *, left: int = 0) -> UploadVerifier:
    figures = TaskFigures(jobs=set(range(jobs)))
    figures.outcomes["succeeded"] = jobs
    return UploadVerifier(connection, figures, left=left)


def problems(connection: psycopg.Connection[Any], jobs: int, *, left: int = 0) -> list[str]:
    """Verify; returns what is wrong."""
    return [problem.what for problem in verifier(connection, jobs, left=left).problems()]


def test_a_file_is_kept_with_its_message_or_not_at_all(connection: psycopg.Connection[Any]) -> None:
    count, rolled_back = uploaded(connection)
    assert count + rolled_back == STORES
    assert min(count, rolled_back) > 0
    assert connection.execute("SELECT count(*) FROM uploaded_file").fetchall() == [(count,)]
    taken_in(connection)
    assert problems(connection, count) == []
    figures = verifier(connection, count).figures(uploaded=count, rolled_back=rolled_back)
    assert (figures.published, figures.taken_in, figures.jobs) == (count, count, count)


def test_a_file_without_a_message_or_with_two_or_taken_twice_or_left_is_named(
    connection: psycopg.Connection[Any],
) -> None:
    count, _ = uploaded(connection)
    taken_in(connection)
    assert problems(connection, count - 1) == [
        f"{count} files became {count} messages and {count - 1} jobs; {count - 1} succeeded"
    ]
    assert problems(connection, count, left=2) == ["2 messages are still there"]
    connection.execute(
        "INSERT INTO salon_jobs_inbox (consumer, message_id, status) SELECT 'uploads', message_id, 'enqueued' "
        "FROM salon_jobs_message LIMIT 1"
    )
    assert any("has the id under which it was emitted" in what for what in problems(connection, count))
    [(one, other)] = connection.execute("SELECT min(id::text), max(id::text) FROM uploaded_file").fetchall()
    connection.execute("DELETE FROM uploaded_file WHERE id = %s", [one])
    assert f"file {one}: 1 messages for 0 rows" in problems(connection, count)
    connection.execute("DELETE FROM salon_jobs_message WHERE payload ->> 'task_id' = %s", [other])
    assert f"file {other}: 0 messages for 1 rows" in problems(connection, count)


def test_a_file_is_parsed_the_same_however_often_it_is_run(connection: psycopg.Connection[Any]) -> None:
    uploaded(connection)
    files = connection.execute("SELECT store_id, id FROM uploaded_file").fetchall()
    assert connection.execute(DIFFERENT).fetchall()[0][0] > 0
    for _ in range(2):
        for store, file in files:
            with tenant_context(UUID(str(store))):
                parse_upload.function(store, file)
    assert connection.execute(DIFFERENT).fetchall() == [(0,)]
