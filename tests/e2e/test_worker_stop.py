"""How a worker process ends: in order, interrupted, forced, and at the latest when its grace is over."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from uuid import UUID

import pytest

from tests.e2e import tasks
from tests.e2e.stubborn import StubbornEnd
from tests.e2e.worker_process import WorkerProcess, end_worker_connections
from tests.settings import url_for
from tests.support import change, job_row, seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("stubborn")
URL = url_for("worker_runtime")


def queued_and_uncharged(job_id: int) -> bool:
    row = job_row(job_id)
    return row is not None and (row["state"], row["attempts"], row["leased_by"]) == ("queued", 0, None)


def test_sigterm_lets_the_running_job_finish_and_starts_no_other(stores: list[UUID], tmp_path: Path) -> None:
    started, gate = tmp_path / "started", tmp_path / "gate"
    # A long poll: the stop must be noticed although all threads are busy.
    with WorkerProcess("--concurrency", "1", url=URL, POLL_INTERVAL=60, ready=True) as worker:
        running = tasks.wait_for_file.enqueue(store_id=stores[0], started=str(started), gate=str(gate)).id
        eventually(started.exists)
        waiting = tasks.write.enqueue(store_id=stores[0]).id
        worker.stop()
        assert worker.wait_for("process_stopping")["running"] == 1
        status, answer = worker.ask("/readyz")
        assert (status, answer["code"]) == (503, "WORKER.NOT_READY")
        assert worker.ask("/healthz")[0] == 200
        gate.touch()
        assert worker.wait() == 0
        assert worker.logged("job_succeeded", job_id=running)
        assert worker.logged("process_stopped", clean=True)
    assert queued_and_uncharged(waiting)
    assert seen("SELECT count(*) FROM customer") == [(1,)]
    assert seen("SELECT count(*) FROM salon_jobs_process") == [(0,)]


def test_the_interrupt_cancels_the_query_rolls_back_and_counts_no_attempt(stores: list[UUID], tmp_path: Path) -> None:
    quick = {"SHUTDOWN_GRACE": 3}  # interrupts after 1.5 s
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE %s AND state = 'active'"
    with WorkerProcess("--concurrency", "3", url=URL, **quick, ready=True) as worker:
        jobs = [tasks.sleep_in_query.enqueue(store_id=store).id for store in stores[:2]]
        started = tmp_path / "started"
        jobs.append(tasks.wait_for_file.enqueue(store_id=stores[2], started=str(started), gate="/nowhere").id)
        eventually(lambda: seen(sleeping, "SELECT pg_sleep(60)%") == [(2,)] and started.exists())
        began = time.monotonic()
        assert worker.end() == 0
        assert 1.5 <= time.monotonic() - began < 15
        assert {record["job_id"] for record in worker.logged("job_released")} == set(jobs)
        assert not worker.logged("job_retried")
    assert all(queued_and_uncharged(job) for job in jobs)
    assert seen(sleeping, "SELECT pg_sleep(60)%") == [(0,)]
    assert seen("SELECT count(*) FROM customer") == [(0,)]
    assert seen("SELECT count(*) FROM salon_jobs_job_error") == [(0,)]


def test_the_interrupt_ends_an_async_handler_too(stores: list[UUID], tmp_path: Path) -> None:
    started = tmp_path / "started"
    with WorkerProcess("--concurrency", "2", url=URL, SHUTDOWN_GRACE=3, ready=True) as worker:
        jobs = [tasks.await_for_ever.enqueue(store_id=store, started=str(started)).id for store in stores[:2]]
        eventually(lambda: started.exists() and len(started.read_text().splitlines()) == 2)
        assert worker.end() == 0
        assert {record["job_id"] for record in worker.logged("job_released")} == set(jobs)
        assert worker.logged("process_stopped", clean=True)
    assert all(queued_and_uncharged(job) for job in jobs)


def test_after_too_many_timeouts_a_worker_lets_the_others_finish_and_is_replaced(
    stores: list[UUID], tmp_path: Path
) -> None:
    started, gate = tmp_path / "started", tmp_path / "gate"
    with WorkerProcess("--concurrency", "3", url=URL, TERMINATE_AFTER_TIMEOUTS=2, ready=True) as worker:
        tasks.wait_for_file.enqueue(store_id=stores[2], started=str(started), gate=str(gate))
        eventually(started.exists)
        timed_out = [tasks.times_out.enqueue(store_id=store).id for store in stores[:2]]
        assert worker.wait_for("process_draining")["timeouts"] == 2
        eventually(lambda: "too many runs timed out" in str(worker.ask("/readyz")[1].get("detail")))
        change("UPDATE salon_jobs_job SET run_at = now() + interval '1 h' WHERE state = 'queued'")
        assert len(worker.logged("process_started", kind="worker")) == 1
        gate.touch()
        eventually(lambda: len(worker.logged("process_started", kind="worker")), 2)
        eventually(lambda: worker.ask("/readyz")[0], 200)
        assert worker.end() == 0
        assert {record["job_id"] for record in worker.logged("job_timed_out")} == set(timed_out)
        assert worker.logged("job_succeeded", task_name="e2e-wait-for-file")
    assert seen("SELECT id, state, attempts FROM salon_jobs_job ORDER BY id") == [
        (job, "queued", 1) for job in timed_out
    ]
    assert seen("SELECT count(*) FROM customer") == [(1,)]
    assert seen("SELECT count(*) FROM salon_jobs_process") == [(0,)]


def test_a_run_that_does_not_feel_its_timeout_is_killed_with_its_process_and_charged(
    stores: list[UUID], tmp_path: Path
) -> None:
    with WorkerProcess(
        "--concurrency", "2", url=URL, PATCHES={"salon_jobs.worker.runner._KILL_GRACE_S": 0.5}, ready=True
    ) as worker:
        job = tasks.numb.enqueue(store_id=stores[0]).id
        worker.wait_for("job_timed_out", job_id=job)
        worker.wait_for("child_killed")
        assert worker.wait_for("job_retried", job_id=job)["code"] == "JOB.TIMED_OUT"
        change("UPDATE salon_jobs_job SET run_at = now() + interval '1 h'")
        other = tasks.write.enqueue(store_id=stores[1]).id
        worker.wait_for("job_succeeded", job_id=other)
        assert worker.end() == 0
    assert seen("SELECT state, attempts, rescues FROM salon_jobs_job") == [("queued", 1, 0)]
    assert seen("SELECT attempt, code FROM salon_jobs_job_error") == [(1, "JOB.TIMED_OUT")]
    assert seen("SELECT count(*) FROM customer") == [(1,)]


def test_a_second_signal_forces_the_end(stores: list[UUID], tmp_path: Path) -> None:
    started = tmp_path / "started"
    with WorkerProcess(url=URL, ready=True) as worker:
        job = tasks.wait_for_file.enqueue(store_id=stores[0], started=str(started), gate="/nowhere").id
        eventually(started.exists)
        worker.stop()
        worker.wait_for("process_stopping")
        began = time.monotonic()
        assert worker.end() == 0
        assert time.monotonic() - began < 15
    assert queued_and_uncharged(job)
    assert seen("SELECT count(*) FROM customer") == [(0,)]


def test_a_second_signal_ends_even_a_stubborn_job_and_a_lost_connection_holds_nothing_back(
    stores: list[UUID], tmp_path: Path
) -> None:
    started = tmp_path / "started"
    with WorkerProcess(url=URL, ready=True) as worker:
        job = tasks.stubborn.enqueue(store_id=stores[0], started=str(started)).id
        eventually(started.exists)
        worker.stop()
        worker.wait_for("process_stopping")
        end_worker_connections()
        began = time.monotonic()
        assert worker.end() == 1
        assert time.monotonic() - began < 15
    assert queued_and_uncharged(job)
    eventually(lambda: seen("SELECT count(*) FROM customer"), [(0,)])


def test_the_grace_ends_the_process_even_when_it_can_not_give_its_job_back_by_itself(
    stores: list[UUID], tmp_path: Path
) -> None:
    started = tmp_path / "started"
    with WorkerProcess(url=URL, SHUTDOWN_GRACE=3, ready=True) as worker:
        tasks.stubborn_holding_its_row.enqueue(store_id=stores[0], started=str(started))
        eventually(started.exists)
        began = time.monotonic()
        assert worker.end() == 1
        assert time.monotonic() - began <= 3
    assert seen("SELECT state, attempts, rescues FROM salon_jobs_job") == [("queued", 0, 0)]
    assert seen("SELECT count(*) FROM customer") == [(0,)]


def test_a_stubborn_job_ends_the_process_within_thirty_seconds_by_default(
    stubborn: tuple[StubbornEnd, threading.Thread],
) -> None:
    end, thread = stubborn
    thread.join(40)
    assert not thread.is_alive()
    assert end.status == 1
    assert 25 <= end.took_s <= 30
    assert end.one("SELECT state, attempts, leased_by FROM salon_jobs_job") == ("queued", 0, None)
    assert end.one("SELECT count(*) FROM customer") == (0,)
    assert end.one("SELECT count(*) FROM salon_jobs_process") == (0,)
    [released] = end.worker.logged("job_released")
    assert (released["task_name"], released["reason"]) == ("e2e-stubborn", "shutdown")
    assert end.worker.logged("process_stopped", clean=False)
