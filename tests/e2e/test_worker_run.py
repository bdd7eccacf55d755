"""Worker processes at work: pick-up, wake-up, burst, lost connections, sudden death."""

from __future__ import annotations

import json
import signal
import threading
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.db import connections, transaction

from project.salon.tasks.reservation import expire_tentative_reservations
from salon_jobs import tenant_context
from tests.conftest import manage
from tests.e2e import tasks
from tests.e2e.stubborn import StubbornEnd
from tests.e2e.worker_process import WorkerProcess, end_worker_connections
from tests.settings import url_for
from tests.support import change, job_row, seen, store_id_sql
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("stubborn")
URL = url_for("worker_runtime")
SECRET = "a-customers-name"


def test_gwt_12_ping_is_picked_up_by_a_worker_that_is_ready_within_ten_seconds(database: None) -> None:
    began = time.monotonic()
    with WorkerProcess(url=URL, ready=True) as worker:
        assert time.monotonic() - began < 10
        done = manage("ping")
        assert done.returncode == 0, done.stderr
        record = worker.wait_for("job_succeeded", job_id=int(done.stdout))
        assert record["task_name"] == "ping"
        worker.stop(signal.SIGINT)
        assert worker.wait() == 0
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]
    assert seen("SELECT count(*) FROM salon_jobs_process") == [(0,)]


def test_gwt_12_without_notifications_a_job_is_picked_up_within_five_seconds(database: None) -> None:
    """It is enqueued when a claim has just found nothing, so that a whole poll interval, the default, lies ahead."""
    claimed_at = "SELECT query_start FROM pg_stat_activity WHERE state = 'idle' AND query LIKE '%%salon_jobs_claim(%%'"
    with WorkerProcess(url=URL, LISTEN=False, ready=True) as worker:
        eventually(lambda: seen(claimed_at))
        before = seen(claimed_at)
        eventually(lambda: seen(claimed_at) not in (before, []))
        job_id = tasks.nothing.enqueue().id
        worker.wait_for("job_succeeded", patience_s=5, job_id=job_id)


def test_a_fan_out_to_a_hundred_stores_is_done_within_sixty_seconds(database: None) -> None:
    change(f"INSERT INTO store (id, name) SELECT {store_id_sql()}, 'Salon' FROM generate_series(1, 100)")
    with WorkerProcess(url=URL, ready=True) as worker:
        fan_out_job = expire_tentative_reservations.enqueue(reason="cron")
        done = partial(worker.logged, "job_succeeded", task_name="expire-tentative-for-store")
        eventually(lambda: len(done()), 100)
        assert len({record["store_id"] for record in done()}) == 100
        assert worker.logged("job_succeeded", job_id=fan_out_job.id)


def test_a_notification_wakes_the_worker_and_none_left_out_is_missed(database: None) -> None:
    with WorkerProcess(url=URL, POLL_INTERVAL=60, ready=True) as worker:
        eventually(lambda: worker.children()[0]["listening"] is True)
        worker.wait_for("job_succeeded", job_id=tasks.nothing.enqueue().id)
        ids: set[int] = set()

        def enqueue() -> None:
            try:
                ids.update(tasks.nothing.enqueue().id for _ in range(60))
            finally:
                connections.close_all()

        # Two threads of this process share one clock of notifications; most of them are left out.
        threads = [threading.Thread(target=enqueue) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        eventually(lambda: ids <= {record["job_id"] for record in worker.logged("job_succeeded")})


def test_what_a_worker_holds_behind_a_long_job_is_left_to_an_idle_one(stores: list[UUID], tmp_path: Path) -> None:
    with WorkerProcess("--concurrency", "1", url=URL, ready=True) as busy:
        busy.wait_for("job_succeeded", job_id=tasks.nothing.enqueue().id)
        gate = tmp_path / "gate"
        with transaction.atomic():
            with tenant_context(stores[0]):
                first = tasks.wait_for_file.using(priority=-1)
                first.enqueue(store_id=stores[0], started=str(tmp_path / "started"), gate=str(gate))
            ids = {tasks.nothing.enqueue().id for _ in range(20)}
        eventually((tmp_path / "started").exists)
        [(held,)] = seen("SELECT count(*) FROM salon_jobs_job WHERE state = 'running'")
        assert held > 1, "some wait behind the long one"
        with WorkerProcess("--concurrency", "1", url=URL) as idle:
            idle.wait_for("process_started", kind="worker")
            eventually(lambda: ids <= {record["job_id"] for record in idle.logged("job_succeeded")})
        released = busy.logged("job_released", reason="waited behind a long job")
        assert released
        assert {record["job_id"] for record in released} <= ids
        assert all(record["attempt"] == 1 and record["task_name"] == "e2e-nothing" for record in released)
        gate.touch()
        busy.wait_for("job_succeeded", task_name="e2e-wait-for-file")


def test_a_pool_that_can_not_serve_every_thread_is_refused_with_the_number_it_needs(database: None) -> None:
    with WorkerProcess("--concurrency", "3", url=f"{URL}?pool=true") as worker:
        assert worker.wait() == 1
        assert "max_size to 9 or more" in worker.output
        assert worker.logged("process_stopped", clean=False)


def test_a_burst_runs_what_is_due_and_says_it_without_the_payload(stores: list[UUID]) -> None:
    ids = [tasks.write.enqueue(store_id=store, note=SECRET).id for store in stores for _ in range(5)]
    failing = tasks.fail.enqueue(note=SECRET).id
    later = tasks.nothing.using(run_at=datetime.now(UTC) + timedelta(hours=1)).enqueue().id
    other_queue = tasks.nothing.using(queue="mail").enqueue().id
    # Its tasks import the SDK, which a new interpreter would warn of.
    with WorkerProcess("--burst", "--queue", "default", "--concurrency", "3", url=URL, SENTRY=False) as worker:
        assert worker.wait() == 0
        done = worker.logged("job_succeeded")
        assert sorted(record["job_id"] for record in done) == ids
        for record in done:
            assert record.keys() >= {
                "time",
                "level",
                "logger",
                "task_name",
                "job_id",
                "store_id",
                "attempt",
                "queue",
                "duration_ms",
            }
            assert (record["level"], record["logger"], record["task_name"], record["attempt"]) == (
                "info",
                "salon_jobs",
                "e2e-write",
                1,
            )
        [failed] = worker.logged("job_failed")
        assert (failed["job_id"], failed["error_class"]) == (failing, "builtins.RuntimeError")
        assert "the till is closed" in failed["traceback"]
        assert all(json.loads(line) for line in worker.lines)
        assert worker.errors == []
        assert SECRET not in worker.output
    [(kept,)] = seen("SELECT log FROM salon_jobs_job_error")
    assert kept.endswith(" INFO till: opening the till")
    rows = seen("SELECT id, state FROM salon_jobs_job ORDER BY id")
    assert rows == [(failing, "failed"), (later, "queued"), (other_queue, "queued")]
    assert seen("SELECT count(*) FROM customer") == [(15,)]


def test_a_worker_goes_on_when_the_server_ends_all_its_connections(stores: list[UUID], tmp_path: Path) -> None:
    with WorkerProcess("--concurrency", "2", url=URL, POLL_INTERVAL=0.5, ready=True) as worker:
        for number in range(2):
            started, gate = tmp_path / f"started{number}", tmp_path / f"gate{number}"
            running = tasks.wait_for_file.enqueue(store_id=stores[0], started=str(started), gate=str(gate)).id
            eventually(started.exists)
            assert end_worker_connections() >= 3, "claimer, listener, runner and more"
            gate.touch()
            worker.wait_for("job_retried", job_id=running)
            for _ in range(5):
                worker.wait_for("job_succeeded", job_id=tasks.write.enqueue(store_id=stores[0]).id)
            worker.wait_for("job_succeeded", job_id=running)
        worker.wait_until_ready()
        assert worker.end() == 0
    assert seen("SELECT count(*) FROM customer") == [(12,)]
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]


def test_a_worker_killed_in_mid_run_is_rescued_and_the_effects_happen_once(stores: list[UUID], tmp_path: Path) -> None:
    started, gate = tmp_path / "started", tmp_path / "gate"
    quick: dict[str, Any] = {"PROCESS_SILENT_AFTER": 2, "POLL_INTERVAL": 0.2}
    with WorkerProcess("--concurrency", "1", url=URL, **quick, ready=True) as victim:
        handle = tasks.wait_for_file.enqueue(store_id=stores[0], started=str(started), gate=str(gate))
        eventually(started.exists)
        waiting = tasks.write.enqueue(store_id=stores[0])
        with WorkerProcess("--concurrency", "1", url=URL, **quick) as other:
            other.wait_for("job_succeeded", job_id=waiting.id)
            process_id = victim.wait_for("process_started", kind="worker")["process_id"]
            victim.stop(signal.SIGKILL)
            assert victim.wait() == -signal.SIGKILL
            gate.touch()
            dead = other.wait_for("process_dead", process_id=process_id)
            assert (dead["jobs"], dead["level"]) == (1, "warning")
            other.wait_for("job_rescued", job_id=handle.id, state="queued", attempt=1)
            other.wait_for("job_succeeded", job_id=handle.id)
            assert not other.logged(
                "process_dead", process_id=other.wait_for("process_started", kind="worker")["process_id"]
            )
    assert started.read_text().split() == ["1", "1"], "a death is no attempt"
    assert seen("SELECT count(*) FROM customer") == [(2,)]
    assert job_row(handle.id) is None
    assert seen("SELECT code, attempt FROM salon_jobs_job_error") == [("JOB.PROCESS_DIED", 1)]


def test_a_living_worker_whose_rows_are_gone_heals_without_a_restart(stores: list[UUID]) -> None:
    """As after a rescue by others, or a failover that lost the rows: what may hold jobs is replaced, the rest stays."""
    with WorkerProcess(url=URL, PROCESS_SILENT_AFTER=1, ready=True) as worker:
        before = worker.wait_for("process_started", kind="supervisor")["process_id"]
        [child] = worker.children()
        seen("DELETE FROM salon_jobs_process RETURNING id")
        worker.wait_for("process_registered_again", kind="supervisor", process_id=before)
        worker.wait_for("child_killed", process_id=child["process_id"])
        handle = tasks.write.enqueue(store_id=stores[0])
        worker.wait_for("job_succeeded", job_id=handle.id)
        assert seen("SELECT id, kind FROM salon_jobs_process WHERE kind = 'supervisor'") == [(before, "supervisor")]
        assert worker.end() == 0


def test_the_thirty_seconds_run_alongside_the_other_tests(stubborn: tuple[StubbornEnd, threading.Thread]) -> None:
    assert stubborn[0].worker.logged("process_started")
