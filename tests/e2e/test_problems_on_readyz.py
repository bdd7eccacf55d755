"""The problems on ``/readyz`` of a real worker, when they cannot be read."""

from __future__ import annotations

from typing import Any

import psycopg

from tests.e2e.worker_process import WorkerProcess
from tests.settings import url_for
from tests.support import change
from tests.waiting import eventually

OFTEN = {"salon_jobs.process.known_problems._READ_EVERY_S": 0.0, "salon_jobs.process.known_problems._VALID_S": 1.0}


def test_unread_verdict_is_unknown(database: None) -> None:
    """The process stays ready, and shows no problem for longer than a second.

    An error is named by its kind: its text, which may name hosts and users, is in the log.
    """
    with WorkerProcess(ready=True, PATCHES=OFTEN) as worker:

        def answer() -> dict[str, Any]:
            status, said = worker.ask("/readyz")
            assert (status, said["status"]) == (200, "ready")
            assert said.get("judged_s_ago", 0) <= 1
            return said

        eventually(lambda: "judged_s_ago" in answer())
        with psycopg.connect(url_for(None)) as holder:
            holder.execute("LOCK TABLE salon_jobs_inbox IN ACCESS EXCLUSIVE MODE")
            eventually(lambda: {"problems"}.isdisjoint(said := answer()) and "last read " in said["problems_unknown"])
        eventually(lambda: "problems" in answer())
        change("REVOKE SELECT ON salon_jobs_inbox FROM worker_runtime")
        try:
            eventually(lambda: answer().get("problems_unknown"), "ProgrammingError")
            assert "permission denied" in worker.wait_for("problems_unknown")["traceback"]
        finally:
            change("GRANT SELECT ON salon_jobs_inbox TO worker_runtime")
        eventually(lambda: "problems" in answer())
