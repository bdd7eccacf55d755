"""Counts ended runs in memory and adds them to the database, from many threads and processes, through outages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import DatabaseError, connection, connections

from salon_jobs.core import events
from salon_jobs.core.metrics import BUCKETS, bucket_of
from salon_jobs.core.outcomes import Discard, Released, Snooze
from salon_jobs.dashboard.queues import SPANS, history
from salon_jobs.jobs import statistics
from salon_jobs.jobs.current import RunningJob
from salon_jobs.jobs.pruning import PruneCounts, Pruner
from salon_jobs.jobs.statistics import STORED_OUTCOMES, TaskStatistics, totals
from salon_jobs.worker import ends
from salon_jobs.worker import maintenance as maintenance_module
from salon_jobs.worker.maintenance import Maintenance
from salon_jobs.worker.worker import Worker, WorkerOptions
from tests import tasks
from tests.settings import url_for
from tests.support import change, claim, elsewhere, rescuer, run_due, running_job, seen
from tests.tasks import Hooks

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


def ended_run(process_id: int, *, took_s: float, waited_s: float) -> RunningJob:
    """Return a run of a claimed job that took and waited so long."""
    tasks.system.enqueue()
    [job] = claim(process_id, 1)
    running = running_job(job._replace(due_at=job.due_at - waited_s), process_id)
    running.ended = running.started + took_s
    return running


def test_every_end_is_counted(stores: list[UUID], process_id: int, hooks: Hooks, counted: TaskStatistics) -> None:
    for error in (None, Snooze(timedelta(days=1)), Discard("gone"), ValueError("once")):
        hooks.store = _raising(error)
        tasks.in_store.enqueue(store_id=stores[0])
        run_due(process_id)
    hooks.store = _raising(ValueError("for the last time"))
    tasks.in_store.using(max_attempts=1).enqueue(store_id=stores[0])
    run_due(process_id)
    tasks.in_store.enqueue(store_id=stores[0])
    [job] = claim(process_id)
    ends.settle(running_job(job, process_id), Released())
    counted.flush(using="default")
    assert outcomes() == {
        "test-store": {"succeeded": 1, "snoozed": 1, "cancelled": 1, "retried": 1, "failed": 1, "released": 1}
    }
    [of_store] = totals(HOUR, using="operator")
    assert of_store.runs == 5, "a run that was interrupted says nothing about how long it takes"


def test_no_percentile_exceeds_the_longest(process_id: int, counted: TaskStatistics) -> None:
    runs = [ended_run(process_id, took_s=took_s, waited_s=waited_s) for took_s, waited_s in ((0.2, 8.6), (0.5, 8.1))]
    longest_wait_s = max(run.waited_s for run in runs)
    for run in runs:
        counted.count(events.JOB_SUCCEEDED, [run])
        counted.flush(using="default")
    [total] = totals(HOUR, using="operator")
    assert total.duration_max_s == pytest.approx(0.5, abs=0.01)
    assert total.wait(0.95) == pytest.approx(longest_wait_s, abs=0.1)
    steps = history(SPANS["hour"], using="operator", now=datetime.now(UTC) + timedelta(minutes=2))
    # Two steps, if a minute ended meanwhile.
    assert max(step.wait_p95_s or 0 for step in steps) == pytest.approx(longest_wait_s, abs=0.1)


def test_rescued_jobs_are_counted(stores: list[UUID], process_id: int, counted: TaskStatistics) -> None:
    tasks.in_store.enqueue(store_id=stores[0])
    tasks.system.using(queue="other", max_attempts=1).enqueue()
    claim(process_id)
    change("UPDATE salon_jobs_job SET rescues = 5 WHERE queue = 'other'")
    change("UPDATE salon_jobs_process SET heartbeat_at = now() - interval '16 s'")
    rescuer().run_once()
    counted.flush(using="default")
    assert outcomes() == {"test-store": {"rescued": 1}, "test-system": {"failed": 1}}
    assert seen("SELECT queue FROM salon_jobs_task_minute ORDER BY 1") == [("default",), ("other",)]


def test_durations_and_waits_are_added_up(process_id: int, counted: TaskStatistics) -> None:
    for took_s, waited_s in ((0.01, 100), (0.01, 100), (2, 0)):
        counted.count(events.JOB_SUCCEEDED, [ended_run(process_id, took_s=took_s, waited_s=waited_s)])
        counted.flush(using="default")
    [row] = totals(HOUR, using="operator")
    assert row.outcomes == {**dict.fromkeys(STORED_OUTCOMES, 0), "succeeded": 3}
    assert row.runs == 3
    assert row.mean_duration_s == pytest.approx(2.02 / 3)
    assert row.mean_wait_s == pytest.approx(200 / 3, abs=5)
    assert row.durations[bucket_of(0.01)] == 2
    assert row.durations[bucket_of(2)] == 1
    assert row.duration(0.5) == pytest.approx(0.01, rel=0.42)
    assert row.duration(0.95) == pytest.approx(2, rel=0.42)
    assert row.wait(0.95) == pytest.approx(100, rel=0.42)


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
    counted.count(events.JOB_SUCCEEDED, [ended_run(process_id, took_s=1, waited_s=1)])
    change("SELECT pg_terminate_backend(%s)", connection.connection.info.backend_pid)
    with pytest.raises(DatabaseError):
        counted.flush(using="default")
    connections["default"].close()
    counted.count(events.JOB_SUCCEEDED, [ended_run(process_id, took_s=1, waited_s=1)])
    counted.flush(using="default")
    counted.flush(using="default")
    assert outcomes() == {"test-system": {"succeeded": 2}}


def test_flush_waits_its_time(process_id: int, counted: TaskStatistics, monkeypatch: pytest.MonkeyPatch) -> None:
    counted.count(events.JOB_SUCCEEDED, [ended_run(process_id, took_s=1, waited_s=1)])
    counted.flush_when_due(using="default")
    assert outcomes() == {}
    monkeypatch.setattr(statistics, "FLUSH_EVERY_S", 0.0)
    counted.flush_when_due(using="default")
    assert outcomes() == {"test-system": {"succeeded": 1}}


def test_stopping_maintenance_adds_counts(process_id: int, counted: TaskStatistics) -> None:
    counted.count(events.JOB_SUCCEEDED, [ended_run(process_id, took_s=1, waited_s=1)])
    maintenance = Maintenance(using="default")
    maintenance.start()
    maintenance.stop()
    assert maintenance.join(10)
    assert outcomes() == {"test-system": {"succeeded": 1}}


def together(*works: Callable[[], object]) -> None:
    """Run on threads of their own that begin at once."""
    ready = threading.Barrier(len(works))
    with ThreadPoolExecutor(len(works)) as pool:
        for each in [elsewhere(pool, partial(lambda work: (ready.wait(10), work()), work)) for work in works]:
            each.result(60)


def test_concurrent_counts_are_not_lost(process_id: int, counted: TaskStatistics) -> None:
    runs = [ended_run(process_id, took_s=0.001, waited_s=0)] * 10

    def count() -> None:
        for _ in range(100):
            counted.count(events.JOB_SUCCEEDED, runs)

    def flush() -> None:
        for _ in range(20):
            counted.flush(using="default")

    together(count, count, count, flush, flush)
    counted.flush(using="default")
    assert outcomes() == {"test-system": {"succeeded": 3_000}}


def test_concurrent_flushes_do_not_deadlock(database: None) -> None:
    names = [f"task-{number}" for number in range(50)]

    def add(order: list[str]) -> None:
        mine = TaskStatistics()
        for _ in range(10):
            for name in order:
                mine.count_untimed(events.JOB_RESCUED, name, "default")
            mine.flush(using="default")

    together(*(partial(add, names[::step]) for step in (1, -1, 1, -1)))
    assert outcomes() == {name: {"rescued": 40} for name in names}


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


def _raising(error: Exception | None) -> Any:
    def handler(*_: object, **__: object) -> None:
        if error is not None:
            raise error

    return handler
