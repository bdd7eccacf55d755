"""Tests workers with queues left out, and with children that are replaced after a number of jobs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command

from tests.e2e import tasks
from tests.e2e.held import Held
from tests.e2e.worker_process import WorkerProcess
from tests.support import change, seen
from tests.waiting import eventually


def test_excluded_queues_are_left_to_others(database: None) -> None:
    change("INSERT INTO salon_jobs_job (task, queue) SELECT 'ping', unnest(ARRAY['default', 'bulk', 'slow', 'quick'])")
    with WorkerProcess("--exclude-queue", "bulk", "--exclude-queue", "slow") as worker:
        eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job"), [(2,)])
        assert seen("SELECT DISTINCT queues::text FROM salon_jobs_process") == [('["!bulk", "!slow"]',)]
        # It wakes up for all, and claims again after the others have run.
        change("INSERT INTO salon_jobs_job (task, queue) VALUES ('ping', 'bulk'), ('ping', 'quick')")
        eventually(lambda: len(worker.logged("job_succeeded")), 3)
        assert {record["queue"] for record in worker.logged("job_succeeded")} == {"default", "quick"}
        assert worker.end() == 0
    with WorkerProcess("--burst", "--queue", "bulk") as worker:
        assert worker.wait() == 0
    assert seen("SELECT queue FROM salon_jobs_job") == [("slow",)]


def test_queue_and_excluded_queue_exclude_each_other() -> None:
    with pytest.raises(CommandError, match="argument --exclude-queue: not allowed with argument --queue"):
        call_command("runworker", "--queue", "a", "--exclude-queue", "b")


@pytest.mark.parametrize("pool", [True, {"timeout": 20}], ids=["True", "without a size"])
def test_pool_gives_each_thread_connection(stores: list[UUID], held: Held, pool: Any) -> None:
    """A worker with Django's pool takes what it needs, with an embedded loop too, and no more than without a pool."""
    for _ in range(12):
        held.enqueue(tasks.wait_for_file, store_id=stores[0])
    with WorkerProcess("--concurrency", "12", "--with-scheduler", POOL=pool, ready=True) as worker:
        held.wait_for_runs(12)
        # A scan that took long goes on beside, with a connection of its own.
        eventually(
            lambda: 12 <= len(connections_of_workers()) <= 12 + 3 + 3, what=lambda: str(connections_of_workers())
        )
        held.let_go()
        eventually(lambda: len(worker.logged("job_succeeded")), 12)
        assert worker.ask("/readyz")[0] == 200
        assert worker.end() == 0
    assert "PoolTimeout" not in worker.output


def test_pool_that_is_too_small_is_refused(database: None) -> None:
    with WorkerProcess("--concurrency", "8", POOL={"min_size": 1, "max_size": 10}) as worker:
        assert worker.wait() == 1
        assert "gives at most 10 connections, and a process of a worker keeps 19: remove min_size" in worker.output


def connections_of_workers() -> list[tuple[Any, ...]]:
    """Return the name and last statement of each connection of the processes that have a row."""
    return seen(
        "SELECT application_name, state, left(query, 60) FROM pg_stat_activity"
        " WHERE datname = current_database()"
        " AND application_name IN (SELECT 'salon_jobs/' || id FROM salon_jobs_process)"
    )


@pytest.mark.parametrize("option", [True, False])
def test_child_is_replaced_after_its_jobs(stores: list[UUID], held: Held, option: bool) -> None:
    long = held.enqueue(store_id=stores[0])
    words = ("--max-jobs-per-child", "4") if option else ()
    settings: dict[str, Any] = {} if option else {"MAX_JOBS_PER_CHILD": 4}
    with WorkerProcess("--concurrency", "2", *words, **settings) as worker:
        held.wait_for_runs(1)
        change("INSERT INTO salon_jobs_job (task) SELECT 'ping' FROM generate_series(1, 9)")
        eventually(lambda: len(worker.logged("job_succeeded")), 3)
        assert len(worker.logged("process_started", kind="worker")) == 1, "it waits for its long job"
        assert worker.ask("/readyz")[0] == 200
        held.let_go()
        eventually(lambda: len(worker.logged("job_succeeded")), 10)
        assert len(worker.logged("process_started", kind="worker")) == 3
        assert [record["jobs"] for record in worker.logged("process_draining")] == [4, 4]
        assert not worker.logged("job_released")
        assert not worker.logged("child_died")
        assert worker.end() == 0
    assert [record["job_id"] for record in worker.logged("job_succeeded", task_name="e2e-wait-for-file")] == [long]
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]
