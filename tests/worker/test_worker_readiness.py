"""Tests that a worker whose threads have ended, or hang, does not call itself ready."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from salon_jobs.conf import Settings
from salon_jobs.core.errors import NotReady
from salon_jobs.worker.runner import Runner
from salon_jobs.worker.worker import Worker
from tests import tasks
from tests.settings import url_for
from tests.support import working
from tests.waiting import eventually


@pytest.mark.parametrize("lives", [True, False])
def test_a_worker_whose_threads_have_ended_is_not_ready(
    process_id: int, monkeypatch: pytest.MonkeyPatch, lives: bool
) -> None:
    entered = threading.Semaphore(0)
    run = Runner._run

    def run_or_end(self: Runner) -> None:
        entered.release()
        if lives:
            run(self)

    monkeypatch.setattr(Runner, "_run", run_or_end)
    with working(process_id, concurrency=2) as loop:
        for _ in range(2):
            assert entered.acquire(timeout=10)
        for runner in loop._runners if not lives else ():
            assert runner.join(10)
        if lives:
            loop.require_ready()
        else:
            with pytest.raises(NotReady, match="2 threads that run jobs have ended"):
                loop.require_ready()
        assert loop.facts().keys() == {"claimed_s_ago", "listening", "listener_silent_s"}


def test_a_worker_that_can_not_write_what_ended_is_not_ready(
    process_id: int, hooks: tasks.Hooks, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "POLL_INTERVAL": 0.05}
    monkeypatch.setattr(Settings, "stale_after_s", 0.2)
    job_id = tasks.system.enqueue().id
    with psycopg.connect(url_for(None)) as holder:
        hooks.system = lambda note: holder.execute("SELECT FROM salon_jobs_job WHERE id = %s FOR UPDATE", [job_id])
        with working(process_id) as loop:
            try:
                eventually(lambda: "the end of a run could not be written" in fault(loop))
                holder.rollback()
                eventually(lambda: fault(loop), "")
            finally:
                holder.rollback()


def fault(loop: Worker) -> str:
    try:
        loop.require_ready()
    except NotReady as error:
        return str(error)
    return ""
