"""Tests what real processes with the project's settings send to Sentry while jobs fail and processes die."""

from __future__ import annotations

import os
import signal

from tests.e2e import tasks
from tests.e2e.worker_process import WorkerProcess
from tests.sentry_server import SentryServer
from tests.support import change, seen
from tests.waiting import eventually


def test_death_and_failed_job_are_one_event_each(database: None) -> None:
    server = SentryServer()
    reporting = {"SENTRY_DSN": server.dsn, "SENTRY_MONITORS": "off"}
    with server.serving(), WorkerProcess(environment=reporting, ready=True) as worker:
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
