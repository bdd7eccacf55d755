"""Holds the acceptance tests of the specification that run tasks of the demo project, as the worker role."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import pytest
from django.db import connections, transaction

from project.salon.models import Customer
from project.salon.tasks.operator import send_operator_invitation_email
from project.salon.tasks.reservation import expire_tentative_reservations
from salon_jobs import current_job
from salon_jobs.core.error_report import report
from salon_jobs.core.outcomes import Succeeded
from salon_jobs.jobs import Task
from salon_jobs.schedules.scheduler import Scheduler
from tests import tasks
from tests.e2e import tasks as e2e_tasks
from tests.interpreter import succeed
from tests.sentry_server import SentryServer
from tests.support import change, claim, closed_port, job_row, leases_of, row, run, run_due, run_on_threads, seen
from tests.worker.effects import write, written

NOW = datetime(2026, 5, 5, 17, tzinfo=UTC)


def test_gwt_05_system_task_fans_out(stores: list[UUID], process_id: int) -> None:
    expire_tentative_reservations.enqueue(reason="cron")
    run_due(process_id)
    jobs = seen("SELECT task, store_id, state FROM salon_jobs_job ORDER BY store_id")
    assert jobs == [("expire-tentative-for-store", store_id, "queued") for store_id in stores]


def test_gwt_06_second_run_adds_no_duplicates(stores: list[UUID], process_id: int) -> None:
    """One store's job has failed once and waits for its retry, one has not been tried, and one is running.

    What a running job does not see any more needs a job after it; only that one is new.
    """
    expire_tentative_reservations.enqueue(reason="cron")
    run_due(process_id)
    failing, other, running = claim(process_id)
    error = report(RuntimeError("the first attempt"))
    leases_of(process_id).fail(failing, error, delay=timedelta(hours=1), final=False, reason="attempts_exhausted")
    leases_of(process_id).requeue([(other.id, other.lease)], delay=timedelta(minutes=5))
    jobs = "SELECT id, store_id, task, state, run_at, attempts FROM salon_jobs_job ORDER BY id"
    before = seen(jobs)
    assert [(job[0], *job[3:][::2]) for job in before] == [
        (failing.id, "queued", 1),
        (other.id, "queued", 0),
        (running.id, "running", 0),
    ]
    for _ in range(2):
        expire_tentative_reservations.enqueue(reason="cron")
        [fan_out_job] = leases_of(process_id).claim_due(["expire-tentative-reservations"], 1)
        assert type(run(fan_out_job, process_id)) is Succeeded
        *same, following = seen(jobs)
        assert same == before, "the same jobs, due when they were, with the attempts they had"
        assert following[1:4] == (running.store_id, "expire-tentative-for-store", "queued")


def test_gwt_07_tick_aggregates_day_before(stores: list[UUID], process_id: int) -> None:
    for sold_at, amount in {
        "2026-05-04T23:59:59+09:00": 1,
        "2026-05-05T00:00:00+09:00": 20,
        "2026-05-05T23:59:59+09:00": 300,
        "2026-05-06T00:00:00+09:00": 4000,
        "2026-05-06T02:59:59+09:00": 50000,
    }.items():
        for factor, store_id in enumerate(stores[:2], 1):
            row("sale", store_id=store_id, sold_at=sold_at, amount=amount * factor)
    tick = datetime.fromisoformat("2026-05-06T03:00:00+09:00")
    day = date(2026, 5, 5)
    Scheduler(using="default").run_at(tick)
    assert seen("SELECT payload->>'target_date', tick FROM salon_jobs_job WHERE task = 'aggregate-daily-sales'") == [
        ("2026-05-05", tick)
    ]
    run_due(process_id)
    assert seen(
        "SELECT payload->>'target_date', job_key, tick FROM salon_jobs_job"
        " WHERE task = 'aggregate-daily-sales-for-store' ORDER BY store_id"
    ) == [("2026-05-05", f"aggregate_daily_sales:{store_id}:{day}", tick) for store_id in stores]
    run_due(process_id)
    assert seen("SELECT store_id, business_date, total, count FROM daily_sales ORDER BY store_id") == [
        (stores[0], day, 320, 2),
        (stores[1], day, 640, 2),
        (stores[2], day, 0, 0),
    ]
    assert seen("SELECT task, state FROM salon_jobs_job") == []


def test_gwt_08_deleted_customers_are_gone(stores: list[UUID], process_id: int) -> None:
    cutoff = NOW - timedelta(days=90)
    second = timedelta(seconds=1)
    deleted_at = {"long ago": cutoff - second, "at the cutoff": cutoff, "lately": cutoff + second, "living": None}
    for store_id in stores[:2]:
        for name, instant in deleted_at.items():
            row("customer", store_id=store_id, name=name, email="", deleted_at=instant)
    Scheduler(using="default").run_at(NOW)
    while jobs := claim(process_id):
        for job in jobs:
            run(job, process_id)
    for store_id in stores[:2]:
        left = {name for (name,) in seen("SELECT name FROM customer WHERE store_id = %s", store_id)}
        assert left == {"at the cutoff", "lately", "living"}
    assert seen("SELECT count(*) FROM salon_jobs_job WHERE state <> 'queued'") == [(0,)]


@pytest.mark.parametrize("declared", [tasks.in_store, tasks.outside])
def test_gwt_09_database_failure_is_retried(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, declared: Task[..., None]
) -> None:
    """The server ends the backend of the running handler, before the handler's transaction can commit."""
    backends: list[int] = []
    faults = 2

    def write_and_lose_the_connection(**_: object) -> None:
        with transaction.atomic():
            write(f"attempt {current_job().attempt}")
            backends.append(connections["default"].connection.info.backend_pid)
            if len(backends) <= faults:
                change("SELECT pg_terminate_backend(%s, 5000)", backends[-1])
            Customer.objects.count()

    def run_attempts() -> None:
        while seen("SELECT FROM salon_jobs_job WHERE state = 'queued'"):
            change("UPDATE salon_jobs_job SET run_at = now() WHERE state = 'queued'")
            run_on_threads(process_id)

    hooks.store = write_and_lose_the_connection
    errors = "SELECT attempt, error_class FROM salon_jobs_job_error WHERE job_id = %s ORDER BY id"
    handle = declared.enqueue(store_id=stores[0])
    run_attempts()
    assert len(set(backends)) == 3, "each attempt has a connection of its own"
    assert seen(errors, handle.id) == [(attempt, "django.db.utils.OperationalError") for attempt in (1, 2)]
    assert written() == ["attempt 3"]
    assert job_row(handle.id) is None
    backends.clear()
    faults = 99
    handle = declared.enqueue(store_id=stores[0])
    run_attempts()
    assert len(set(backends)) == 3
    assert seen(errors, handle.id) == [(attempt, "django.db.utils.OperationalError") for attempt in (1, 2, 3)]
    assert seen("SELECT state, attempts FROM salon_jobs_job") == [("failed", 3)]
    assert written() == ["attempt 3"]


@pytest.mark.process
def test_gwt_10_exhausted_attempts_are_one_event(stores: list[UUID]) -> None:
    """Worker processes with the project's own settings report to a server that stands in for Sentry."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    invitation = row("operator_invitation", store_id=stores[0], email="a@example.com", token="a", expires_at=tomorrow)
    handle = send_operator_invitation_email.using(max_attempts=2).enqueue(store_id=stores[0], invitation_id=invitation)
    sentry = SentryServer()
    with sentry.serving(), closed_port() as mail_port:
        for attempt in (1, 2):
            assert sentry.events == [], "a retry is no event"
            change("UPDATE salon_jobs_job SET run_at = now()")
            succeed("runworker", "--burst", SENTRY_DSN=sentry.dsn, EMAIL_PORT=str(mail_port))
            assert seen("SELECT attempts FROM salon_jobs_job") == [(attempt,)]
        assert seen("SELECT state FROM salon_jobs_job") == [("failed",)]
    [event] = sentry.events
    tags = event["tags"]
    assert (tags["task_name"], tags["store_id"]) == ("send-operator-invitation-email", str(stores[0]))
    assert (int(tags["attempt"]), int(tags["job_id"])) == (2, handle.id)
    assert event["exception"]["values"][-1]["type"] == "ConnectionRefusedError"
    assert event["environment"] == "prod"
    assert "a@example.com" not in json.dumps(event), "no personal data"


@pytest.mark.process
def test_gwt_10_reported_failure_is_one_event(stores: list[UUID]) -> None:
    """The SDK drops a second event of one exception, so the event of the handler has the fields."""
    ids = {e2e_tasks.report_and_fail.enqueue(store_id=stores[0], captures=captures).id for captures in (False, True)}
    sentry = SentryServer()
    with sentry.serving():
        for attempt in (1, 2):
            change("UPDATE salon_jobs_job SET run_at = now()")
            settings = {"DJANGO_SETTINGS_MODULE": "tests.e2e.worker_settings", "SENTRY_DSN": sentry.dsn}
            succeed("runworker", "--burst", **settings)
            assert len(sentry.events) == 2 * attempt, "each failed attempt is the one event of its handler"
    assert seen("SELECT state FROM salon_jobs_job") == [("failed",)] * 2
    for number, event in enumerate(sentry.events):
        assert event["exception"]["values"][-1]["value"] == "the till is closed"
        tags = event["tags"]
        assert (tags["task_name"], tags["store_id"]) == ("e2e-report-and-fail", str(stores[0]))
        assert int(tags["attempt"]) == 1 + number // 2
    tagged = [int(event["tags"]["job_id"]) for event in sentry.events]
    assert set(tagged[:2]) == set(tagged[2:]) == ids


def test_gwt_13_task_reaches_own_store_alone(stores: list[UUID], process_id: int, hooks: tasks.Hooks) -> None:
    for store_id in stores:
        row("customer", store_id=store_id, name=str(store_id), email="")
    assert seen("SELECT count(*) FROM customer") == [(3,)], "the owner sees them all"
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT current_user, count(*) FROM customer")
        assert cursor.fetchone() == ("worker_runtime", 0), "without a store the worker sees none"
    found: list[set[str]] = []

    def rename_everything(**_: object) -> None:
        found.append(set(Customer.objects.values_list("name", flat=True)))
        Customer.objects.update(name="renamed")
        Customer.objects.filter(store_id=stores[1]).delete()

    hooks.store = rename_everything
    tasks.in_store.enqueue(store_id=stores[0])
    run_due(process_id)
    assert found == [{str(stores[0])}]
    assert dict(seen("SELECT store_id, name FROM customer")) == {
        stores[0]: "renamed",
        stores[1]: str(stores[1]),
        stores[2]: str(stores[2]),
    }
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT current_setting('app.current_store_id', true), count(*) FROM customer")
        assert cursor.fetchone() == ("", 0), "the store was set for the transaction alone"
