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
from tests.e2e.test_supervisor import QUICK, URL, child_of
from tests.e2e.worker_process import WorkerProcess
from tests.support import seen
from tests.waiting import eventually


@pytest.mark.parametrize("whole", [False, True], ids=["child", "supervisor too"])
@pytest.mark.parametrize("pause", ["between", "two", "four"], ids=["between steps", "in a step", "in a loop"])
def test_a_killed_run_goes_on_after_what_it_committed(
    stores: list[UUID], tmp_path: Path, pause: str, *, whole: bool
) -> None:
    calls = tmp_path / "calls"

    def called() -> list[str]:
        return calls.read_text().split() if calls.exists() else []

    with WorkerProcess("--concurrency", "1", url=URL, **QUICK) as worker:
        _, pid = child_of(worker)
        tasks.in_steps.enqueue(store_id=stores[0], folder=str(tmp_path), pause=pause)
        eventually(lambda: pause in called())
        if whole:
            worker.kill()
        else:
            os.kill(pid, signal.SIGKILL)
        (tmp_path / "gate").touch()
        if whole:
            with WorkerProcess("--concurrency", "1", url=URL, ready=True, **QUICK) as another:
                another.wait_for("job_succeeded", task_name="e2e-steps")
                assert another.end() == 0
        else:
            worker.wait_for("job_succeeded", task_name="e2e-steps")
            assert worker.end() == 0
    assert sorted(seen("SELECT name, count(*) FROM customer GROUP BY 1")) == [
        *(("four", 1), ("one", 1), ("three", 1), ("two", 1))
    ], "each effect exactly once"
    starts = Counter(called())
    assert starts.pop("between") == 2, "two runs"
    again = [] if pause == "between" else [pause]
    assert starts == Counter(["one", "two", "three", "four", *again]), "only what was cut short began again"
    Pruner(using="default").run_once()
    assert seen("SELECT count(*) FROM salon_jobs_job_step") == [(0,)]
