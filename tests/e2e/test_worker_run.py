"""Tests worker processes at work: wake-ups, polls, bursts, lost connections, sudden death."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import transaction

from project.salon.tasks.reservation import expire_tentative_reservations
from salon_jobs import tenant_context
from tests.e2e import tasks
from tests.e2e.held import Held
from tests.e2e.worker_process import PREFETCHES, SchedulerProcess, WorkerProcess, end_worker_connections, gone
from tests.interpreter import ROOT
from tests.support import change, elsewhere, seen, store_id_sql
from tests.waiting import eventually

SECRET = "a-customers-name"
# Has a process and its children be new interpreters, instead of copies of one that has started.
NEW = {"NEW_INTERPRETERS": "1", "PYTHONHASHSEED": "0"}


def test_job_is_found_without_notifications(database: None) -> None:
    """It is enqueued when a claim has just found nothing, so that only the next poll can find it."""
    claimed = (
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'"
        " AND query LIKE '%%salon_jobs_claim(%%'"
    )
    with WorkerProcess(LISTEN=False, POLL_INTERVAL=1, ready=True) as worker:
        eventually(lambda: seen(claimed))
        worker.wait_for("job_succeeded", job_id=tasks.nothing.enqueue().id)


def test_notifications_wake_the_worker(database: None) -> None:
    """Those of a command, of a fan-out, and of two threads, whose process leaves most of them out: no job is missed."""
    change(f"INSERT INTO store (id, name) SELECT {store_id_sql()}, 'Salon' FROM generate_series(1, 100)")
    with WorkerProcess(POLL_INTERVAL=3600, ready=True) as worker:
        eventually(lambda: worker.children()[0]["listening"] is True)
        call_command("ping", stdout=(said := StringIO()))
        assert worker.wait_for("job_succeeded", job_id=int(said.getvalue()))["task_name"] == "ping"
        worker.wait_for("job_succeeded", job_id=expire_tentative_reservations.enqueue(reason="cron").id)
        done = partial(worker.logged, "job_succeeded", task_name="expire-tentative-for-store")
        eventually(lambda: len(done()), 100)
        assert len({record["store_id"] for record in done()}) == 100
        ids: set[int] = set()

        def enqueue() -> None:
            ids.update(tasks.nothing.enqueue().id for _ in range(60))

        with ThreadPoolExecutor(2) as pool:
            assert [each.result() for each in [elsewhere(pool, enqueue) for _ in range(2)]] == [None, None]
        eventually(lambda: ids <= {record["job_id"] for record in worker.logged("job_succeeded")})
        worker.stop(signal.SIGINT)
        assert worker.wait() == 0
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]
    assert seen("SELECT count(*) FROM salon_jobs_process") == [(0,)]


def test_prefetched_jobs_are_left_to_an_idle_worker(stores: list[UUID], held: Held) -> None:
    with WorkerProcess("--concurrency", "1", PATCHES=PREFETCHES, ready=True) as busy:
        busy.wait_for("job_succeeded", job_id=tasks.nothing.enqueue().id)
        with transaction.atomic():
            with tenant_context(stores[0]):
                held.enqueue(options={"priority": -1}, store_id=stores[0])
            ids = {tasks.nothing.enqueue().id for _ in range(20)}
        held.wait_for_runs(1)
        with WorkerProcess("--concurrency", "1") as idle:
            idle.wait_for("process_started", kind="worker")
            eventually(lambda: ids <= {record["job_id"] for record in idle.logged("job_succeeded")})
        released = busy.logged("job_released", reason="waited behind a long job")
        assert released, "some waited behind the long one"
        assert {record["job_id"] for record in released} <= ids
        assert all(record["attempt"] == 1 and record["task_name"] == "e2e-nothing" for record in released)
        held.let_go()
        busy.wait_for("job_succeeded", task_name="e2e-wait-for-file")


def test_burst_runs_what_is_due_in_every_child(stores: list[UUID]) -> None:
    """Its log has everything but the payload."""
    ids = [tasks.write.enqueue(store_id=store, note=SECRET).id for store in stores for _ in range(5)]
    failing = tasks.fail.enqueue(note=SECRET).id
    later = tasks.nothing.using(run_at=datetime.now(UTC) + timedelta(hours=1)).enqueue().id
    other_queue = tasks.nothing.using(queue="mail").enqueue().id
    # Its tasks import the SDK, which a new interpreter would warn of.
    options = ("--burst", "--queue", "default", "--processes", "2", "--concurrency", "3")
    with WorkerProcess(*options, SENTRY=False) as worker:
        assert worker.wait() == 0
        done = worker.logged("job_succeeded", level="info", logger="salon_jobs", task_name="e2e-write", attempt=1)
        assert sorted(record["job_id"] for record in done) == ids
        assert all(record.keys() >= {"time", "store_id", "queue", "duration_ms"} for record in done)
        assert len(worker.logged("job_succeeded")) == len(ids)
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
    assert seen("SELECT count(*) FROM salon_jobs_process") == [(0,)]


def test_worker_survives_the_loss_of_its_connections(stores: list[UUID], tmp_path: Path) -> None:
    with WorkerProcess("--concurrency", "2", POLL_INTERVAL=0.5, ready=True) as worker:
        for number in range(2):
            held = Held(tmp_path / str(number))
            running = held.begin(store_id=stores[0])
            assert end_worker_connections() >= 3, "claimer, listener, runner and more"
            held.let_go()
            worker.wait_for("job_retried", job_id=running)
            for _ in range(2):
                worker.wait_for("job_succeeded", job_id=tasks.write.enqueue(store_id=stores[0]).id)
            worker.wait_for("job_succeeded", job_id=running)
        worker.wait_until_ready()
        assert worker.end() == 0
    assert seen("SELECT count(*) FROM customer") == [(6,)]
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]


def test_worker_heals_when_its_rows_are_gone(stores: list[UUID]) -> None:
    """As after a rescue by others, or a failover that lost the rows: what may hold jobs is replaced, the rest stays."""
    with WorkerProcess(PROCESS_SILENT_AFTER=1) as worker:
        process_id, pid = worker.child()
        before = worker.wait_for("process_started", kind="supervisor")["process_id"]
        change("DELETE FROM salon_jobs_process")
        worker.wait_for("process_registered_again", kind="supervisor", process_id=before)
        reason = "its row is gone: others declared it dead, or a failover lost its claims"
        worker.wait_for("child_killed", process_id=process_id, reason=reason)
        eventually(lambda: gone(pid))
        worker.wait_for("job_succeeded", job_id=tasks.write.enqueue(store_id=stores[0]).id)
        assert worker.child()[0] != process_id
        assert seen("SELECT id FROM salon_jobs_process WHERE kind = 'supervisor'") == [(before,)]
        assert worker.end() == 0


@pytest.mark.parametrize("program", [("./shop/manage.py",), ("-m", "shop.manage")], ids=" ".join)
def test_program_that_leaves_its_directory(database: None, tmp_path: Path, program: tuple[str, ...]) -> None:
    """That of a project whose ``manage.py`` goes to its own: its children start where it was started."""
    job_id = tasks.nothing.enqueue().id
    (tmp_path / "shop").mkdir()
    text = (ROOT / "manage.py").read_text()
    text = text.replace("if __name__", f"os.chdir({str(ROOT)!r})\nsys.path.insert(1, {str(ROOT)!r})\nif __name__", 1)
    (tmp_path / "shop" / "manage.py").write_text(text)
    with WorkerProcess("--burst", program=program, folder=tmp_path, environment=NEW) as worker:
        assert worker.wait() == 0, worker.output
        assert [record["job_id"] for record in worker.logged("job_succeeded")] == [job_id]


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files in memory are Linux's")
@pytest.mark.parametrize("kind", [WorkerProcess, SchedulerProcess])
def test_read_only_file_system(database: None, tmp_path: Path, kind: type[WorkerProcess]) -> None:
    """As in a container whose root is read-only and that has no writable /tmp."""
    (tmp_path / "sitecustomize.py").write_text("import tempfile; tempfile.tempdir = '/proc/nowhere'")
    job_id = tasks.nothing.enqueue().id
    with kind("--burst", environment={"PYTHONPATH": str(tmp_path), **NEW}) as worker:
        assert worker.wait() == 0, worker.output
        assert "nowhere" not in worker.output
        assert [record["job_id"] for record in worker.logged("job_succeeded")] == [job_id] * (kind is WorkerProcess)
