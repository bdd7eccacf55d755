"""Tests each task of the catalogue on the database, as the worker's role, twice over."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core import mail
from django.core.mail.backends.locmem import EmailBackend

from project.salon.tasks import customer, operator, register, reservation
from salon_jobs.core.outcomes import Cancelled, Errored, Outcome, Succeeded
from salon_jobs.jobs.task import Task
from tests.support import change, run_due, seen

SECOND = timedelta(seconds=1)
CUTOFF = datetime(2026, 5, 1, 17, tzinfo=UTC)
TICK = datetime(2026, 5, 5, 16, tzinfo=UTC)


def _customer(store_id: UUID, deleted_at: datetime | None = None) -> UUID:
    row = uuid4()
    insert = (
        "INSERT INTO customer (id, store_id, name, email, deleted_at) VALUES (%s, %s, 'Sato Yui', 'y@m.example', %s)"
    )
    change(insert, row, store_id, deleted_at)
    return row


def _note(store_id: UUID, customer_id: UUID, deleted_at: datetime | None = None) -> UUID:
    row = uuid4()
    insert = "INSERT INTO customer_note (id, store_id, customer_id, body, deleted_at) VALUES (%s, %s, %s, 'short', %s)"
    change(insert, row, store_id, customer_id, deleted_at)
    return row


def _reservation(store_id: UUID, customer_id: UUID | None, offset: timedelta, status: str = "tentative") -> UUID:
    row = uuid4()
    insert = """
        INSERT INTO reservation (id, store_id, customer_id, status, starts_at, expires_at)
        VALUES (%s, %s, %s, %s, now() + interval '3 days', now() + %s)
    """
    change(insert, row, store_id, customer_id, status, offset)
    return row


def _invitation(store_id: UUID, expires_at: datetime, sent_at: datetime | None = None) -> UUID:
    row = uuid4()
    insert = """
        INSERT INTO operator_invitation (id, store_id, email, token, expires_at, sent_at)
        VALUES (%s, %s, 'o@chain.example', %s, %s, %s)
    """
    change(insert, row, store_id, row.hex, expires_at, sent_at)
    return row


def _ids(table: str) -> set[UUID]:
    return {row[0] for row in seen(f"SELECT id FROM {table}")}


@pytest.mark.parametrize(
    ("system", "arguments", "store_task"),
    [
        (reservation.expire_tentative_reservations, {}, "expire-tentative-for-store"),
        (register.aggregate_daily_sales, {"target_date": date(2026, 5, 5)}, "aggregate-daily-sales-for-store"),
        (customer.cleanup_deleted_customers, {}, "cleanup-deleted-customers-for-store"),
        (customer.purge_deleted_customer_notes, {}, "purge-deleted-customer-notes-for-store"),
    ],
)
def test_a_system_task_enqueues_one_job_per_store_and_none_again(
    stores: list[UUID], process_id: int, system: Task[..., Any], arguments: dict[str, Any], store_task: str
) -> None:
    for _ in range(2):
        handle = system.enqueue(reason="cron", **arguments)
        change("UPDATE salon_jobs_job SET tick = %s WHERE id = %s", TICK, handle.id)
        change("UPDATE salon_jobs_job SET run_at = now() + interval '1 hour' WHERE task = %s", store_task)
        assert [type(outcome) for outcome in run_due(process_id)] == [Succeeded]

        jobs = seen(
            "SELECT store_id, job_key, payload FROM salon_jobs_job WHERE task = %s ORDER BY store_id", store_task
        )
        assert [job[0] for job in jobs] == stores
        assert all("store_id" not in job[2] for job in jobs)
        assert all(str(job[0]) in job[1] for job in jobs)


def test_cutoffs_come_from_the_tick(stores: list[UUID], process_id: int) -> None:
    for system in (customer.cleanup_deleted_customers, customer.purge_deleted_customer_notes):
        handle = system.enqueue(reason="cron")
        change("UPDATE salon_jobs_job SET tick = %s WHERE id = %s", TICK, handle.id)
    run_due(process_id)

    query = "SELECT DISTINCT task, payload ->> 'cutoff', split_part(job_key, ':', 1) FROM salon_jobs_job ORDER BY task"
    assert seen(query) == [
        ("cleanup-deleted-customers-for-store", "2026-02-04T16:00:00Z", "cleanup_customers"),
        ("purge-deleted-customer-notes-for-store", "2026-04-28T16:00:00Z", "purge_customer_notes"),
    ]


def test_tentative_reservations_past_their_time_expire(stores: list[UUID], process_id: int) -> None:
    mine = stores[0]
    past, future = _reservation(mine, None, -SECOND), _reservation(mine, None, timedelta(hours=1))
    confirmed, other = _reservation(mine, None, -SECOND, "confirmed"), _reservation(stores[1], None, -SECOND)

    for _ in range(2):
        reservation.expire_tentative_for_store.enqueue(store_id=mine)
        assert isinstance(run_due(process_id)[0], Succeeded)

    assert dict(seen("SELECT id, status FROM reservation")) == {
        past: "expired",
        future: "tentative",
        confirmed: "confirmed",
        other: "tentative",
    }


def test_sales_are_added_up_by_the_business_day_in_japan(stores: list[UUID], process_id: int) -> None:
    start = datetime(2026, 5, 4, 15, tzinfo=UTC)
    sales = [
        (start - SECOND, 1),
        (start, 10),
        (start + timedelta(days=1) - SECOND, 100),
        (start + timedelta(days=1), 7),
    ]
    for sold_at, amount in sales:
        for store_id in stores[:2]:
            insert = "INSERT INTO sale (id, store_id, sold_at, amount) VALUES (%s, %s, %s, %s)"
            change(insert, uuid4(), store_id, sold_at, amount)

    versions = []
    for _ in range(2):
        for store_id in (stores[0], stores[2]):
            register.aggregate_daily_sales_for_store.enqueue(store_id=store_id, target_date=date(2026, 5, 5))
        assert [type(outcome) for outcome in run_due(process_id)] == [Succeeded, Succeeded]
        versions.append(seen("SELECT id, xmin::text FROM daily_sales ORDER BY id"))

    assert seen("SELECT store_id, business_date, total, count FROM daily_sales ORDER BY store_id") == [
        (stores[0], date(2026, 5, 5), 110, 2),
        (stores[2], date(2026, 5, 5), 0, 0),
    ]
    assert versions[0] == versions[1], "running it again wrote nothing"


def test_deleted_customers_go_with_their_notes_and_leave_their_reservations(
    stores: list[UUID], process_id: int
) -> None:
    mine = stores[0]
    gone, at, after, alive = (_customer(mine, moment) for moment in (CUTOFF - SECOND, CUTOFF, CUTOFF + SECOND, None))
    other = _customer(stores[1], CUTOFF - SECOND)
    _note(mine, gone)
    kept = _note(mine, at)
    booking = _reservation(mine, gone, timedelta(days=1), "confirmed")

    for _ in range(2):
        customer.cleanup_deleted_customers_for_store.enqueue(store_id=mine, cutoff=CUTOFF)
        assert isinstance(run_due(process_id)[0], Succeeded)

    assert _ids("customer") == {at, after, alive, other}
    assert _ids("customer_note") == {kept}
    assert seen("SELECT id, customer_id FROM reservation") == [(booking, None)]


def test_deleted_notes_go_after_their_time(stores: list[UUID], process_id: int) -> None:
    mine, other = _customer(stores[0]), _customer(stores[1])
    _note(stores[0], mine, CUTOFF - SECOND)
    kept = {_note(stores[0], mine, CUTOFF), _note(stores[0], mine, CUTOFF + SECOND), _note(stores[0], mine)}
    kept.add(_note(stores[1], other, CUTOFF - SECOND))

    for _ in range(2):
        customer.purge_deleted_customer_notes_for_store.enqueue(store_id=stores[0], cutoff=CUTOFF)
        assert isinstance(run_due(process_id)[0], Succeeded)

    assert _ids("customer_note") == kept


def test_expired_sessions_and_invitations_of_all_stores_go(stores: list[UUID], process_id: int) -> None:
    person = uuid4()
    change("INSERT INTO operator (id, email, name) VALUES (%s, 'o@chain.example', 'Ito Ren')", person)
    sessions = {offset: uuid4() for offset in (-SECOND, timedelta(0), SECOND)}
    for offset, row in sessions.items():
        insert = "INSERT INTO operator_session (id, operator_id, expires_at) VALUES (%s, %s, %s)"
        change(insert, row, person, TICK + offset)
    kept = {_invitation(store_id, TICK) for store_id in stores}
    for store_id in stores:
        _invitation(store_id, TICK - SECOND)

    for _ in range(2):
        for task in (operator.cleanup_expired_operator_sessions, operator.cleanup_expired_operator_invitations):
            handle = task.enqueue(reason="cron")
            change("UPDATE salon_jobs_job SET tick = %s WHERE id = %s", TICK, handle.id)
        assert [type(outcome) for outcome in run_due(process_id)] == [Succeeded, Succeeded]

    assert _ids("operator_session") == {sessions[timedelta(0)], sessions[SECOND]}
    assert _ids("operator_invitation") == kept


def _send(store_id: UUID, invitation_id: UUID, process_id: int) -> Outcome:
    operator.send_operator_invitation_email.enqueue(store_id=store_id, invitation_id=invitation_id)
    (outcome,) = run_due(process_id)
    return outcome


def test_an_invitation_is_mailed_once(stores: list[UUID], process_id: int) -> None:
    invitation = _invitation(stores[0], datetime.now(UTC) + timedelta(days=1))

    for _ in range(2):
        assert isinstance(_send(stores[0], invitation, process_id), Succeeded)

    assert [sent.extra_headers["Message-ID"] for sent in mail.outbox] == [f"<invitation-{invitation}@salon.example>"]
    assert "Salon 0" in mail.outbox[0].subject
    assert seen("SELECT sent_at IS NOT NULL FROM operator_invitation") == [(True,)]
    assert seen("SELECT id FROM salon_jobs_job") == []


def test_a_mail_that_can_not_be_sent_leaves_the_invitation_unmarked(
    stores: list[UUID], process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    invitation = _invitation(stores[0], datetime.now(UTC) + timedelta(days=1))

    def refuse(*_: object) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(EmailBackend, "send_messages", refuse)

    assert isinstance(_send(stores[0], invitation, process_id), Errored)
    assert seen("SELECT sent_at FROM operator_invitation") == [(None,)]
    assert seen("SELECT state, attempts FROM salon_jobs_job") == [("queued", 1)]


def test_an_invitation_that_is_gone_expired_or_another_stores_is_discarded(stores: list[UUID], process_id: int) -> None:
    others = _invitation(stores[1], datetime.now(UTC) + timedelta(days=1))
    expired = _invitation(stores[0], datetime.now(UTC) - SECOND)

    for invitation in (uuid4(), others, expired):
        assert isinstance(_send(stores[0], invitation, process_id), Cancelled)
    assert not mail.outbox
