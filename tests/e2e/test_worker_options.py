"""Runs workers with queues left out, and with children that are replaced after a number of jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command

from tests.conftest import manage
from tests.e2e import tasks
from tests.e2e.worker_process import WorkerProcess
from tests.settings import url_for
from tests.support import change, seen
from tests.waiting import eventually

URL = url_for("worker_runtime")


def test_an_excluded_queue_is_left_to_others(database: None) -> None:
    change("INSERT INTO salon_jobs_job (task, queue) SELECT 'ping', unnest(ARRAY['default', 'bulk', 'slow', 'quick'])")
    with WorkerProcess("--exclude-queue", "bulk", "--exclude-queue", "slow", url=URL) as worker:
        eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job"), [(2,)])
        assert seen("SELECT DISTINCT queues::text FROM salon_jobs_process") == [('["!bulk", "!slow"]',)]
        # It wakes up for all, and claims again after the others have run.
        change("INSERT INTO salon_jobs_job (task, queue) VALUES ('ping', 'bulk'), ('ping', 'quick')")
        eventually(lambda: len(worker.logged("job_succeeded")), 3)
        assert {record["queue"] for record in worker.logged("job_succeeded")} == {"default", "quick"}
        worker.stop()
        assert worker.wait() == 0
    done = manage("runworker", "--burst", "--queue", "bulk")
    assert done.returncode == 0, done.stderr
    assert seen("SELECT queue FROM salon_jobs_job") == [("slow",)]


def test_an_excluded_queue_and_a_chosen_one_contradict_each_other() -> None:
    with pytest.raises(CommandError, match="argument --exclude-queue: not allowed with argument --queue"):
        call_command("runworker", "--queue", "a", "--exclude-queue", "b")


@pytest.mark.parametrize("option", [True, False])
def test_a_child_is_replaced_after_its_jobs_and_none_is_lost(stores: list[UUID], tmp_path: Path, option: bool) -> None:
    started, gate = tmp_path / "started", tmp_path / "gate"
    long = tasks.wait_for_file.enqueue(store_id=stores[0], started=str(started), gate=str(gate)).id
    words = ("--max-jobs-per-child", "4") if option else ()
    settings: dict[str, Any] = {} if option else {"MAX_JOBS_PER_CHILD": 4}
    with WorkerProcess("--concurrency", "2", *words, url=URL, **settings) as worker:
        eventually(started.exists)
        change("INSERT INTO salon_jobs_job (task) SELECT 'ping' FROM generate_series(1, 9)")
        eventually(lambda: len(worker.logged("job_succeeded")), 3)
        assert len(worker.logged("process_started", kind="worker")) == 1, "it waits for its long job"
        assert worker.ask("/readyz")[0] == 200
        gate.touch()
        eventually(lambda: len(worker.logged("job_succeeded")), 10)
        assert len(worker.logged("process_started", kind="worker")) == 3
        assert [record["jobs"] for record in worker.logged("process_draining")] == [4, 4]
        assert not worker.logged("job_released")
        assert not worker.logged("child_died")
        worker.stop()
        assert worker.wait() == 0
    assert {record["job_id"] for record in worker.logged("job_succeeded", task_name="e2e-wait-for-file")} == {long}
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]
