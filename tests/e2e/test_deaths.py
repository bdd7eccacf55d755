"""Tests that no thread of a process ends in silence: the process is replaced, and what was left undone is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.e2e import tasks
from tests.e2e.worker_process import RelayProcess, WorkerProcess
from tests.settings import url_for
from tests.support import seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("database")
JOBS = "SELECT count(*) FROM salon_jobs_job"
OF_CHILD = (
    "worker.finisher.Finisher.poll",
    "worker.deadlines.DeadlineWatcher.poll",
    "process.listener.Listener.poll",
    "worker.worker.Worker.poll",
    "worker.child._Reporter.poll",
    "worker.runner.Runner._run",
    "worker.child._Child._stop_on_request",
)
OF_SUPERVISOR = (
    "process.heartbeat.Heartbeat.poll",
    "worker.maintenance.Maintenance.poll",
    "worker.child_process.ChildSupervisor.poll",
    "schedules.scheduler.Scheduler.poll",
    "worker.supervisor.Supervisor.run",
    "worker.child_process.ChildProcess._listen",
    "process.health_server._Server.service_actions",
)
OF_RELAY = ("outbox.marker.Marker.poll", "process.listener.Listener.poll", "outbox.relay.Relay.poll")


def dying(method: str, folder: Path) -> dict[str, Any]:
    """Return the settings of a process in which the first call of a method ends its thread."""
    (dies := folder / "dies").touch()
    return {"DIES": [f"salon_jobs.{method}", str(dies)]}


def ten(worker: WorkerProcess) -> list[int]:
    """Enqueue ten ordinary jobs and wait for their ends."""
    ids = [handle.id for handle in tasks.nothing.enqueue_many([tasks.nothing.call()] * 10)]
    eventually(lambda: seen(JOBS), [(0,)], what=lambda: worker.output)
    return ids


@pytest.mark.parametrize("method", OF_CHILD)
def test_child_is_replaced_when_a_thread_dies(tmp_path: Path, method: str) -> None:
    with WorkerProcess("--concurrency", "2", **dying(method, tmp_path)) as worker:
        assert "SystemExit" in worker.wait_for("thread_died")["traceback"]
        assert worker.wait_for("child_died")["end"] == "ended with status 70"
        ids = ten(worker)
        assert worker.end() == 0, worker.output
        assert sorted(line["job_id"] for line in worker.logged("job_succeeded")) == ids


@pytest.mark.parametrize(
    ("kind", "method"),
    [*(("supervisor", method) for method in OF_SUPERVISOR), *(("relay", method) for method in OF_RELAY)],
)
def test_process_fails_when_a_thread_dies(tmp_path: Path, kind: str, method: str) -> None:
    settings = dying(method, tmp_path)
    started = (
        WorkerProcess("--with-scheduler", **settings)
        if kind == "supervisor"
        else RelayProcess(OUTBOX={"PRODUCER": "test"}, **settings)
    )
    with started as process:
        assert process.wait() == 1, process.output
        assert process.logged("process_stopped", kind=kind, clean=False)
    eventually(lambda: not seen("SELECT FROM salon_jobs_process WHERE kind = 'worker'"))


def test_ended_job_runs_again_when_the_finisher_dies(tmp_path: Path) -> None:
    settings = dying("worker.finisher.Finisher._write_once", tmp_path)
    (tmp_path / "dies").unlink()
    with WorkerProcess(ready=True, **settings) as worker:
        (tmp_path / "dies").touch()
        job = tasks.nothing.enqueue()
        assert worker.wait_for("job_rescued", job_id=job.id)["charged"]
        worker.wait_for("job_succeeded", job_id=job.id)
        ten(worker)
        assert worker.end() == 0
    assert seen("SELECT job_id, code FROM salon_jobs_job_error") == [(job.id, "JOB.PROCESS_DIED")]


@pytest.mark.parametrize("how", ["closed", "none", "full"])
def test_lost_output_keeps_no_end_from_being_written(how: str) -> None:
    with WorkerProcess(ready=True) as worker:
        [child] = worker.children()
        tasks.close_output.enqueue(how=how)
        eventually(lambda: seen(JOBS), [(0,)])
        ten(worker)
        if how != "none":  # our handler has the stream that the process began with
            assert worker.wait_for("log_lost", process_id=child["process_id"])["records"] > 0
        assert worker.ask("/readyz")[0] == 200
        assert worker.children()[0]["pid"] == child["pid"]
        assert worker.end() == 0, worker.output


def test_receivers_that_exit_harm_nobody(tmp_path: Path) -> None:
    with WorkerProcess(ready=True) as worker:
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


def test_child_that_can_write_no_end_is_replaced() -> None:
    patches = {"salon_jobs.worker.child._STUCK_S": 1.0, "salon_jobs.worker.child_process._STUCK_S": 2.0}
    with WorkerProcess("--concurrency", "2", ready=True, PATCHES=patches) as worker:
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
def test_child_that_waits_is_left_alone() -> None:
    patches = {"salon_jobs.worker.child._STUCK_S": 0.5, "salon_jobs.worker.child_process._STUCK_S": 1.0}
    with WorkerProcess("--concurrency", "2", ready=True, PATCHES=patches) as worker:
        worker.wait_for("job_succeeded", job_id=tasks.nothing.enqueue().id)
        with psycopg.connect(url_for(None)) as holder:
            job = tasks.wait_briefly.enqueue()
            eventually(lambda: seen("SELECT FROM salon_jobs_job WHERE state = 'running'"))
            holder.execute("LOCK TABLE salon_jobs_job IN SHARE MODE")
            waits = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            eventually(lambda: seen(waits))
            # Many times the seconds after which it would be killed.
            eventually(lambda: holder.execute("SELECT clock_timestamp() - now() > '6 s'").fetchall(), [(True,)])
        worker.wait_for("job_succeeded", job_id=job.id)
        assert not worker.logged("child_killed")
        assert worker.end() == 0
