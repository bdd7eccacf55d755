"""Runs the twelve tasks of the catalogue as the worker's role, twice over, and compares their declarations with it."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core import mail
from django.core.mail.backends.locmem import EmailBackend

from project.salon.tasks import customer, operator, register, reservation
from salon_jobs import enqueue_job
from salon_jobs.core.outcomes import Cancelled, Errored, Outcome, Succeeded
from salon_jobs.jobs import registry
from salon_jobs.jobs.task import Task, get_task
from salon_jobs.schedules import entries
from tests.support import change, row, run_due, seen

SECOND = timedelta(seconds=1)
DAY = date(2026, 5, 5)
CUTOFF = datetime(2026, 5, 1, 17, tzinfo=UTC)
TICK = datetime(2026, 5, 5, 18, tzinfo=UTC)  # 03:00 JST on 2026-05-06
# Of a store, most attempts, key, and when cron enqueues it.
CATALOGUE: dict[str, tuple[bool, int | None, str | None, str | None]] = {
    "expire-tentative-reservations": (False, 3, None, "*/5 * * * *"),
    "expire-tentative-for-store": (True, 10, "expire_tentative:{store_id}", None),
    "aggregate-daily-sales": (False, 3, None, "0 18 * * *"),
    "aggregate-daily-sales-for-store": (True, 25, "aggregate_daily_sales:{store_id}:{target_date}", None),
    "cleanup-deleted-customers": (False, 3, None, "0 17 * * *"),
    "cleanup-deleted-customers-for-store": (True, 5, "cleanup_customers:{store_id}:{cutoff}", None),
    "purge-deleted-customer-notes": (False, 3, None, "0 15 * * *"),
    "purge-deleted-customer-notes-for-store": (True, 5, "purge_customer_notes:{store_id}:{cutoff}", None),
    "cleanup-expired-operator-sessions": (False, 3, None, "0 16 * * *"),
    "cleanup-expired-operator-invitations": (False, 3, None, "0 16 * * *"),
    "send-operator-invitation-email": (True, None, None, None),
    "ping": (False, None, None, None),
}


def customer_of(store: UUID, deleted_at: datetime | None = None) -> UUID:
    return row("customer", store_id=store, name="Sato Yui", email="", deleted_at=deleted_at)


def note_of(store: UUID, customer: UUID, deleted_at: datetime | None = None) -> UUID:
    return row("customer_note", store_id=store, customer_id=customer, body="short", deleted_at=deleted_at)


def reservation_of(store: UUID, expires_in: timedelta, status: str = "tentative", **columns: Any) -> UUID:
    now = datetime.now(UTC)
    times = {"starts_at": now + timedelta(days=3), "expires_at": now + expires_in}
    return row("reservation", store_id=store, status=status, **times, **columns)


def invitation_of(store: UUID, expires_at: datetime) -> UUID:
    return row("operator_invitation", store_id=store, email="o@chain.example", token=uuid4(), expires_at=expires_at)


def ids(table: str) -> set[UUID]:
    return {found for (found,) in seen(f"SELECT id FROM {table}")}


def run_twice(process_id: int, declared: Task[..., Any], *, tick: datetime | None = None, **arguments: Any) -> None:
    """Run a job of the task, by its tick, and once more."""
    for _ in range(2):
        handle = declared.enqueue(**arguments)
        change("UPDATE salon_jobs_job SET tick = %s WHERE id = %s", tick, handle.id)
        assert [type(outcome) for outcome in run_due(process_id)] == [Succeeded]


@pytest.mark.parametrize("name", CATALOGUE)
def test_task_is_declared_as_specified(name: str) -> None:
    task = get_task(name)
    key = task.key_templates.get("job_key")
    assert (task.is_store_task, task.options.max_attempts, key) == CATALOGUE[name][:3]
    assert task.options.job_key_mode == ("preserve_run_at" if key else "replace")
    assert task.atomic is (task.is_store_task and name != "send-operator-invitation-email")


def test_tasks_and_crontab_are_as_specified() -> None:
    assert {task.name for task in registry.tasks() if task.origin.startswith("project.salon.")} == CATALOGUE.keys()
    ours = {entry.task_name: entry for entry in entries.cron_entries.all() if entry.task_name in CATALOGUE}
    crontab = {name: line for name, (*_, line) in CATALOGUE.items() if line}
    assert {name: entry.expression.line for name, entry in ours.items()} == crontab
    for name, entry in ours.items():
        of_day = {"target_date": DAY} if name == "aggregate-daily-sales" else {}
        assert entry.payload_at(TICK) == {"reason": "cron", **of_day}
        get_task(name).payload.bind((), entry.payload_at(TICK))


@pytest.mark.parametrize(
    ("system", "for_store", "given"),
    [
        ("expire-tentative-reservations", "expire-tentative-for-store", []),
        ("aggregate-daily-sales", "aggregate-daily-sales-for-store", ["2026-05-05"]),
        ("cleanup-deleted-customers", "cleanup-deleted-customers-for-store", ["2026-02-04T18:00:00Z"]),
        ("purge-deleted-customer-notes", "purge-deleted-customer-notes-for-store", ["2026-04-28T18:00:00Z"]),
    ],
)
def test_system_task_adds_job_per_store(
    stores: list[UUID], process_id: int, system: str, for_store: str, given: list[str]
) -> None:
    """Cutoffs are those of the tick, and a second run adds none."""
    day = {"target_date": DAY} if "daily" in system else {}
    key = str(CATALOGUE[for_store][2]).partition(":")[0]
    for _ in range(2):
        handle = enqueue_job(system, {"reason": "cron", **day})
        change("UPDATE salon_jobs_job SET tick = %s WHERE id = %s", TICK, handle.id)
        change("UPDATE salon_jobs_job SET run_at = now() + interval '1 hour' WHERE store_id IS NOT NULL")
        assert [type(outcome) for outcome in run_due(process_id)] == [Succeeded]
        jobs = seen("SELECT task, store_id, job_key, payload FROM salon_jobs_job ORDER BY store_id")
        expected = [(for_store, store, ":".join([key, str(store), *given])) for store in stores]
        assert [job[:3] for job in jobs] == expected
        assert [[*json.loads(job[3]).values()] for job in jobs] == [given] * 3, "no store in the payload"


def test_lapsed_reservations_expire(stores: list[UUID], process_id: int) -> None:
    mine = stores[0]
    left = {
        reservation_of(mine, -SECOND): "expired",
        reservation_of(mine, timedelta(hours=1)): "tentative",
        reservation_of(mine, -SECOND, "confirmed"): "confirmed",
        reservation_of(stores[1], -SECOND): "tentative",
    }
    run_twice(process_id, reservation.expire_tentative_for_store, store_id=mine)
    assert dict(seen("SELECT id, status FROM reservation")) == left


def test_equal_sales_are_not_written_again(stores: list[UUID], process_id: int) -> None:
    row("sale", store_id=stores[0], sold_at=datetime(2026, 5, 5, tzinfo=UTC), amount=110)
    versions = []
    for _ in range(2):
        for store in stores[:2]:
            register.aggregate_daily_sales_for_store.enqueue(store_id=store, target_date=DAY)
        assert [type(outcome) for outcome in run_due(process_id)] == [Succeeded] * 2
        versions.append(seen("SELECT total, count, id, xmin::text FROM daily_sales ORDER BY store_id"))
    assert [found[:2] for found in versions[0]] == [(110, 1), (0, 0)]
    assert versions[0] == versions[1]


def test_deleted_customers_leave_their_reservations(stores: list[UUID], process_id: int) -> None:
    mine = stores[0]
    gone, *kept = (customer_of(mine, moment) for moment in (CUTOFF - SECOND, CUTOFF, CUTOFF + SECOND, None))
    other = customer_of(stores[1], CUTOFF - SECOND)
    note_of(mine, gone)
    note = note_of(mine, kept[0])
    booking = reservation_of(mine, timedelta(days=1), "confirmed", customer_id=gone)
    run_twice(process_id, customer.cleanup_deleted_customers_for_store, store_id=mine, cutoff=CUTOFF)
    assert ids("customer") == {*kept, other}
    assert ids("customer_note") == {note}
    assert seen("SELECT id, customer_id FROM reservation") == [(booking, None)]


def test_deleted_notes_are_purged(stores: list[UUID], process_id: int) -> None:
    mine, other = (customer_of(store) for store in stores[:2])
    note_of(stores[0], mine, CUTOFF - SECOND)
    kept = {note_of(stores[0], mine, moment) for moment in (CUTOFF, CUTOFF + SECOND, None)}
    kept.add(note_of(stores[1], other, CUTOFF - SECOND))
    run_twice(process_id, customer.purge_deleted_customer_notes_for_store, store_id=stores[0], cutoff=CUTOFF)
    assert ids("customer_note") == kept


def test_expired_sessions_and_invitations_are_deleted(stores: list[UUID], process_id: int) -> None:
    person = row("operator", email="o@chain.example", name="Ito Ren")
    sessions = [row("operator_session", operator_id=person, expires_at=TICK + n * SECOND) for n in (-1, 0, 1)]
    invitations = {invitation_of(store, TICK) for store in stores}
    for store in stores:
        invitation_of(store, TICK - SECOND)
    for task in (operator.cleanup_expired_operator_sessions, operator.cleanup_expired_operator_invitations):
        run_twice(process_id, task, tick=TICK, reason="cron")
    assert ids("operator_session") == {*sessions[1:]}
    assert ids("operator_invitation") == invitations


def send(store: UUID, invitation: UUID, process_id: int) -> Outcome:
    operator.send_operator_invitation_email.enqueue(store_id=store, invitation_id=invitation)
    [outcome] = run_due(process_id)
    return outcome


def test_invitation_is_mailed_once(stores: list[UUID], process_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ConnectionRefusedError

    invitation = invitation_of(stores[0], datetime.now(UTC) + timedelta(days=1))
    with monkeypatch.context() as unreachable:
        unreachable.setattr(EmailBackend, "send_messages", refuse)
        assert isinstance(send(stores[0], invitation, process_id), Errored)
    assert seen("SELECT sent_at FROM operator_invitation") == [(None,)]
    change("UPDATE salon_jobs_job SET run_at = now() + interval '1 hour'")  # its retry is due in two seconds
    for _ in range(2):
        assert isinstance(send(stores[0], invitation, process_id), Succeeded)
    assert [sent.extra_headers["Message-ID"] for sent in mail.outbox] == [f"<invitation-{invitation}@salon.example>"]
    assert "Salon 0" in mail.outbox[0].subject
    assert seen("SELECT sent_at IS NOT NULL FROM operator_invitation") == [(True,)]


def test_stale_or_foreign_invitation_is_discarded(stores: list[UUID], process_id: int) -> None:
    others = invitation_of(stores[1], datetime.now(UTC) + timedelta(days=1))
    expired = invitation_of(stores[0], datetime.now(UTC) - SECOND)
    outcomes = [send(stores[0], invitation, process_id) for invitation in (uuid4(), others, expired)]
    assert [type(outcome) for outcome in outcomes] == [Cancelled] * 3
    assert not mail.outbox
