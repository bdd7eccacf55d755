"""Tests what becomes of processes that a handler starts: copies of the worker, and programs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from uuid import UUID

from tests.e2e import tasks
from tests.e2e.worker_process import WorkerProcess, gone
from tests.support import seen
from tests.waiting import eventually


def test_forked_handler_is_one_run(stores: list[UUID], tmp_path: Path) -> None:
    """It goes on in the worker alone, be it a function or a coroutine; a process has a connection of its own."""
    with WorkerProcess("--concurrency", "1") as worker:
        before = worker.child()

        def run(task: object, **arguments: object) -> None:
            job = task.using(max_attempts=1).enqueue(**arguments)  # type: ignore[attr-defined]
            worker.wait_for("job_succeeded", job_id=job.id)
            worker.wait_for("job_succeeded", job_id=tasks.write.enqueue(store_id=stores[1]).id)

        for ends_by, status in (("return", 0), ("error", 1), ("exit", 7), ("close", 0)):
            run(tasks.fork, store_id=stores[0], pid=str(pid := tmp_path / ends_by), ends_by=ends_by)
            copy, ended = map(int, pid.read_text().split())
            assert (gone(copy), ended) == (True, status), ends_by
            assert ("in the copy" in worker.output) is (ends_by != "return")
        run(tasks.fork_in_coroutine, pid=str(pid := tmp_path / "coroutine"))
        copy, ended = map(int, pid.read_text().split())
        assert (gone(copy), ended) == (True, 0)
        assert len(Path(f"{pid}-others").read_text().split()) == 1, "what was about to run goes on in the worker alone"
        run(tasks.multiprocess, store_id=stores[0], done=str(tmp_path / "done"))
        assert worker.child() == before
        assert worker.end() == 0
        assert len(worker.logged("job_succeeded")) == 12
        assert not worker.logged("job_failed")
        assert not worker.logged("connection_discarded")
    assert seen("SELECT count(*) FROM customer") == [(11,)]
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]


def test_processes_of_a_handler_end_with_the_worker(database: None, tmp_path: Path) -> None:
    """With its child when that is killed, and with it when it stops."""
    left: list[int] = []
    with WorkerProcess() as worker:
        process_id, pid = worker.child()

        def leave() -> list[int]:
            for task in (tasks.fork_and_stay, tasks.leave_behind):
                file = tmp_path / f"{len(left)}"
                worker.wait_for("job_succeeded", job_id=task.enqueue(pid=str(file)).id)
                left.append(int(file.read_text()))
            assert not any(map(gone, left[-2:]))
            return left[-2:]

        try:
            pids = leave()
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: gone(*pids))
            eventually(lambda: worker.child()[0] != process_id)
            pids = leave()
            assert worker.end() == 0
            eventually(lambda: gone(*pids))
        finally:
            for each in left:
                if not gone(each):
                    os.kill(each, signal.SIGKILL)
