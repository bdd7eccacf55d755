"""Tests how a worker process ends: in order, interrupted, forced, or because its grace is over."""

from __future__ import annotations

import signal
from typing import Any
from uuid import UUID

import pytest

from tests.e2e import tasks
from tests.e2e.held import Held
from tests.e2e.worker_process import ENDS_IN_TIME, RESCUED_IN_TIME, WorkerProcess, end_worker_connections
from tests.support import row_of, seen
from tests.waiting import eventually


def assert_given_back(*job_ids: int) -> None:
    """Assert that the jobs wait again, uncharged, and that they left no effects."""
    for job_id in job_ids:
        row = row_of(job_id)
        assert (row["state"], row["attempts"], row["rescues"], row["leased_by"]) == ("queued", 0, 0, None)
    # A transaction whose client is gone ends a moment later.
    eventually(lambda: seen("SELECT count(*) FROM customer"), [(0,)])
    assert seen("SELECT count(*) FROM salon_jobs_job_error") == [(0,)]


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGHUP] * 2], ids=["SIGTERM", "closed terminal"])
def test_stop_finishes_running_jobs_only(stores: list[UUID], held: Held, signals: list[signal.Signals]) -> None:
    """The system and the shell each send SIGHUP when a terminal is closed: the second forces nothing."""
    # A long poll: the stop must be noticed although all threads are busy.
    with WorkerProcess("--concurrency", "1", POLL_INTERVAL=60, ready=True) as worker:
        running = held.begin(store_id=stores[0])
        waiting = tasks.write.enqueue(store_id=stores[0]).id
        for number in signals:
            worker.stop(number)
            assert worker.wait_for("process_stopping")["running"] == 1
        status, answer = worker.ask("/readyz")
        assert (status, answer["code"]) == (503, "WORKER.NOT_READY")
        assert worker.ask("/healthz")[0] == 200
        held.let_go()
        assert worker.wait() == 0
        assert worker.logged("job_succeeded", job_id=running)
        assert worker.logged("process_stopped", clean=True)
    row = row_of(waiting)
    assert (row["state"], row["attempts"], row["leased_by"]) == ("queued", 0, None)
    assert seen("SELECT count(*) FROM customer") == [(1,)]
    assert seen("SELECT count(*) FROM salon_jobs_process") == [(0,)]


def test_interrupt_releases_jobs_uncharged(stores: list[UUID], held: Held) -> None:
    """It cancels queries, ends handlers in Python and coroutines, and rolls back."""
    sleeping = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"
        " AND query LIKE 'SELECT pg_sleep(60)%%'"
    )
    with WorkerProcess("--concurrency", "4", SHUTDOWN_GRACE=3, PATCHES=ENDS_IN_TIME, ready=True) as worker:
        jobs = [tasks.sleep_in_query.enqueue(store_id=store).id for store in stores[:2]]
        jobs += [held.begin(task, store_id=stores[2]) for task in (tasks.wait_for_file, tasks.await_for_ever)]
        eventually(lambda: seen(sleeping), [(2,)])
        assert worker.end() == 0
        assert {record["job_id"] for record in worker.logged("job_released")} == set(jobs)
        assert not worker.logged("job_retried")
        assert worker.logged("process_stopped", clean=True)
    assert_given_back(*jobs)
    assert seen(sleeping) == [(0,)]


def test_worker_is_replaced_after_too_many_timeouts(stores: list[UUID], held: Held) -> None:
    with WorkerProcess("--concurrency", "3", TERMINATE_AFTER_TIMEOUTS=2, ready=True) as worker:
        held.begin(store_id=stores[2])
        timed_out = [tasks.times_out.enqueue(store_id=store).id for store in stores[:2]]
        assert worker.wait_for("process_draining")["timeouts"] == 2
        eventually(lambda: "too many runs timed out" in str(worker.readiness().get("detail")))
        assert len(worker.logged("process_started", kind="worker")) == 1
        held.let_go()
        eventually(lambda: len(worker.logged("process_started", kind="worker")), 2)
        worker.wait_until_ready()
        assert worker.end() == 0
        assert {record["job_id"] for record in worker.logged("job_timed_out")} == set(timed_out)
        assert worker.logged("job_succeeded", task_name="e2e-wait-for-file")
    assert seen("SELECT id, state, attempts FROM salon_jobs_job ORDER BY id") == [
        (job, "queued", 1) for job in timed_out
    ]
    assert seen("SELECT count(*) FROM customer") == [(1,)]
    assert seen("SELECT count(*) FROM salon_jobs_process") == [(0,)]


def test_run_that_ignores_its_timeout_is_killed(stores: list[UUID]) -> None:
    """Its process is killed, and the job is charged."""
    patches = {"salon_jobs.worker.runner._KILL_GRACE_S": 0.5}
    with WorkerProcess("--concurrency", "2", PATCHES=patches, ready=True) as worker:
        job = tasks.numb.enqueue(store_id=stores[0]).id
        worker.wait_for("job_timed_out", job_id=job)
        worker.wait_for("child_killed")
        assert worker.wait_for("job_retried", job_id=job)["code"] == "JOB.TIMED_OUT"
        worker.wait_for("job_succeeded", job_id=tasks.write.enqueue(store_id=stores[1]).id)
        assert worker.end() == 0
    assert seen("SELECT state, attempts, rescues FROM salon_jobs_job") == [("queued", 1, 0)]
    assert seen("SELECT attempt, code FROM salon_jobs_job_error") == [(1, "JOB.TIMED_OUT")]
    assert seen("SELECT count(*) FROM customer") == [(1,)]


@pytest.mark.parametrize(
    ("task", "status"), [(tasks.wait_for_file, 0), (tasks.stubborn, 1)], ids=["interruptible", "stubborn"]
)
def test_second_signal_forces_the_end(stores: list[UUID], held: Held, task: Any, status: int) -> None:
    """It waits for no grace, and not for a lost connection either."""
    patches = {} if status else ENDS_IN_TIME
    with WorkerProcess(SHUTDOWN_GRACE=600, PATCHES=patches, ready=True) as worker:
        job = held.begin(task, store_id=stores[0])
        worker.stop()
        worker.wait_for("process_stopping")
        if status:
            end_worker_connections()
        assert worker.end() == status
    assert_given_back(job)


@pytest.mark.parametrize(
    ("task", "kill_early_s", "given_back"),
    [
        (tasks.stubborn, -120.0, {"event": "job_released", "reason": "shutdown"}),
        (tasks.stubborn, 1.0, {"event": "job_rescued", "charged": False}),
        (tasks.stubborn_holding_its_row, -1.0, {"event": "job_rescued", "charged": False}),
        (tasks.hold_gil, 1.0, {"event": "job_rescued", "charged": False}),
    ],
    ids=["gives back", "killed before", "cannot write", "cannot run"],
)
def test_grace_ends_a_stubborn_process(
    stores: list[UUID], held: Held, task: Any, kill_early_s: float, given_back: dict[str, Any]
) -> None:
    """Its job is given back by itself, or by its supervisor if it does not get around to it."""
    patches = {**RESCUED_IN_TIME, "salon_jobs.worker.supervisor._KILL_EARLY_S": kill_early_s}
    if kill_early_s > 0:  # so that it is the supervisor that comes first
        patches |= {"salon_jobs.worker.worker._LEAVE_S": -120.0}
    with WorkerProcess(SHUTDOWN_GRACE=3, PATCHES=patches, ready=True) as worker:
        job = held.begin(task, store_id=stores[0])
        assert worker.end() == 1
        assert worker.logged(**given_back, job_id=job), worker.output
        assert worker.logged("process_stopped", clean=False)
    assert_given_back(job)
    assert seen("SELECT count(*) FROM salon_jobs_process") == [(0,)]
