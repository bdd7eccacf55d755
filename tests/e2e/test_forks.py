"""Shows what becomes of processes that a handler starts: copies of the worker, and programs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from uuid import UUID

import pytest

from tests.e2e import tasks
from tests.e2e.test_supervisor import child_of, gone
from tests.e2e.worker_process import WorkerProcess
from tests.settings import url_for
from tests.support import seen
from tests.waiting import eventually

URL = url_for("worker_runtime")


@pytest.mark.parametrize(("ends_by", "status"), [("return", 0), ("error", 1), ("exit", 7), ("close", 0)])
def test_a_handler_that_goes_on_in_a_copy_is_one_run(
    stores: list[UUID], tmp_path: Path, ends_by: str, status: int
) -> None:
    pid = tmp_path / "pid"
    with WorkerProcess("--concurrency", "1", url=URL) as worker:
        before = child_of(worker)
        job = tasks.fork.using(max_attempts=1).enqueue(store_id=stores[0], pid=str(pid), ends_by=ends_by)
        worker.wait_for("job_succeeded", job_id=job.id)
        after = [tasks.write.enqueue(store_id=store).id for store in stores]
        for job_id in after:
            worker.wait_for("job_succeeded", job_id=job_id)
        copy, ended = map(int, pid.read_text().split())
        assert (gone(copy), ended) == (True, status)
        assert child_of(worker) == before
        assert worker.end() == 0
        assert len(worker.logged("job_succeeded")) == 4
        assert not worker.logged("job_failed")
        assert not worker.logged("connection_discarded")
        assert ("in the copy" in worker.output) is (ends_by == "error")
    assert seen("SELECT count(*) FROM customer") == [(4,)]
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]


def test_a_coroutine_that_goes_on_in_a_copy_is_one_run(stores: list[UUID], tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with WorkerProcess(url=URL) as worker:
        worker.wait_for("job_succeeded", job_id=tasks.fork_in_coroutine.enqueue(pid=str(pid)).id)
        worker.wait_for("job_succeeded", job_id=tasks.nothing.enqueue().id)
        copy, ended = map(int, pid.read_text().split())
        assert (gone(copy), ended) == (True, 0)
        assert len(Path(f"{pid}-others").read_text().split()) == 1, "what was about to run goes on in the worker alone"
        assert worker.end() == 0
        assert len(worker.logged("job_succeeded")) == 2


def test_a_process_of_multiprocessing_uses_a_connection_of_its_own(stores: list[UUID], tmp_path: Path) -> None:
    with WorkerProcess(url=URL) as worker:
        job = tasks.multiprocess.enqueue(store_id=stores[0], done=str(tmp_path / "done"))
        worker.wait_for("job_succeeded", job_id=job.id)
        assert worker.end() == 0
    assert seen("SELECT count(*) FROM customer") == [(1,)]


@pytest.mark.parametrize("killed", [True, False])
def test_what_a_handler_leaves_running_ends_with_its_process(
    stores: list[UUID], tmp_path: Path, *, killed: bool
) -> None:
    copy, program = tmp_path / "copy", tmp_path / "program"
    with WorkerProcess(url=URL) as worker:
        process_id, pid = child_of(worker)
        for left, task in ((copy, tasks.fork_and_stay), (program, tasks.leave_behind)):
            worker.wait_for("job_succeeded", job_id=task.enqueue(pid=str(left)).id)
        pids = [int(left.read_text()) for left in (copy, program)]
        try:
            assert not any(map(gone, pids))
            if killed:
                os.kill(pid, signal.SIGKILL)
                eventually(lambda: all(map(gone, pids)))
                eventually(lambda: child_of(worker)[0] != process_id)
            assert worker.end() == 0
            eventually(lambda: all(map(gone, pids)))
        finally:
            for each in pids:
                if not gone(each):
                    os.kill(each, signal.SIGKILL)
