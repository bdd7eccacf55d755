"""Tests that a task declared at_most_once starts once, whatever is killed while it runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from tests.e2e import tasks
from tests.e2e.test_supervisor import QUICK, URL, child_of
from tests.e2e.worker_process import WorkerProcess
from tests.support import seen
from tests.waiting import eventually


def ends() -> list[tuple[Any, ...]]:
    return seen("SELECT state, reason, attempts FROM salon_jobs_job ORDER BY id")


FAILED = ("failed", "JOB.NOT_REPEATED", 1)


def begins(started: Path, gate: Path) -> None:
    tasks.once.enqueue(started=str(started), gate=str(gate))
    eventually(started.exists)


@pytest.mark.parametrize("whole", [False, True], ids=["child", "supervisor too"])
def test_a_run_that_was_killed_is_not_started_again(database: None, tmp_path: Path, *, whole: bool) -> None:
    started, gate = tmp_path / "started", tmp_path / "gate"
    with WorkerProcess("--concurrency", "1", url=URL, **QUICK) as worker:
        process_id, pid = child_of(worker)
        worker.wait_for("job_succeeded", job_id=tasks.nothing.enqueue().id)  # it prefetches once it knows how long
        with transaction.atomic():
            for number in range(2):
                tasks.once.using(priority=number).enqueue(started=str(started), gate=str(gate))
        eventually(started.exists)
        if whole:
            eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job WHERE leased_by = %s", process_id), [(2,)])
            worker.kill()
            with WorkerProcess("--concurrency", "1", url=URL, ready=True, **QUICK) as another:
                eventually(lambda: FAILED in ends())
                gate.touch()
                eventually(ends, [FAILED])
                assert another.end() == 0
        else:
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: FAILED in ends())
            gate.touch()
            eventually(ends, [FAILED])
            assert worker.end() == 0
    assert started.read_text() == "1\n1\n", "each job once: the second had not begun, and did later"


def test_a_run_that_outlasts_a_shutdown_fails(database: None, tmp_path: Path) -> None:
    started, gate = tmp_path / "started", tmp_path / "gate"
    settings = {"SHUTDOWN_GRACE": 3}
    with WorkerProcess("--concurrency", "1", url=URL, ready=True, **settings) as worker:
        begins(started, gate)
        assert worker.end() == 0
        [failed] = worker.logged("job_failed")
        assert failed["code"] == "JOB.NOT_REPEATED"
    assert ends() == [FAILED]
    assert started.read_text() == "1\n"
