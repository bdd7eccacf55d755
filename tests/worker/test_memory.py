"""What jobs take and return in real sizes fits into a worker's memory, and others are not held up."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e import tasks
from tests.e2e.worker_process import WorkerProcess
from tests.support import seen
from tests.waiting import eventually

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.process, pytest.mark.slow]
JOBS = "SELECT count(*) FROM salon_jobs_job"


def work_off() -> tuple[int, Counter[int]]:
    """Run all jobs in a worker; return how many MB its child has used at most, and how often each job succeeded."""
    with WorkerProcess(ready=True) as worker:
        [child] = worker.children()
        eventually(lambda: seen(JOBS), [(0,)], limit_s=300, what=lambda: worker.output)
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{child['pid']}/status").read_text())
        assert peak is not None
        assert worker.end() == 0
        return int(peak[1]) // 1024, Counter(line["job_id"] for line in worker.logged("job_succeeded"))


def test_memory_of_large_results() -> None:
    jobs, size = 120, 9_900_000
    tasks.large_result.enqueue_many([tasks.large_result.call(size=size)] * jobs)
    ordinary = [handle.id for handle in tasks.nothing.enqueue_many([tasks.nothing.call()] * 10)]
    peak_mb, ended = work_off()
    assert seen("SELECT count(*) FROM salon_jobs_job_result") == [(jobs,)]
    assert len(ended) == jobs + 10
    assert [ended[job_id] for job_id in ordinary] == [1] * 10
    assert peak_mb < 900


def test_memory_of_large_payloads() -> None:
    text = "x" * 990_000
    for _ in range(3):
        tasks.take_large.enqueue_many([tasks.take_large.call(text=text)] * 100)
    peak_mb, ended = work_off()
    assert ended.total() == 300
    assert peak_mb < 250
