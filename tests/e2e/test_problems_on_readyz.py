"""The problems on ``/readyz`` of a real worker, when they cannot be read."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import psycopg
import pytest

from tests.e2e.worker_process import WorkerProcess
from tests.settings import url_for
from tests.support import change
from tests.waiting import eventually

OFTEN = {"salon_jobs.process.known_problems._READ_EVERY_S": 0.0, "salon_jobs.process.known_problems._VALID_S": 1.0}


@pytest.fixture
def worker(database: None) -> Generator[WorkerProcess]:
    """Run a worker that reads the verdict after each probe, and shows it for a second."""
    with WorkerProcess(ready=True, PATCHES=OFTEN) as started:
        eventually(lambda: "judged_s_ago" in started.readiness())
        yield started


def test_hanging_verdict_becomes_unknown(worker: WorkerProcess) -> None:
    """The process stays ready; the problems that it shows are never older than it says."""

    def hangs() -> bool:
        status, answer = worker.ask("/readyz")
        assert status == 200
        assert answer.get("judged_s_ago", 0) <= 1
        return "problems" not in answer and str(answer["problems_unknown"]).startswith("last read ")

    with psycopg.connect(url_for(None)) as holder:
        holder.execute("LOCK TABLE salon_jobs_inbox IN ACCESS EXCLUSIVE MODE")
        eventually(hangs)
    eventually(lambda: "problems" in worker.readiness())


def test_error_of_verdict_is_named_by_kind(worker: WorkerProcess) -> None:
    """Its text, which may name hosts and users, is in the log."""
    change("REVOKE SELECT ON salon_jobs_inbox FROM worker_runtime")
    try:
        answer: dict[str, Any] = {}

        def is_unknown() -> bool:
            answer.update(worker.readiness())
            return answer.get("problems_unknown") == "ProgrammingError"

        eventually(is_unknown)
        assert answer["status"] == "ready"
        assert "permission denied" in worker.wait_for("problems_unknown")["traceback"]
    finally:
        change("GRANT SELECT ON salon_jobs_inbox TO worker_runtime")
    eventually(lambda: "problems" in worker.readiness())
