"""The demo emits messages with its reservations, consumes them, and verifies both."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from project.demo.management.commands.confirm_reservations import Command
from project.demo.tasks import record_confirmation
from project.demo.verify_messages import MessageVerifier, Stored
from project.demo.worker_log import TaskFigures
from salon_jobs import tenant_context
from tests.demo.conftest import Connection, run_in_all_stores, succeeded

STORES = 3


def relayed(connection: Connection) -> list[Stored]:
    """Mark all as published and received; return them as NATS would."""
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


def problems(connection: Connection, stored: Sequence[Stored], jobs: int) -> list[str]:
    return [problem.what for problem in MessageVerifier(connection, stored, succeeded(jobs)).problems()]


def test_what_was_confirmed_was_emitted_and_what_rolled_back_was_not(demo: Connection) -> None:
    count, rolled_back = run_in_all_stores(Command(), demo)
    assert min(count, rolled_back) > 0
    stored = relayed(demo)
    assert len(stored) == count
    assert problems(demo, stored, count) == []
    figures = MessageVerifier(demo, stored, TaskFigures()).figures(confirmed=count, rolled_back=rolled_back, waited=0)
    assert (figures.published, figures.in_stream, figures.taken_in) == (count, count, count)


def test_a_message_that_is_missing_double_late_or_rolled_back_is_named(demo: Connection) -> None:
    count, _ = run_in_all_stores(Command(), demo)
    stored = relayed(demo)
    first = stored[0]
    of_one_store = [number for number, each in enumerate(stored) if each[0] == first[0]]
    swapped = list(stored)
    swapped[of_one_store[0]], swapped[of_one_store[1]] = stored[of_one_store[1]], first
    [(abandoned,)] = demo.execute(
        "SELECT id::text FROM reservation WHERE status = 'tentative' AND expires_at > now() + interval '30 minutes'"
        " LIMIT 1"
    ).fetchall()
    leaked = (first[0], {"Nats-Msg-Id": "leaked"}, f'{{"reservation_id": "{abandoned}"}}')

    assert any("no message about it arrived" in what for what in problems(demo, stored[1:], count))
    assert any("arrived more than once" in what for what in problems(demo, [*stored, first], count))
    assert problems(demo, swapped, count) == ["messages: out of order from place 1 on"]
    assert any("rolled back, and arrived" in what for what in problems(demo, [*stored, leaked], count))
    assert problems(demo, stored, count - 1) == [f"{count} messages became {count - 1} jobs; {count - 1} succeeded"]
    demo.execute("UPDATE salon_jobs_inbox SET message_id = gen_random_uuid() WHERE job_id = 1")
    demo.execute("DELETE FROM salon_jobs_inbox WHERE id = (SELECT max(id) FROM salon_jobs_inbox)")
    assert any("0 times instead of 1" in what for what in problems(demo, stored, count))


def test_a_confirmation_is_recorded_once_however_often_it_is_run(demo: Connection) -> None:
    [(store, reservation, customer, starts_at)] = demo.execute(
        "SELECT store_id, id, customer_id, starts_at FROM demo_expected.confirmation LIMIT 1"
    ).fetchall()
    for _ in range(2):
        with tenant_context(UUID(str(store))):
            record_confirmation.function(store, reservation, starts_at)
    notes = (
        "SELECT n.store_id, n.customer_id FROM customer_note AS n JOIN reservation USING (id, store_id, customer_id)"
    )
    assert demo.execute(notes).fetchall() == [(store, customer)]
