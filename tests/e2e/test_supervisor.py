"""Tests what a supervisor does about children that die, hang, hold their GIL or must be killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from django.db import transaction

from salon_jobs import tenant_context
from tests.e2e import tasks
from tests.e2e.held import Held
from tests.e2e.severing_proxy import SeveringProxy
from tests.e2e.worker_process import KEEPS, QUICK, URL, WorkerProcess, gone
from tests.interpreter import ROOT, run_command
from tests.settings import url_for
from tests.support import row_of, seen
from tests.waiting import eventually

CALL = """
import django
from django.core.management import call_command
django.setup()
call_command("runworker", burst=True)
"""
HELD_BY = "SELECT id FROM salon_jobs_job WHERE leased_by = %s"


def states(*job_ids: int) -> list[tuple[object, ...]]:
    return seen("SELECT state, attempts, rescues FROM salon_jobs_job WHERE id = ANY (%s) ORDER BY id", list(job_ids))


def hold_one_of(count: int, held: Held, store: UUID, worker: WorkerProcess, **options: object) -> tuple[int, set[int]]:
    """Have a job run while the others wait behind it in its child; return its id and theirs."""
    worker.wait_for("job_succeeded", job_id=tasks.nothing.enqueue().id)  # it prefetches once it knows how long
    with transaction.atomic(), tenant_context(store):
        running = held.enqueue(options={"priority": -1, **options}, store_id=store)
        waiting = {tasks.write.enqueue(store_id=store).id for _ in range(count - 1)}
    held.wait_for_runs(1)
    return running, waiting


def test_children_share_the_work_and_the_log(database: None) -> None:
    with WorkerProcess("--processes", "2", "--concurrency", "2", ready=True) as worker:
        eventually(lambda: len(worker.children()), 2)
        rows = seen("SELECT id, kind, concurrency, pid, supervisor_id FROM salon_jobs_process ORDER BY id")
        supervisor, *children = rows
        assert supervisor[1:] == ("supervisor", 0, worker.pid, None)
        assert [(row[1], row[2], row[4]) for row in children] == [("worker", 2, supervisor[0])] * 2
        assert {(child["process_id"], child["pid"]) for child in worker.children()} == {(r[0], r[3]) for r in children}
        ids = {handle.id for handle in tasks.nothing.enqueue_many([tasks.nothing.call(note="x" * 50)] * 600)}
        eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job"), [(0,)])
        assert worker.end() == 0
        done = [record["job_id"] for record in worker.logged("job_succeeded")]
        assert sorted(done) == sorted(ids)
        assert all(json.loads(line) for line in worker.lines)
        assert len(worker.logged("process_stopped", clean=True)) == 3
    assert seen("SELECT count(*) FROM salon_jobs_process") == [(0,)]


def test_burst_gives_up_on_children_that_cannot_start(database: None, tmp_path: Path) -> None:
    (fault := tmp_path / "fault").touch()
    with WorkerProcess("--burst", FAULT=str(fault)) as worker:
        assert worker.wait() == 1
        assert len(worker.logged("child_died", end="ended with status 9")) == 2
    [(died,)] = seen("SELECT count(*) FROM salon_jobs_ended_process WHERE died AND jobs = '[]'")
    assert died == 3, "each has had a row, and no job"


def test_jobs_of_a_killed_child_are_rescued(stores: list[UUID], held: Held, tmp_path: Path) -> None:
    """They are queued at once, and only the one that ran is charged; what a handler has left running delays nothing."""
    left = tmp_path / "left"
    with WorkerProcess("--concurrency", "1", PATCHES=KEEPS) as worker:
        process_id, pid = worker.child()
        tasks.leave_behind.enqueue(pid=str(left), own_session=True)
        try:
            running, waiting = hold_one_of(21, held, stores[0], worker)
            leased = {job_id for (job_id,) in seen(HELD_BY, process_id)}
            assert len(leased) > 1, "some wait behind the one that runs"
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: not seen(HELD_BY, process_id))
            died = worker.wait_for("child_died")
            assert (died["end"], died["restart_in_s"]) == ("was killed by SIGKILL", 0)
            held.let_go()
            eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job"), [(0,)])
            assert worker.child()[0] != process_id
            assert worker.end() == 0
            assert not gone(int(left.read_text())), "a daemon with a session of its own stays"
        finally:
            os.kill(int(left.read_text()), signal.SIGKILL)
        rescued = {record["job_id"]: record["charged"] for record in worker.logged("job_rescued")}
        assert rescued == {job_id: job_id == running for job_id in leased}
        runs = [record["job_id"] for record in worker.logged("job_succeeded", task_name="e2e-write")]
        assert sorted(runs) == sorted(waiting)
    assert seen("SELECT job_id, code FROM salon_jobs_job_error") == [(running, "JOB.PROCESS_DIED")]
    assert seen("SELECT id, jobs::text FROM salon_jobs_ended_process WHERE died") == [(process_id, f"[{running}]")]
    assert seen("SELECT count(*) FROM customer") == [(21,)]


def test_locked_job_key_delays_only_its_job(stores: list[UUID], held: Held) -> None:
    """Neither the other jobs of a dead child nor the next child wait for the transaction that holds the key."""
    with WorkerProcess("--concurrency", "1", PATCHES=KEEPS) as worker, psycopg.connect(url_for(None)) as other:
        process_id, pid = worker.child()
        running, _ = hold_one_of(11, held, stores[0], worker, job_key="held")
        other.execute(
            "INSERT INTO salon_jobs_job (task, store_id, job_key, run_at)"
            " SELECT task, store_id, job_key, now() + interval '1 h' FROM salon_jobs_job WHERE id = %s",
            [running],
        )
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: seen("SELECT id, leased_by FROM salon_jobs_job"), [(running, process_id)])
        assert worker.child()[0] != process_id
        assert worker.logged("process_dead", process_id=process_id)[0]["held_up"] == 1
        other.rollback()
        held.let_go()
        eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job"), [(0,)])
        assert worker.end() == 0
    assert seen("SELECT count(*) FROM customer") == [(11,)]


def test_child_killed_during_a_claim_keeps_nothing(stores: list[UUID]) -> None:
    waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
    with WorkerProcess() as worker:
        process_id, pid = worker.child()
        with psycopg.connect(url_for(None)) as holder:
            holder.execute("SELECT FROM salon_jobs_process WHERE id = %s FOR UPDATE", [process_id])
            job_id = tasks.write.enqueue(store_id=stores[0]).id
            eventually(lambda: seen(waits, f"salon_jobs/{process_id}"), [(1,)])
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: gone(pid))
        # The claim of the dead goes on in the server, commits, and is followed by the rescue.
        worker.wait_for("process_dead", process_id=process_id)
        worker.wait_for("job_succeeded", job_id=job_id, attempt=1)
        assert not worker.logged("job_rescued", charged=True)
    assert seen("SELECT count(*) FROM customer") == [(1,)]
    assert seen("SELECT count(*) FROM salon_jobs_job_error") == [(0,)]


def test_claim_without_an_answer_is_given_back(stores: list[UUID]) -> None:
    with (
        SeveringProxy(URL) as proxy,
        WorkerProcess(url=proxy.url, POLL_INTERVAL=3600, LISTEN=URL, ready=True) as worker,
    ):
        eventually(lambda: worker.children()[0]["listening"] is True)
        # A claim that returns nothing, owed to an earlier wake-up, may come first, and a slow one may be fair.
        # Maintenance reads the names of tasks, but no payload.
        proxy.arm_reply(b"unanswered")
        job_id = tasks.write.enqueue(store_id=stores[0], note="unanswered").id
        released = worker.wait_for("job_released", reason="claim answer lost")
        assert (released["task_name"], released["job_id"]) == ("e2e-write", job_id)
        assert (released["store_id"], released["attempt"]) == (str(stores[0]), 1)
        worker.wait_for("job_succeeded", job_id=job_id, attempt=1)
        assert len(worker.logged("job_succeeded")) == 1
    assert seen("SELECT count(*) FROM customer") == [(1,)]


def test_jobs_of_a_killed_supervisor_are_rescued(stores: list[UUID], held: Held) -> None:
    """Its children end with it, though one holds its GIL, and another worker runs its jobs."""
    with WorkerProcess("--processes", "2", **QUICK, ready=True) as worker:
        eventually(lambda: len(worker.children()), 2)
        job_id = held.begin(tasks.hold_gil, store_id=stores[0])
        [(process_id,)] = seen("SELECT leased_by FROM salon_jobs_job")
        pids = [child["pid"] for child in worker.children()]
        worker.stop(signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL
        eventually(lambda: gone(*pids))
        with WorkerProcess(**QUICK) as other:
            dead = other.wait_for("process_dead", process_id=process_id)
            assert (dead["jobs"], dead["level"]) == (1, "warning")
            other.wait_for("job_rescued", job_id=job_id, charged=True, state="queued", attempt=1)
            eventually(held.runs, ["1", "1"], what=lambda: "a death is no attempt")
            held.open_fifo()
            other.wait_for("job_succeeded", job_id=job_id)
            own = other.wait_for("process_started", kind="worker")["process_id"]
            assert not other.logged("process_dead", process_id=own)
    assert seen("SELECT count(*) FROM customer") == [(1,)]
    assert seen("SELECT code, attempt FROM salon_jobs_job_error") == [("JOB.PROCESS_DIED", 1)]


def test_held_gil_stops_no_heartbeat(stores: list[UUID], held: Held) -> None:
    """Nor the health endpoint, nor cron."""
    with (
        WorkerProcess("--with-scheduler", "--concurrency", "2", **QUICK) as worker,
        WorkerProcess("--queue", "none", **QUICK) as other,
    ):
        process_id, _ = worker.child()
        other.wait_until_ready()
        job_id = held.begin(tasks.hold_gil, store_id=stores[0])
        eventually(lambda: worker.children()[0]["silent_s"] > 2)
        status, answer = worker.ask("/readyz")
        assert (status, answer["children"][0]["running"]) == (200, 1)
        eventually(lambda: worker.readiness()["scheduler_polled_s_ago"] < answer["scheduler_polled_s_ago"])
        fresh = "SELECT heartbeat_at > clock_timestamp() - interval '1 s' FROM salon_jobs_process WHERE id = %s"
        eventually(lambda: seen(fresh, process_id), [(True,)])
        row = row_of(job_id)
        assert (row["state"], row["leased_by"]) == ("running", process_id), "after twice the silence"
        held.open_fifo()
        worker.wait_for("job_succeeded", job_id=job_id)
        assert not other.logged("process_dead")
        assert not worker.logged("child_killed")
    assert seen("SELECT count(*) FROM customer") == [(1,)]


@pytest.mark.slow
def test_overdue_run_is_charged_but_not_its_neighbours(stores: list[UUID], held: Held, tmp_path: Path) -> None:
    with WorkerProcess("--concurrency", "2") as worker:
        process_id, _ = worker.child()
        innocent = held.begin(tasks.stubborn, store_id=stores[0])
        culprit = Held(tmp_path / "late").enqueue(tasks.overdue)
        worker.wait_for("child_killed", process_id=process_id)
        retried = worker.wait_for("job_retried", job_id=culprit)
        assert (retried["attempt"], retried["delay_s"] > 1) == (1, True)
        worker.wait_for("job_rescued", job_id=innocent, charged=False)
        eventually(held.runs, ["1"] * 2)
        worker.wait_for("job_failed", job_id=culprit, attempt=2)
        eventually(held.runs, ["1"] * 3)
        assert states(innocent, culprit) == [("running", 0, 0), ("failed", 2, 0)]
        assert not any(record["restart_in_s"] for record in worker.logged("child_died")), "that was no crash"


@pytest.mark.slow
def test_child_is_killed_after_its_other_jobs_end(stores: list[UUID], held: Held, tmp_path: Path) -> None:
    with WorkerProcess("--concurrency", "2", ready=True) as worker:
        embedded = held.begin(store_id=stores[0])
        Held(tmp_path / "late").enqueue(tasks.overdue)
        worker.wait_for("process_stopping")
        held.let_go()
        worker.wait_for("child_killed")
        assert worker.logged("job_succeeded", job_id=embedded)
    assert seen("SELECT count(*) FROM customer") == [(1,)]


@pytest.mark.slow
def test_restarts_back_off(database: None, tmp_path: Path) -> None:
    """A child that dies at once again and again waits longer each time; the others work, and the end is not held up."""
    fault = tmp_path / "fault"
    with WorkerProcess("--processes", "2", FAULT=str(fault), ready=True) as worker:
        eventually(lambda: len(worker.children()), 2)
        first, other = worker.children()
        fault.touch()
        os.kill(first["pid"], signal.SIGKILL)
        eventually(lambda: len(worker.logged("child_died")) >= 4)
        waits = [record["restart_in_s"] for record in worker.logged("child_died")]
        for waited, expected in zip(waits, (0, 0.5, 1, 2), strict=False):
            assert waited == pytest.approx(expected, rel=0.21)
        status, answer = worker.ask("/readyz")
        assert (status, answer["code"]) == (503, "WORKER.NOT_READY")
        assert "times in a row" in answer["detail"]
        worker.wait_for("job_succeeded", job_id=tasks.nothing.enqueue().id)
        os.kill(other["pid"], signal.SIGKILL)
        eventually(lambda: not seen("SELECT FROM salon_jobs_process WHERE id = %s", other["process_id"]))
        assert worker.end() == 0


@pytest.mark.slow
def test_job_that_kills_its_process_fails(database: None) -> None:
    """An exit with status 0 is a death too. A burst stops soon, and the next one runs what waited behind the job."""
    first = tasks.die.using(max_attempts=1, priority=-1).enqueue(status=0).id
    others = {tasks.nothing.enqueue().id for _ in range(3)}
    with WorkerProcess("--burst", "--concurrency", "1", MAX_DEATHS=3) as worker:
        assert worker.wait() == 1, "it died at once three times in a row"
        died = worker.logged("child_died", end="ended with status 0")
        assert [record["restart_in_s"] > 0 for record in died] == [False, True]
        assert {record["job_id"] for record in worker.logged("job_rescued", charged=True)} == {first}
        assert worker.logged("job_failed", job_id=first, code="JOB.PROCESS_DIED")
    with WorkerProcess("--burst") as worker:
        assert worker.wait() == 0
        assert {record["job_id"] for record in worker.logged("job_succeeded")} == others
    assert states(first) == [("failed", 0, 3)]


@pytest.mark.slow
def test_signals_to_children_are_ignored(stores: list[UUID], held: Held) -> None:
    """A terminal signals the whole group; the supervisor alone decides."""
    with WorkerProcess() as worker:
        _, pid = worker.child()
        job_id = held.begin(store_id=stores[0])
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(pid, number)
        worker.stop()
        worker.wait_for("process_stopping")
        held.let_go()
        assert worker.wait() == 0
        assert worker.logged("job_succeeded", job_id=job_id)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-m", "django", "runworker", "--settings", "project.settings"],
        [str(Path(sys.executable).parent / "django-admin"), "runworker", "--settings=project.settings"],
        [sys.executable, str(ROOT / "manage.py"), "runworker"],
        [sys.executable, "-c", CALL],
    ],
    ids=["python -m django", "django-admin", "manage.py", "call_command"],
)
def test_children_start_as_their_supervisor_did(database: None, tmp_path: Path, command: list[str]) -> None:
    job_id = seen("INSERT INTO salon_jobs_job (task) VALUES ('ping') RETURNING id")[0][0]
    environment = {"PYTHONPATH": str(ROOT), "WORKER_DATABASE_URL": URL, "DATABASE_URL": URL, "PATH": os.environ["PATH"]}
    environment |= {"WORKER_PROCESSES": "1"}
    if "--settings" not in " ".join(command):
        environment["DJANGO_SETTINGS_MODULE"] = "project.settings"
    arguments = [] if "-c" in command else ["--burst"]
    done = run_command(*command, *arguments, environment=environment, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["job_id"] for r in records if r["event"] == "job_succeeded"] == [job_id]
