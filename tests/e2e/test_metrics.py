"""Scrapes a worker and its embedded loops, as Prometheus would."""

from __future__ import annotations

import os
import signal

import psycopg
import pytest

from tests.e2e.test_worker_health import enqueue
from tests.e2e.worker_process import WorkerProcess
from tests.management.operator import add
from tests.metrics import Shown, of, scraped
from tests.settings import url_for
from tests.support import change
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("database", "stubborn")


def address(worker: WorkerProcess) -> str:
    found: str = worker.wait_for("health_listening")["address"]
    return found


def test_what_children_count_is_shown_by_their_supervisor_and_survives_them() -> None:
    with WorkerProcess(
        "--with-scheduler", "--processes", "2", url=url_for("worker_runtime"), POLL_INTERVAL=0.2
    ) as worker:
        at = address(worker)
        worker.wait_until_ready()
        owner = url_for(None)
        for _ in range(20):
            enqueue(owner, "ping")

        def finished(values: Shown) -> float:
            return of(values, "finished_total", task="ping", outcome="succeeded")

        eventually(lambda: finished(scraped(at)), 20)
        values = scraped(at)
        assert of(values, "claimed_total") >= 20
        assert of(values, "run_duration_seconds_count", task="ping") == 20
        assert of(values, "run_duration_seconds_bucket", task="ping", le="+Inf") == 20
        assert of(values, "run_wait_seconds_sum", task="ping") > 0
        assert of(values, "worker_processes") == 2
        assert of(values, "ready", kind="supervisor") == 1
        eventually(lambda: of(scraped(at), "listening", loop="claim"), 1)
        assert 0 <= of(values, "loop_age_seconds", loop="sweep") < 5
        assert values.keys() >= {
            ("salon_jobs_loop_age_seconds", (("loop", "claim"),)),
            ("salon_jobs_loop_age_seconds", (("loop", "scheduler"),)),
        }
        for child in worker.children():
            os.kill(child["pid"], signal.SIGKILL)
        worker.wait_for("child_died")
        enqueue(owner, "ping")
        eventually(lambda: finished(scraped(at)), 21)
    change("DELETE FROM salon_jobs_process")


def test_queues_are_shown_by_state_and_what_no_release_knows_too() -> None:
    with psycopg.connect(url_for(None), autocommit=True) as owner:
        owner.execute(
            "INSERT INTO salon_jobs_job (task, queue, run_at) VALUES ('unheard-of', 'mail', now() - interval '1 hour'),"
            " ('ping', 'later', now() + interval '1 hour'), ('ping', 'idle', now() - interval '2 minutes')"
        )
    add(state="failed")
    with WorkerProcess("--queue", "none", url=url_for("worker_runtime")) as worker:
        at = address(worker)
        worker.wait_for("queue_lag")
        eventually(lambda: of(scraped(at), "queue_depth", queue="mail", state="due"), 1)
        values = scraped(at)
        assert of(values, "queue_depth", queue="later", state="scheduled") == 1
        assert of(values, "queue_depth", queue="default", state="failed") == 1
        assert of(values, "oldest_due_age_seconds", queue="idle") == pytest.approx(120, abs=30)
        assert ("salon_jobs_oldest_due_age_seconds", (("queue", "mail"),)) not in values
        assert of(values, "unknown_tasks") == 1
        assert "note: --queue 'none': no task of this release names that queue" in worker.output
    change("DELETE FROM salon_jobs_process")
