"""Tests what the demo does with messages: it emits them with the reservations, takes them back, and verifies both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import StringIO
from typing import Any
from uuid import UUID

import psycopg
import pytest

from project.demo.management.commands.confirm_reservations import Command
from project.demo.tasks import record_confirmation
from project.demo.verify import Verifier
from project.demo.verify_messages import MessageVerifier, Stored
from project.demo.worker_log import TaskFigures
from project.salon.demo_data import load, make_demo_data
from project.salon.demo_instants import DemoInstants
from salon_jobs import tenant_context
from tests.settings import url_for

STORES = 3


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


def confirmed(connection: psycopg.Connection[Any]) -> tuple[int, int]:
    """Run the command; returns how many it says were confirmed, and how many rolled back."""
    stores = [row[0] for row in connection.execute("SELECT id FROM store").fetchall()]
    printed = StringIO()
    Command(stdout=printed).handle(store=stores)
    count, rolled_back = map(int, printed.getvalue().split())
    return count, rolled_back


def relayed(connection: psycopg.Connection[Any]) -> list[Stored]:
    """Mark all as published and taken in; returns them as NATS would."""
    connection.execute("UPDATE salon_jobs_message SET status = 'published', sent_at = now()")
    connection.execute(
        "INSERT INTO salon_jobs_inbox (consumer, message_id, status, job_id) "
        "SELECT 'confirmations', message_id, 'enqueued', id FROM salon_jobs_message"
    )
    query = "SELECT aggregate_id, message_id::text, payload::text FROM salon_jobs_message ORDER BY id"
    return [
        (f"reservations.{store}", {"Nats-Msg-Id": message_id}, payload)
        for store, message_id, payload in connection.execute(query).fetchall()
    ]


def problems(connection: psycopg.Connection[Any], stored: Sequence[Stored], jobs: int) -> list[str]:
    """Verify; returns what is wrong."""
    figures = TaskFigures(jobs=set(range(jobs)))
    figures.outcomes["succeeded"] = jobs
    return [problem.what for problem in MessageVerifier(connection, stored, figures).problems()]


def test_what_was_confirmed_was_emitted_and_what_rolled_back_was_not(connection: psycopg.Connection[Any]) -> None:
    count, rolled_back = confirmed(connection)
    assert min(count, rolled_back) > 0
    stored = relayed(connection)
    assert len(stored) == count
    assert problems(connection, stored, count) == []
    figures = MessageVerifier(connection, stored, TaskFigures()).figures(
        confirmed=count, rolled_back=rolled_back, waited=0
    )
    assert (figures.published, figures.in_stream, figures.taken_in) == (count, count, count)


def test_a_message_that_is_missing_double_late_or_rolled_back_is_named(connection: psycopg.Connection[Any]) -> None:
    count, _ = confirmed(connection)
    stored = relayed(connection)
    first = stored[0]
    of_one_store = [number for number, each in enumerate(stored) if each[0] == first[0]]
    swapped = list(stored)
    swapped[of_one_store[0]], swapped[of_one_store[1]] = stored[of_one_store[1]], first
    [(abandoned,)] = connection.execute(
        "SELECT id::text FROM reservation WHERE status = 'tentative' AND expires_at > now() + interval '30 minutes'"
        " LIMIT 1"
    ).fetchall()
    leaked = (first[0], {"Nats-Msg-Id": "leaked"}, f'{{"reservation_id": "{abandoned}"}}')

    assert any("nobody heard of it" in what for what in problems(connection, stored[1:], count))
    assert any("arrived more than once" in what for what in problems(connection, [*stored, first], count))
    assert problems(connection, swapped, count) == ["messages: out of order from place 1 on"]
    assert any("rolled back, and arrived" in what for what in problems(connection, [*stored, leaked], count))
    assert problems(connection, stored, count - 1) == [
        f"{count} messages became {count - 1} jobs; {count - 1} succeeded"
    ]
    connection.execute("UPDATE salon_jobs_inbox SET message_id = gen_random_uuid() WHERE job_id = 1")
    connection.execute("DELETE FROM salon_jobs_inbox WHERE id = (SELECT max(id) FROM salon_jobs_inbox)")
    assert any("0 times instead of 1" in what for what in problems(connection, stored, count))


def test_a_confirmation_is_recorded_once_however_often_it_is_run(connection: psycopg.Connection[Any]) -> None:
    [(store, reservation, customer, starts_at)] = connection.execute(
        "SELECT store_id, id, customer_id, starts_at FROM demo_expected.confirmation LIMIT 1"
    ).fetchall()
    for _ in range(2):
        with tenant_context(UUID(str(store))):
            record_confirmation.function(store, reservation, starts_at)
    notes = (
        "SELECT n.store_id, n.customer_id FROM customer_note AS n JOIN reservation USING (id, store_id, customer_id)"
    )
    assert connection.execute(notes).fetchall() == [(store, customer)]
