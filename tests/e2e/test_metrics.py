"""Scrapes a worker and its embedded loops, as Prometheus would."""

from __future__ import annotations

import os
import signal

import pytest

from tests.e2e import tasks
from tests.e2e.worker_process import WorkerProcess
from tests.management.operator import add
from tests.metrics import Shown, of, scraped
from tests.support import change
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("database")


def test_supervisor_shows_the_metrics_of_its_children() -> None:
    """They survive the children."""
    with WorkerProcess("--with-scheduler", "--processes", "2", POLL_INTERVAL=0.2, ready=True) as worker:
        at = worker.address
        tasks.nothing.enqueue_many([tasks.nothing.call()] * 20)

        def finished(values: Shown) -> float:
            return of(values, "finished_total", task="e2e-nothing", outcome="succeeded")

        eventually(lambda: finished(scraped(at)), 20)
        values = scraped(at)
        assert of(values, "claimed_total") >= 20
        assert of(values, "run_duration_seconds_count", task="e2e-nothing") == 20
        assert of(values, "run_duration_seconds_bucket", task="e2e-nothing", le="+Inf") == 20
        assert of(values, "run_wait_seconds_sum", task="e2e-nothing") > 0
        assert of(values, "worker_processes") == 2
        assert of(values, "ready", kind="supervisor") == 1
        eventually(lambda: of(scraped(at), "listening", loop="claim"), 1)
        assert of(values, "loop_age_seconds", loop="sweep") >= 0
        assert values.keys() >= {
            ("salon_jobs_loop_age_seconds", (("loop", "claim"),)),
            ("salon_jobs_loop_age_seconds", (("loop", "scheduler"),)),
        }
        for child in worker.children():
            os.kill(child["pid"], signal.SIGKILL)
        worker.wait_for("child_died")
        tasks.nothing.enqueue()
        eventually(lambda: finished(scraped(at)), 21)


def test_metrics_of_queues_by_state() -> None:
    """Of those too that no release knows."""
    change(
        "INSERT INTO salon_jobs_job (task, queue, run_at) VALUES ('unheard-of', 'mail', now() - interval '1 hour'),"
        " ('ping', 'later', now() + interval '1 hour'), ('ping', 'idle', now() - interval '2 minutes')"
    )
    add(state="failed")
    with WorkerProcess("--queue", "none") as worker:
        at = worker.address
        worker.wait_for("queue_lag")
        eventually(lambda: of(scraped(at), "queue_depth", queue="mail", state="due"), 1)
        values = scraped(at)
        assert of(values, "queue_depth", queue="later", state="scheduled") == 1
        assert of(values, "queue_depth", queue="default", state="failed") == 1
        assert of(values, "oldest_due_age_seconds", queue="idle") == pytest.approx(150, abs=60)
        assert ("salon_jobs_oldest_due_age_seconds", (("queue", "mail"),)) not in values
        assert of(values, "unknown_tasks") == 1
        assert "note: --queue 'none': no task of this release names that queue" in worker.output
