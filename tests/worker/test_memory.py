"""What jobs take and return in real sizes fits into a worker's memory, and others are not held up."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e import tasks
from tests.e2e.worker_process import WorkerProcess
from tests.settings import url_for
from tests.support import seen
from tests.waiting import eventually

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.process, pytest.mark.slow]
URL = url_for("worker_runtime")
JOBS = "SELECT count(*) FROM salon_jobs_job"


def peak_mb(pid: int) -> int:
    """Return the most memory that a process has used."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


def test_memory_of_large_results() -> None:
    jobs, size = 120, 9_900_000
    tasks.large_result.enqueue_many([tasks.large_result.call(size=size)] * jobs)
    ordinary = [handle.id for handle in tasks.nothing.enqueue_many([tasks.nothing.call()] * 10)]
    with WorkerProcess(url=URL, ready=True) as worker:
        [child] = worker.children()
        eventually(lambda: seen(JOBS), [(0,)], limit_s=300, what=lambda: worker.output)
        peak = peak_mb(child["pid"])
        assert worker.end() == 0
        ended = Counter(line["job_id"] for line in worker.logged("job_succeeded"))
    assert seen("SELECT count(*) FROM salon_jobs_job_result") == [(jobs,)]
    assert len(ended) == jobs + 10
    assert [ended[job_id] for job_id in ordinary] == [1] * 10
    assert peak < 900


def test_memory_of_large_payloads() -> None:
    text = "x" * 990_000
    for _ in range(3):
        tasks.take_large.enqueue_many([tasks.take_large.call(text=text)] * 100)
    with WorkerProcess(url=URL, ready=True) as worker:
        [child] = worker.children()
        eventually(lambda: seen(JOBS), [(0,)], limit_s=300, what=lambda: worker.output)
        peak = peak_mb(child["pid"])
        assert worker.end() == 0
        assert len(worker.logged("job_succeeded")) == 300
    assert peak < 250
