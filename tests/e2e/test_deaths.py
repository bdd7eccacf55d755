"""Tests that no thread of a process ends in silence: the process is replaced, and what was left undone is done."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import tasks
from tests.e2e.worker_process import RelayProcess, WorkerProcess
from tests.settings import url_for
from tests.support import seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("database")
URL = url_for("worker_runtime")
JOBS = "SELECT count(*) FROM salon_jobs_job"


def ten(worker: WorkerProcess) -> list[int]:
    """Enqueue ten ordinary jobs and wait for their ends."""
    ids = [handle.id for handle in tasks.nothing.enqueue_many([tasks.nothing.call()] * 10)]
    eventually(lambda: seen(JOBS), [(0,)], what=lambda: worker.output)
    return ids


@pytest.mark.parametrize(
    "method",
    [
        "worker.finisher.Finisher.poll",
        "worker.deadlines.DeadlineWatcher.poll",
        "process.listener.Listener.poll",
        "worker.worker.Worker.poll",
        "worker.child._Reporter.poll",
        "worker.runner.Runner._run",
        "worker.child._Child._stop_on_request",
    ],
)
def test_a_child_of_which_a_thread_dies_is_replaced(tmp_path: Path, method: str) -> None:
    (dies := tmp_path / "dies").touch()
    with WorkerProcess("--concurrency", "2", url=URL, DIES=[f"salon_jobs.{method}", str(dies)]) as worker:
        died = worker.wait_for("thread_died")
        assert "SystemExit" in died["traceback"]
        assert worker.wait_for("child_died")["end"] == "ended with status 70"
        ids = ten(worker)
        assert worker.end() == 0, worker.output
        assert sorted(line["job_id"] for line in worker.logged("job_succeeded")) == ids


@pytest.mark.parametrize(
    "method",
    [
        "process.heartbeat.Heartbeat.poll",
        "worker.maintenance.Maintenance.poll",
        "worker.child_process.ChildSupervisor.poll",
        "schedules.scheduler.Scheduler.poll",
        "worker.supervisor.Supervisor.run",
        "worker.child_process.ChildProcess._listen",
        "process.health_server._Server.service_actions",
    ],
)
def test_a_supervisor_of_which_a_thread_dies_stops_and_fails(tmp_path: Path, method: str) -> None:
    (dies := tmp_path / "dies").touch()
    with WorkerProcess("--with-scheduler", url=URL, DIES=[f"salon_jobs.{method}", str(dies)]) as worker:
        assert worker.wait() == 1, worker.output
        assert worker.logged("process_stopped", kind="supervisor", clean=False)
    eventually(lambda: not seen("SELECT FROM salon_jobs_process WHERE kind = 'worker'"))


@pytest.mark.parametrize(
    "method", ["outbox.marker.Marker.poll", "process.listener.Listener.poll", "outbox.relay.Relay.poll"]
)
def test_a_relay_of_which_a_thread_dies_stops_and_fails(tmp_path: Path, method: str) -> None:
    (dies := tmp_path / "dies").touch()
    with RelayProcess(url=URL, OUTBOX={"PRODUCER": "test"}, DIES=[f"salon_jobs.{method}", str(dies)]) as relay:
        assert relay.wait() == 1, relay.output
        assert relay.logged("process_stopped", kind="relay", clean=False)


def test_a_job_that_had_ended_when_its_finisher_died_is_charged_and_runs_again(tmp_path: Path) -> None:
    dies = tmp_path / "dies"
    settings: dict[str, Any] = {"DIES": ["salon_jobs.worker.finisher.Finisher._write_once", str(dies)]}
    with WorkerProcess(url=URL, ready=True, **settings) as worker:
        dies.touch()
        job = tasks.nothing.enqueue()
        assert worker.wait_for("job_rescued", job_id=job.id)["charged"]
        worker.wait_for("job_succeeded", job_id=job.id)
        ten(worker)
        assert worker.end() == 0
    assert seen("SELECT job_id, code FROM salon_jobs_job_error") == [(job.id, "JOB.PROCESS_DIED")]


@pytest.mark.parametrize("how", ["closed", "none", "full"])
def test_a_handler_that_takes_the_output_away_keeps_no_end_from_being_written(how: str) -> None:
    with WorkerProcess(url=URL, ready=True) as worker:
        [child] = worker.children()
        tasks.close_output.enqueue(how=how)
        eventually(lambda: seen(JOBS), [(0,)])
        ten(worker)
        if how != "none":  # our handler has the stream that the process began with
            assert worker.wait_for("log_lost", process_id=child["process_id"])["records"] > 0
        assert worker.ask("/readyz")[0] == 200
        assert worker.children()[0]["pid"] == child["pid"]
        assert worker.end() == 0, worker.output


def test_receivers_that_exit_harm_neither_the_others_nor_the_worker(tmp_path: Path) -> None:
    with WorkerProcess(url=URL, ready=True) as worker:
        [child] = worker.children()
        first = tasks.exit_in_receivers.enqueue(started=str(tmp_path / "told"))
        worker.wait_for("job_succeeded", job_id=first.id)
        ids = ten(worker)
        failed = tasks.fail.enqueue(note="x")
        worker.wait_for("job_failed", job_id=failed.id)
        ids.append(failed.id)
        eventually(lambda: set(ids) <= set(map(int, (tmp_path / "told").read_text().split())))
        assert worker.children()[0]["pid"] == child["pid"]
        assert "ReceiverRaised: SystemExit" in worker.output
        assert worker.end() == 0


def test_a_child_that_can_write_no_end_while_the_database_answers_is_replaced() -> None:
    patches = {"salon_jobs.worker.child._STUCK_S": 1.0, "salon_jobs.worker.child_process._STUCK_S": 2.0}
    with WorkerProcess("--concurrency", "2", url=URL, ready=True, PATCHES=patches) as worker:
        [child] = worker.children()
        worker.wait_for("job_succeeded", job_id=tasks.hold_finisher.enqueue().id)
        job = tasks.nothing.enqueue()
        killed = worker.wait_for("child_killed", process_id=child["process_id"])
        assert killed["reason"].startswith("no end of a run could be written for ")
        assert worker.wait_for("job_rescued", job_id=job.id)["charged"], "it is unknown whether its effects stand"
        worker.wait_for("job_succeeded", job_id=job.id)
        ten(worker)
        assert worker.end() == 0


@pytest.mark.slow
def test_a_child_that_waits_for_a_lock_on_the_jobs_is_left_alone() -> None:
    import psycopg

    patches = {"salon_jobs.worker.child._STUCK_S": 0.5, "salon_jobs.worker.child_process._STUCK_S": 1.0}
    with WorkerProcess("--concurrency", "2", url=URL, ready=True, PATCHES=patches) as worker:
        worker.wait_for("job_succeeded", job_id=tasks.nothing.enqueue().id)
        with psycopg.connect(url_for(None)) as holder:
            job = tasks.wait_briefly.enqueue()
            eventually(lambda: seen("SELECT FROM salon_jobs_job WHERE state = 'running'"))
            holder.execute("LOCK TABLE salon_jobs_job IN SHARE MODE")
            eventually(lambda: seen("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
            signal.sigtimedwait([], 6.0)
        worker.wait_for("job_succeeded", job_id=job.id)
        assert not worker.logged("child_killed")
        assert worker.end() == 0
