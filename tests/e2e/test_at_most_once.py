"""Tests that a task declared at_most_once starts once, whatever is killed while it runs."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from django.db import transaction

from tests.e2e import tasks
from tests.e2e.held import Held
from tests.e2e.worker_process import ENDS_IN_TIME, KEEPS, QUICK, WorkerProcess
from tests.support import seen
from tests.waiting import eventually

FAILED = ("failed", "JOB.NOT_REPEATED", 1)


def ends() -> list[tuple[Any, ...]]:
    return seen("SELECT state, reason, attempts FROM salon_jobs_job ORDER BY id")


@pytest.mark.parametrize("whole", [False, True], ids=["child", "supervisor too"])
def test_killed_run_is_not_repeated(database: None, held: Held, *, whole: bool) -> None:
    with WorkerProcess("--concurrency", "1", PATCHES=KEEPS, **QUICK) as first:
        worker = first
        process_id, pid = worker.child()
        worker.wait_for("job_succeeded", job_id=tasks.nothing.enqueue().id)  # it prefetches once it knows how long
        with transaction.atomic():
            for number in range(2):
                held.enqueue(tasks.once, {"priority": number})
        held.wait_for_runs(1)
        if whole:
            eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job WHERE leased_by = %s", process_id), [(2,)])
            worker.kill()
            worker = WorkerProcess("--concurrency", "1", **QUICK)
        else:
            os.kill(pid, signal.SIGKILL)
        with worker:
            eventually(lambda: FAILED in ends())
            held.let_go()
            eventually(ends, [FAILED])
            assert worker.wait_until_ready().end() == 0
    assert held.runs() == ["1", "1"], "each job once: the second had not begun, and did later"


def test_run_that_outlasts_a_shutdown_fails(database: None, held: Held) -> None:
    with WorkerProcess("--concurrency", "1", SHUTDOWN_GRACE=3, PATCHES=ENDS_IN_TIME, ready=True) as worker:
        held.begin(tasks.once)
        assert worker.end() == 0
        [failed] = worker.logged("job_failed")
        assert failed["code"] == "JOB.NOT_REPEATED"
    assert ends() == [FAILED]
    assert held.runs() == ["1"]
