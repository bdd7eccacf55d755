"""What the verdict says of real workers: killed over and over, and stopped."""

from __future__ import annotations

import os
import signal
from datetime import datetime
from uuid import UUID

from salon_jobs.dashboard.facts import Facts
from salon_jobs.dashboard.verdict import Problem, problems
from tests.e2e import tasks
from tests.e2e.held import Held
from tests.e2e.worker_process import WorkerProcess
from tests.support import seen
from tests.waiting import eventually

RUNS_IN = "SELECT p.pid FROM salon_jobs_job j JOIN salon_jobs_process p ON p.id = j.leased_by WHERE j.id = %s"


def found() -> dict[str, Problem]:
    return {problem.kind: problem for problem in problems(Facts(using="operator"))}


def clock() -> datetime:
    [(now,)] = seen("SELECT clock_timestamp()")
    assert isinstance(now, datetime)
    return now


def test_workers_that_are_killed_and_stopped(stores: list[UUID], held: Held) -> None:
    began = clock()
    with WorkerProcess("--concurrency", "1") as worker:
        job_id = held.begin(store_id=stores[0])
        for deaths in (1, 2):
            [(pid,)] = seen(RUNS_IN, job_id)
            os.kill(pid, signal.SIGKILL)
            held.wait_for_runs(deaths + 1)
        died = found()["processes-died"]
        assert died.text == f"2 processes died, 2 with job {job_id}, {tasks.wait_for_file.name}"
        assert died.since is not None
        assert began < died.since < clock()
        assert "no-worker" not in found()
        held.let_go()
        eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job"), [(0,)])
        stopping = clock()
        assert worker.end() == 0
    ended = found()
    assert ended["processes-died"].text == f"2 processes died, 2 with job {job_id}", "the task of a job that is gone"
    assert ended["no-worker"].since is not None
    assert stopping < ended["no-worker"].since < clock()
