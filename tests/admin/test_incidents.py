"""Makes incidents by real processes: dashboard, commands and ``/readyz`` over HTTP tell the same, as SQL counts."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from django.test import Client

from salon_jobs import tenant_context
from salon_jobs.core.records import StoreId
from tests.admin.pages import text_of
from tests.e2e.held import Held
from tests.e2e.worker_process import SchedulerProcess, WorkerProcess
from tests.management.operator import problems, run
from tests.support import change, seen
from tests.waiting import eventually

pytestmark = pytest.mark.process
OFTEN = {"salon_jobs.process.known_problems._READ_EVERY_S": 0.0}


def agreed(kind: str, operator: Client, worker: WorkerProcess) -> str:
    """Wait until readiness names the only problem, too; return its text, which is the same wherever it is shown."""
    eventually(lambda: [each["kind"] for each in problems()], [kind])
    [problem] = problems()

    def is_on_readyz() -> bool:
        shown = worker.readiness().get("problems", [])  # none as long as it is not ready
        return [each.startswith(problem["public"]) and each.endswith(problem["remedy"]) for each in shown] == [True]

    eventually(is_on_readyz, what=lambda: f"{worker.readiness()} instead of {problem}")
    page, page_of_terminal = text_of(operator, "dashboard/"), run("top", "--once")[0]
    assert "1 problem:" in page
    for each in (problem["text"], problem["remedy"]):
        assert each in page
        assert each in page_of_terminal
    return str(problem["text"])


def test_killed_process_is_named_everywhere(operator: Client, stores: list[StoreId], tmp_path: Path) -> None:
    """With the job that it ran, for a quarter of an hour."""
    held = Held(tmp_path / "held")
    with WorkerProcess("--with-scheduler", ready=True, PATCHES=OFTEN) as worker:
        eventually(lambda: worker.readiness().get("problems"), [])
        with tenant_context(stores[0]):
            job_id = held.enqueue(store_id=stores[0])
        held.wait_for_runs(1)
        os.kill(worker.child()[1], signal.SIGKILL)
        held.wait_for_runs(2)
        said = agreed("processes-died", operator, worker)
        [(deaths, jobs)] = seen("SELECT count(*), min(jobs::text) FROM salon_jobs_ended_process WHERE died")
        assert (deaths, jobs) == (1, f"[{job_id}]")
        assert said == f"1 process died with job {job_id}, {seen('SELECT task FROM salon_jobs_job')[0][0]}"
        change("UPDATE salon_jobs_ended_process SET ended_at = ended_at - interval '16 minutes'")
        eventually(lambda: worker.readiness().get("problems"), [])
        assert problems() == []
        held.let_go()
        eventually(lambda: seen("SELECT FROM salon_jobs_job"), [])
        assert worker.end() == 0


def test_stopped_scheduler_is_missed_everywhere(operator: Client) -> None:
    """Once it has been away for longer than a restart takes."""
    with WorkerProcess(ready=True, PATCHES=OFTEN) as worker, SchedulerProcess(ready=True) as scheduler:
        eventually(lambda: worker.readiness().get("problems"), [])
        assert scheduler.end() == 0
        assert seen("SELECT count(*) FROM salon_jobs_process WHERE kind = 'scheduler'") == [(0,)]
        change("UPDATE salon_jobs_ended_process SET ended_at = ended_at - interval '2 minutes'")
        said = agreed("no-scheduler", operator, worker)
        assert said == "no scheduler is running, so no cron entry or schedule fires"
        with SchedulerProcess(ready=True):
            eventually(lambda: worker.readiness().get("problems"), [])
            assert problems() == []
