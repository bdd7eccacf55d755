"""Tests that each step takes effect exactly once, whatever is killed between two of them or inside of one."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest

from salon_jobs.jobs.pruning import Pruner
from tests.e2e import tasks
from tests.e2e.worker_process import QUICK, WorkerProcess
from tests.support import seen
from tests.waiting import eventually


@pytest.mark.parametrize(
    ("pause", "whole"), [("between", False), ("two", False), ("four", False), ("two", True)], ids=str
)
def test_killed_run_continues_after_its_steps(stores: list[UUID], tmp_path: Path, pause: str, *, whole: bool) -> None:
    """The child is killed between steps, in one, or in a loop; or the whole worker is."""
    calls = tmp_path / "calls"

    def called() -> list[str]:
        return calls.read_text().split() if calls.exists() else []

    with WorkerProcess("--concurrency", "1", **QUICK) as first:
        worker = first
        _, pid = worker.child()
        tasks.in_steps.enqueue(store_id=stores[0], folder=str(tmp_path), pause=pause)
        eventually(lambda: pause in called())
        if whole:
            worker.kill()
            worker = WorkerProcess("--concurrency", "1", **QUICK)
        else:
            os.kill(pid, signal.SIGKILL)
        (tmp_path / "gate").touch()
        with worker:
            worker.wait_for("job_succeeded", task_name="e2e-steps")
            assert worker.end() == 0
    effects = [("four", 1), ("one", 1), ("three", 1), ("two", 1)]
    assert sorted(seen("SELECT name, count(*) FROM customer GROUP BY 1")) == effects, "each exactly once"
    starts = Counter(called())
    assert starts.pop("between") == 2, "two runs"
    again = [] if pause == "between" else [pause]
    assert starts == Counter(["one", "two", "three", "four", *again]), "only what was cut short began again"
    Pruner(using="default").run_once()
    assert seen("SELECT count(*) FROM salon_jobs_job_step") == [(0,)]
