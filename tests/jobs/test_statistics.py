"""Counts ended runs in memory and adds them to the database, from many threads and processes, through outages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import psycopg
import pytest
from django.db import DatabaseError, connection, connections

from salon_jobs.core import events
from salon_jobs.core.metrics import BUCKETS, bucket_of
from salon_jobs.core.outcomes import Discard, Released, Snooze
from salon_jobs.dashboard.queues import SPANS, history
from salon_jobs.jobs import statistics
from salon_jobs.jobs.pruning import PruneCounts, Pruner
from salon_jobs.jobs.run import JobRun
from salon_jobs.jobs.statistics import STORED_OUTCOMES, TaskStatistics, totals
from salon_jobs.worker import ends
from salon_jobs.worker import maintenance as maintenance_module
from salon_jobs.worker.maintenance import Maintenance
from salon_jobs.worker.worker import Worker, WorkerOptions
from tests import tasks
from tests.jobs.threads import together
from tests.settings import url_for
from tests.support import be_silent, change, claim, rescuer, run_due, running_job, seen
from tests.tasks import Hooks
from tests.waiting import LIMIT_S

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> TaskStatistics:
    """Give each test statistics of its own."""
    fresh = TaskStatistics()
    for module in (ends, maintenance_module, statistics):
        monkeypatch.setattr(module, "ended_runs", fresh)
    monkeypatch.setattr("salon_jobs.worker.worker.ended_runs", fresh)
    return fresh


def outcomes() -> dict[str, dict[str, int]]:
    """Return what was counted of each task, without zeros, as the operator sees it."""
    return {each.task: {k: v for k, v in each.outcomes.items() if v} for each in totals(HOUR, using="operator")}


def ended_run(process_id: int, *, took_s: float = 1, waited_s: float = 1) -> JobRun:
    """Return a run of a claimed job that took and waited so long."""
    tasks.system.enqueue()
    [job] = claim(process_id, 1)
    running = running_job(job, process_id)
    running.started = job.due_at + waited_s
    running.ended = running.started + took_s
    return running


ONE: dict[str, dict[str, int]] = {"test-system": {"succeeded": 1}}


ERRORS = [None, Snooze(timedelta(days=1)), Discard("gone"), ValueError("once"), OSError("for the last time")]


def test_every_end_is_counted(stores: list[UUID], process_id: int, hooks: Hooks, counted: TaskStatistics) -> None:
    def handler(number: int, **_: object) -> None:
        if error := ERRORS[number]:
            raise error

    hooks.store = handler
    for number, error in enumerate(ERRORS):
        attempts = 1 if isinstance(error, OSError) else 3
        tasks.in_store.using(max_attempts=attempts).enqueue(store_id=stores[0], number=number)
        run_due(process_id)
    tasks.in_store.enqueue(store_id=stores[0])
    [job] = claim(process_id)
    ends.settle(running_job(job, process_id), Released())
    counted.flush(using="default")
    ended = ("succeeded", "snoozed", "cancelled", "retried", "failed", "released")
    assert outcomes() == {"test-store": dict.fromkeys(ended, 1)}
    [of_store] = totals(HOUR, using="operator")
    assert of_store.runs == 5, "a run that was interrupted says nothing about how long it takes"


def test_no_percentile_exceeds_the_longest(process_id: int, counted: TaskStatistics) -> None:
    runs = [ended_run(process_id, took_s=took_s, waited_s=waited_s) for took_s, waited_s in ((0.2, 8.6), (0.5, 8.1))]
    for run in runs:
        counted.count(events.JOB_SUCCEEDED, [run])
        counted.flush(using="default")
    [total] = totals(HOUR, using="operator")
    assert total.duration_max_s == pytest.approx(0.5, abs=0.01)
    assert total.wait(0.95) == pytest.approx(8.6, abs=0.01)
    steps = history(SPANS["hour"], using="operator", now=datetime.now(UTC) + timedelta(minutes=2))
    # Two steps, if a minute ended meanwhile.
    assert max(step.wait_p95_s or 0 for step in steps) == pytest.approx(8.6, abs=0.01)


def test_rescued_jobs_are_counted(stores: list[UUID], process_id: int, counted: TaskStatistics) -> None:
    tasks.in_store.enqueue(store_id=stores[0])
    tasks.system.using(queue="other", max_attempts=1).enqueue()
    claim(process_id)
    change("UPDATE salon_jobs_job SET rescues = 5 WHERE queue = 'other'")
    be_silent(process_id)
    rescuer().run_once()
    counted.flush(using="default")
    assert outcomes() == {"test-store": {"rescued": 1}, "test-system": {"failed": 1}}
    assert seen("SELECT queue FROM salon_jobs_task_minute ORDER BY 1") == [("default",), ("other",)]


def test_durations_and_waits_are_added_up(process_id: int, counted: TaskStatistics) -> None:
    for took_s, waited_s in ((0.01, 100), (0.01, 100), (2, 0)):
        counted.count(events.JOB_SUCCEEDED, [ended_run(process_id, took_s=took_s, waited_s=waited_s)])
        counted.flush(using="default")
    [row] = totals(HOUR, using="operator")
    assert (row.outcomes, row.runs) == ({**dict.fromkeys(STORED_OUTCOMES, 0), "succeeded": 3}, 3)
    assert row.mean_duration_s == pytest.approx(2.02 / 3)
    assert row.mean_wait_s == pytest.approx(200 / 3)
    assert (row.durations[bucket_of(0.01)], row.durations[bucket_of(2)]) == (2, 1)
    assert (row.duration(0.5), row.duration(0.95)) == pytest.approx((0.01, 2), rel=0.42)


def test_stopping_worker_adds_batched_successes(process_id: int) -> None:
    for _ in range(3):
        tasks.system.enqueue()
    assert Worker(process_id, WorkerOptions(concurrency=2, burst=True), using="default").run()
    assert outcomes() == {"test-system": {"succeeded": 3}}


def test_empty_flush_adds_nothing(database: None, counted: TaskStatistics) -> None:
    counted.flush(using="default")
    counted.count(events.JOB_LEASE_LOST, [])
    counted.count(events.JOB_CALLBACK_FAILED, [])
    counted.flush(using="default")
    assert outcomes() == {}


def test_outage_keeps_counts(process_id: int, counted: TaskStatistics) -> None:
    counted.count(events.JOB_SUCCEEDED, [ended_run(process_id)])
    change("SELECT pg_terminate_backend(%s)", connection.connection.info.backend_pid)
    with pytest.raises(DatabaseError):
        counted.flush(using="default")
    connections["default"].close()
    counted.count(events.JOB_SUCCEEDED, [ended_run(process_id)])
    for _ in range(2):
        counted.flush(using="default")
    assert outcomes() == {"test-system": {"succeeded": 2}}


def test_flush_waits_its_time(process_id: int, counted: TaskStatistics, monkeypatch: pytest.MonkeyPatch) -> None:
    counted.count(events.JOB_SUCCEEDED, [ended_run(process_id)])
    for every_s, added in ((10_000.0, {}), (0.0, ONE)):
        monkeypatch.setattr(statistics, "FLUSH_EVERY_S", every_s)
        counted.flush_when_due(using="default")
        assert outcomes() == added


def test_stopping_maintenance_adds_counts(process_id: int, counted: TaskStatistics) -> None:
    counted.count(events.JOB_SUCCEEDED, [ended_run(process_id)])
    maintenance = Maintenance(using="default")
    maintenance.start()
    maintenance.stop()
    assert maintenance.join(LIMIT_S)
    assert outcomes() == ONE


def test_concurrent_counts_are_not_lost(process_id: int, counted: TaskStatistics) -> None:
    runs = [ended_run(process_id, took_s=0.001, waited_s=0)] * 10

    def count() -> None:
        for _ in range(100):
            counted.count(events.JOB_SUCCEEDED, runs)

    def flush() -> None:
        for _ in range(20):
            counted.flush(using="default")

    together(count, count, count, flush, flush, partial(counted.count, events.JOB_LEASE_LOST, []))
    counted.flush(using="default")
    assert outcomes() == {"test-system": {"succeeded": 3_000}}


def test_concurrent_flushes_do_not_deadlock(database: None) -> None:
    """Processes add the same tasks in any order."""
    names = [f"task-{number}" for number in range(50)]

    def add(order: list[str]) -> None:
        mine = TaskStatistics()
        for _ in range(4):
            for name in order:
                mine.count_untimed(events.JOB_RESCUED, name, "default")
            mine.flush(using="default")

    together(*(partial(add, names[::step]) for step in (1, -1, 1, -1)))
    assert outcomes() == {name: {"rescued": 16} for name in names}


def test_old_statistics_are_pruned(database: None) -> None:
    """Other pruners hold up none."""
    zeros = [0] * BUCKETS
    change(
        "INSERT INTO salon_jobs_task_minute SELECT now() - n * interval '1 minute' - interval '13 days 22:59:30',"
        " 'ping', 'default', 1, 0, 0, 0, 0, 0, 0, 0, %s, 0, %s FROM generate_series(1, 1560) AS n",
        zeros,
        zeros,
    )
    with psycopg.connect(url_for("worker_runtime")) as other:
        other.execute("SELECT FROM salon_jobs_task_minute ORDER BY minute LIMIT 100 FOR UPDATE")
        assert Pruner(using="default").run_once() == PruneCounts({"statistics": 1400})
    assert Pruner(using="default").run_once() == PruneCounts({"statistics": 100})
    assert seen("SELECT count(*) FROM salon_jobs_task_minute") == [(60,)]
