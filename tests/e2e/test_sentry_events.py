"""Tests what real processes with the project's settings send to Sentry while jobs fail and processes die."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

from tests.e2e import tasks
from tests.e2e.worker_process import WorkerProcess
from tests.sentry_server import SentryServer
from tests.support import change, seen
from tests.waiting import eventually


class ReportingWorker(WorkerProcess):
    """Worker that reports to a Sentry server."""

    def __init__(self, server: SentryServer) -> None:
        self._dsn = server.dsn
        super().__init__()

    def _start(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        super()._start(words, {**environment, "SENTRY_DSN": self._dsn, "SENTRY_MONITORS": "off"})


def test_death_and_failed_job_are_one_event_each(database: None) -> None:
    server = SentryServer()
    with server.serving(), ReportingWorker(server) as worker:
        worker.wait_until_ready()
        handle = tasks.fail.using(max_attempts=2).enqueue(note="")
        worker.wait_for("job_retried", job_id=handle.id)
        change("UPDATE salon_jobs_job SET run_at = now()")
        worker.wait_for("job_failed", job_id=handle.id)
        eventually(lambda: server.events)
        os.kill(worker.children()[0]["pid"], signal.SIGKILL)
        worker.wait_for("child_died")
        eventually(lambda: server.named("child_died"))
        assert worker.end() == 0
    [failed] = [event for event in server.events if event not in server.named("child_died")]
    assert failed["tags"] == {"task_name": "e2e-fail", "store_id": "", "attempt": 2, "job_id": handle.id}
    [died] = server.named("child_died")
    assert died["contexts"]["log"]["end"] == "was killed by SIGKILL"
    assert seen("SELECT count(*) FROM salon_jobs_process") == [(0,)]
