"""Holds the acceptance tests of the specification that run tasks of the demo project, as the worker role."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from uuid import UUID, uuid4

from django.db import connections

from project.salon.models import Customer
from project.salon.tasks.reservation import expire_tentative_reservations
from salon_jobs.jobs import store
from salon_jobs.schedule.scheduler import Scheduler
from tests import tasks
from tests.support import change, claim, run, run_due, seen

NOW = datetime(2026, 5, 5, 17, tzinfo=UTC)


def _store_jobs() -> list[tuple[str, UUID, str]]:
    return [
        (row[0], row[1], row[2])
        for row in seen("SELECT task, store_id, state FROM salon_jobs_job WHERE store_id IS NOT NULL ORDER BY store_id")
    ]


def test_gwt_05_a_system_task_fans_out_to_every_store(stores: list[UUID], process_id: int) -> None:
    expire_tentative_reservations.enqueue(reason="cron")
    run_due(process_id)
    assert _store_jobs() == [("expire-tentative-for-store", store_id, "queued") for store_id in stores]


def test_gwt_06_running_it_again_adds_no_duplicates(stores: list[UUID], process_id: int) -> None:
    for _ in range(2):
        expire_tentative_reservations.enqueue(reason="cron")
        claimed = claim(process_id)
        store.requeue([(job.id, job.lease) for job in claimed if job.store_id is not None], process_id)
        for job in claimed:
            if job.store_id is None:
                run(job, process_id)
    assert _store_jobs() == [("expire-tentative-for-store", store_id, "queued") for store_id in stores]


def test_gwt_07_the_tick_of_three_in_the_morning_aggregates_the_day_before(stores: list[UUID], process_id: int) -> None:
    tick = datetime.fromisoformat("2026-05-06T03:00:00+09:00")
    Scheduler().run_at(tick)
    assert seen("SELECT payload->>'target_date', tick FROM salon_jobs_job WHERE task = 'aggregate-daily-sales'") == [
        ("2026-05-05", tick)
    ]
    for job in claim(process_id):
        run(job, process_id)
    assert seen(
        "SELECT payload->>'target_date', job_key, tick FROM salon_jobs_job"
        " WHERE task = 'aggregate-daily-sales-for-store' ORDER BY store_id"
    ) == [("2026-05-05", f"aggregate_daily_sales:{store_id}:{date(2026, 5, 5)}", tick) for store_id in stores]


def test_gwt_08_customers_deleted_ninety_days_ago_are_physically_gone(stores: list[UUID], process_id: int) -> None:
    cutoff = NOW - timedelta(days=90)
    second = timedelta(seconds=1)
    deleted_at = {"long ago": cutoff - second, "at the cutoff": cutoff, "lately": cutoff + second, "living": None}
    for store_id in stores[:2]:
        for name, instant in deleted_at.items():
            change(
                "INSERT INTO customer (id, store_id, name, email, deleted_at) VALUES (%s, %s, %s, '', %s)",
                uuid4(), store_id, name, instant,
            )  # fmt: skip
    Scheduler().run_at(NOW)
    while jobs := claim(process_id):
        for job in jobs:
            run(job, process_id)
    for store_id in stores[:2]:
        left = {row[0] for row in seen("SELECT name FROM customer WHERE store_id = %s", store_id)}
        assert left == {"at the cutoff", "lately", "living"}
    assert seen("SELECT count(*) FROM salon_jobs_job WHERE state <> 'queued'") == [(0,)]


def test_gwt_13_a_store_task_sees_and_changes_its_own_store_alone(
    stores: list[UUID], process_id: int, hooks: tasks.Hooks
) -> None:
    for store_id in stores:
        change(
            "INSERT INTO customer (id, store_id, name, email) VALUES (%s, %s, %s, '')", uuid4(), store_id, str(store_id)
        )
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
        stores[0]: "renamed", stores[1]: str(stores[1]), stores[2]: str(stores[2]),
    }  # fmt: skip


def test_the_cutoff_is_the_ticks_however_late_the_job_runs(stores: list[UUID], process_id: int) -> None:
    for _ in range(2):
        change("TRUNCATE salon_jobs_job, salon_jobs_cron_tick, salon_jobs_fan_out")
        Scheduler().run_at(NOW)
        run_due(process_id)
        keys = seen(
            "SELECT job_key FROM salon_jobs_job WHERE store_id = %s AND task = 'cleanup-deleted-customers-for-store'",
            stores[0],
        )
        assert keys == [(f"cleanup_customers:{stores[0]}:2026-02-04T17:00:00Z",)]
