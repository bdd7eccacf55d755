"""Tests what a supervisor does about children that die, hang, hold their GIL or must be killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import transaction

from salon_jobs import tenant_context
from tests.e2e import tasks
from tests.e2e.severing_proxy import SeveringProxy
from tests.e2e.worker_process import WorkerProcess
from tests.interpreter import ROOT, run_command
from tests.settings import url_for
from tests.support import change, job_row, seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("stubborn")
URL = url_for("worker_runtime")
CALL = """
import django
from django.core.management import call_command
django.setup()
call_command("runworker", burst=True)
"""
QUICK: dict[str, Any] = {"PROCESS_SILENT_AFTER": 1, "POLL_INTERVAL": 0.2}


def gone(pid: int) -> bool:
    """Return whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def child_of(worker: WorkerProcess) -> tuple[int, int]:
    """Return process_id and pid of the only child."""
    [child] = worker.wait_until_ready().children()
    return child["process_id"], child["pid"]


def states(*job_ids: int) -> list[tuple[object, ...]]:
    return seen("SELECT state, attempts, rescues FROM salon_jobs_job WHERE id = ANY (%s) ORDER BY id", list(job_ids))


def test_children_have_rows_of_their_own_and_share_the_work_and_the_log(database: None) -> None:
    with WorkerProcess("--processes", "2", "--concurrency", "2", url=URL, ready=True) as worker:
        eventually(lambda: len(worker.children()), 2)
        rows = seen("SELECT id, kind, concurrency, pid, supervisor_id FROM salon_jobs_process ORDER BY id")
        supervisor, *children = rows
        assert supervisor[1:] == ("supervisor", 0, worker.pid, None)
        assert [(row[1], row[2], row[4]) for row in children] == [("worker", 2, supervisor[0])] * 2
        assert {(child["process_id"], child["pid"]) for child in worker.children()} == {(r[0], r[3]) for r in children}
        ids = {handle.id for handle in tasks.nothing.enqueue_many([tasks.nothing.call(note="x" * 50)] * 3000)}
        eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job"), [(0,)])
        assert worker.end() == 0
        done = [record["job_id"] for record in worker.logged("job_succeeded")]
        assert sorted(done) == sorted(ids)
        assert all(json.loads(line) for line in worker.lines)
        assert len(worker.logged("process_stopped", clean=True)) == 3
    assert seen("SELECT count(*) FROM salon_jobs_process") == [(0,)]


@pytest.mark.slow
def test_a_burst_ends_when_every_child_has_nothing_left(stores: list[UUID]) -> None:
    for store in stores:
        tasks.write.enqueue(store_id=store)
    with WorkerProcess("--burst", "--processes", "2", url=URL) as worker:
        assert worker.wait() == 0
        assert len(worker.logged("job_succeeded")) == 3
    assert seen("SELECT count(*) FROM salon_jobs_process") == [(0,)]


def test_a_burst_gives_up_on_children_that_can_not_start(database: None, tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    fault.touch()
    with WorkerProcess("--burst", url=URL, FAULT=str(fault)) as worker:
        assert worker.wait() == 1
        assert len(worker.logged("child_died", end="ended with status 9")) == 2


def test_jobs_of_a_killed_child_are_queued_at_once_and_only_those_that_ran_are_charged(
    stores: list[UUID], tmp_path: Path
) -> None:
    started, gate = tmp_path / "started", tmp_path / "gate"
    with WorkerProcess("--concurrency", "1", url=URL) as worker:
        process_id, pid = child_of(worker)
        worker.wait_for("job_succeeded", job_id=tasks.nothing.enqueue().id)  # it prefetches once it knows how long
        with transaction.atomic(), tenant_context(stores[0]):
            first = tasks.wait_for_file.using(priority=-1)
            running = first.enqueue(store_id=stores[0], started=str(started), gate=str(gate)).id
            waiting = {tasks.write.enqueue(store_id=stores[0]).id for _ in range(20)}
        eventually(started.exists)
        [(held,)] = seen("SELECT count(*) FROM salon_jobs_job WHERE leased_by = %s", process_id)
        assert held > 1, "some wait behind the one that runs"
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not seen("SELECT FROM salon_jobs_job WHERE leased_by = %s", process_id))
        died = worker.wait_for("child_died")
        assert (died["end"], died["restart_in_s"]) == ("was killed by SIGKILL", 0)
        gate.touch()
        eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job"), [(0,)])
        assert child_of(worker)[0] != process_id
        assert worker.end() == 0
        rescued = {record["job_id"]: record["charged"] for record in worker.logged("job_rescued")}
        assert len(rescued) == held
        assert [job_id for job_id, charged in rescued.items() if charged] == [running]
        assert set(rescued) - {running} <= waiting
        runs = [record["job_id"] for record in worker.logged("job_succeeded", task_name="e2e-write")]
        assert sorted(runs) == sorted(waiting)
    assert seen("SELECT job_id, code FROM salon_jobs_job_error") == [(running, "JOB.PROCESS_DIED")]
    assert seen("SELECT count(*) FROM customer") == [(21,)]


@pytest.mark.slow
def test_what_a_handler_left_behind_holds_up_neither_the_rescue_nor_the_replacement(
    stores: list[UUID], tmp_path: Path
) -> None:
    started, gate, left = tmp_path / "started", tmp_path / "gate", tmp_path / "pid"
    with WorkerProcess(url=URL) as worker:
        process_id, pid = child_of(worker)
        worker.wait_for("job_succeeded", job_id=tasks.leave_behind.enqueue(pid=str(left), own_session=True).id)
        try:
            tasks.wait_for_file.enqueue(store_id=stores[0], started=str(started), gate=str(gate))
            eventually(started.exists)
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: not seen("SELECT FROM salon_jobs_job WHERE leased_by = %s", process_id))
            gate.touch()
            worker.wait_for("job_succeeded", task_name="e2e-wait-for-file")
            assert worker.end() == 0
            assert not gone(int(left.read_text())), "a daemon with a session of its own stays"
        finally:
            os.kill(int(left.read_text()), signal.SIGKILL)


def test_a_transaction_that_holds_the_key_of_one_job_holds_up_neither_the_others_nor_the_next_child(
    stores: list[UUID], tmp_path: Path
) -> None:
    started, gate = tmp_path / "started", tmp_path / "gate"
    with WorkerProcess("--concurrency", "1", url=URL) as worker, psycopg.connect(url_for(None)) as other:
        process_id, pid = child_of(worker)
        worker.wait_for("job_succeeded", job_id=tasks.nothing.enqueue().id)  # it prefetches once it knows how long
        with transaction.atomic(), tenant_context(stores[0]):
            running = tasks.wait_for_file.using(priority=-1, job_key="held")
            held = running.enqueue(store_id=stores[0], started=str(started), gate=str(gate)).id
            for _ in range(10):
                tasks.write.enqueue(store_id=stores[0])
        eventually(started.exists)
        other.execute(
            "INSERT INTO salon_jobs_job (task, store_id, job_key, run_at)"
            " SELECT task, store_id, job_key, now() + interval '1 h' FROM salon_jobs_job WHERE id = %s",
            [held],
        )
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: seen("SELECT id, leased_by FROM salon_jobs_job"), [(held, process_id)])
        assert child_of(worker)[0] != process_id
        assert worker.logged("process_dead", process_id=process_id)[0]["held_up"] == 1
        other.rollback()
        gate.touch()
        eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job"), [(0,)])
        assert worker.end() == 0
    assert seen("SELECT count(*) FROM customer") == [(11,)]


def test_a_child_killed_in_the_midst_of_a_claim_keeps_nothing(stores: list[UUID]) -> None:
    waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
    with WorkerProcess(url=URL) as worker:
        process_id, pid = child_of(worker)
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


def test_jobs_whose_claim_was_committed_and_never_answered_are_given_back_at_once(stores: list[UUID]) -> None:
    with SeveringProxy(URL) as proxy, WorkerProcess(url=proxy.url, POLL_INTERVAL=60, LISTEN=URL) as worker:
        worker.wait_until_ready()
        eventually(lambda: worker.children()[0]["listening"] is True)
        # A claim that returns nothing, owed to an earlier wake-up, may come first, and a slow one may be fair.
        # Maintenance reads the names of tasks, but no payload.
        proxy.arm_reply(b"unanswered")
        job_id = tasks.write.enqueue(store_id=stores[0], note="unanswered").id
        assert proxy.severed.wait(30)
        released = worker.wait_for("job_released", reason="claim answer lost")
        assert (released["task_name"], released["job_id"]) == ("e2e-write", job_id)
        assert (released["store_id"], released["attempt"]) == (str(stores[0]), 1)
        worker.wait_for("job_succeeded", job_id=job_id, attempt=1)
        assert len(worker.logged("job_succeeded")) == 1
    assert seen("SELECT count(*) FROM customer") == [(1,)]


def test_children_end_with_a_killed_supervisor_and_another_worker_has_their_jobs(
    stores: list[UUID], tmp_path: Path
) -> None:
    started, fifo = tmp_path / "started", tmp_path / "fifo"
    os.mkfifo(fifo)
    with WorkerProcess("--processes", "2", url=URL, **QUICK, ready=True) as worker:
        eventually(lambda: len(worker.children()), 2)
        job_id = tasks.hold_gil.enqueue(store_id=stores[0], started=str(started), fifo=str(fifo)).id
        eventually(started.exists)
        pids = [child["pid"] for child in worker.children()]
        worker.stop(signal.SIGKILL)
        eventually(lambda: all(map(gone, pids)))
        with WorkerProcess(url=URL, **QUICK) as other:
            other.wait_for("job_rescued", job_id=job_id, charged=True)
            eventually(lambda: started.read_text().split(), ["1", "1"])
            os.close(os.open(fifo, os.O_WRONLY))
            other.wait_for("job_succeeded", job_id=job_id)
    assert seen("SELECT count(*) FROM customer") == [(1,)]


def test_a_handler_that_holds_the_gil_stops_neither_heartbeat_nor_health_nor_cron(
    stores: list[UUID], tmp_path: Path
) -> None:
    started, fifo = tmp_path / "started", tmp_path / "fifo"
    os.mkfifo(fifo)
    with (
        WorkerProcess("--with-scheduler", "--concurrency", "2", url=URL, **QUICK) as worker,
        WorkerProcess("--queue", "none", url=URL, **QUICK) as other,
    ):
        process_id, _ = child_of(worker)
        other.wait_until_ready()
        job_id = tasks.hold_gil.enqueue(store_id=stores[0], started=str(started), fifo=str(fifo)).id
        eventually(started.exists)
        eventually(lambda: worker.children()[0]["silent_s"] > 4)
        status, answer = worker.ask("/readyz")
        assert (status, answer["children"][0]["running"]) == (200, 1)
        eventually(lambda: worker.ask("/readyz")[1]["scheduler_polled_s_ago"] < 6)
        fresh = "SELECT heartbeat_at > clock_timestamp() - interval '1 s' FROM salon_jobs_process WHERE id = %s"
        eventually(lambda: seen(fresh, process_id), [(True,)])
        row = job_row(job_id)
        assert row is not None
        assert (row["state"], row["leased_by"]) == ("running", process_id), "four times the silence"
        os.close(os.open(fifo, os.O_WRONLY))
        worker.wait_for("job_succeeded", job_id=job_id)
        assert not other.logged("process_dead")
        assert not worker.logged("child_killed")
    assert seen("SELECT count(*) FROM customer") == [(1,)]


def test_a_handler_that_holds_the_gil_ends_with_the_grace_and_its_job_is_given_back(
    stores: list[UUID], tmp_path: Path
) -> None:
    started, fifo = tmp_path / "started", tmp_path / "fifo"
    os.mkfifo(fifo)
    with WorkerProcess(url=URL, SHUTDOWN_GRACE=3, ready=True) as worker:
        job_id = tasks.hold_gil.enqueue(store_id=stores[0], started=str(started), fifo=str(fifo)).id
        eventually(started.exists)
        began = time.monotonic()
        assert worker.end() == 1
        assert time.monotonic() - began <= 3
    assert states(job_id) == [("queued", 0, 0)]
    assert seen("SELECT count(*) FROM customer") == [(0,)]
    assert seen("SELECT count(*) FROM salon_jobs_process") == [(0,)]


@pytest.mark.slow
def test_a_run_past_its_limit_is_charged_and_its_neighbours_are_not(stores: list[UUID], tmp_path: Path) -> None:
    started, late = tmp_path / "started", tmp_path / "late"
    with WorkerProcess("--concurrency", "2", url=URL) as worker:
        process_id, _ = child_of(worker)
        innocent = tasks.stubborn.enqueue(store_id=stores[0], started=str(started)).id
        eventually(started.exists)
        culprit = tasks.overdue.enqueue(started=str(late)).id
        worker.wait_for("child_killed", process_id=process_id)
        retried = worker.wait_for("job_retried", job_id=culprit)
        assert (retried["attempt"], retried["delay_s"] > 1) == (1, True)
        worker.wait_for("job_rescued", job_id=innocent, charged=False)
        eventually(lambda: started.read_text().split(), ["1", "1"])
        worker.wait_for("job_failed", job_id=culprit, attempt=2)
        eventually(lambda: started.read_text().split(), ["1", "1", "1"])
        assert states(innocent, culprit) == [("running", 0, 0), ("failed", 2, 0)]
        assert not any(record["restart_in_s"] for record in worker.logged("child_died")), "that was no crash"


@pytest.mark.slow
def test_a_child_whose_other_jobs_end_in_time_is_killed_after_them(stores: list[UUID], tmp_path: Path) -> None:
    started, gate, late = tmp_path / "started", tmp_path / "gate", tmp_path / "late"
    with WorkerProcess("--concurrency", "2", url=URL, ready=True) as worker:
        embedded = tasks.wait_for_file.enqueue(store_id=stores[0], started=str(started), gate=str(gate)).id
        eventually(started.exists)
        tasks.overdue.enqueue(started=str(late))
        worker.wait_for("process_stopping")
        gate.touch()
        worker.wait_for("child_killed")
        assert worker.logged("job_succeeded", job_id=embedded)
    assert seen("SELECT count(*) FROM customer") == [(1,)]


@pytest.mark.slow
def test_a_child_whose_row_is_gone_is_killed_and_replaced_and_the_supervisor_lives(database: None) -> None:
    with WorkerProcess(url=URL, **QUICK) as worker:
        process_id, pid = child_of(worker)
        change("DELETE FROM salon_jobs_process WHERE id = %s", process_id)
        worker.wait_for(
            "child_killed",
            process_id=process_id,
            reason="its row is gone: others declared it dead, or a failover lost its claims",
        )
        eventually(lambda: gone(pid))
        worker.wait_for("job_succeeded", job_id=tasks.nothing.enqueue().id)
        assert child_of(worker)[0] != process_id
        assert worker.end() == 0


@pytest.mark.slow
def test_a_child_that_dies_at_once_again_and_again_waits_longer_each_time_and_the_others_work(
    database: None, tmp_path: Path
) -> None:
    fault = tmp_path / "fault"
    with WorkerProcess("--processes", "2", url=URL, FAULT=str(fault), ready=True) as worker:
        eventually(lambda: len(worker.children()), 2)
        fault.touch()
        os.kill(worker.children()[0]["pid"], signal.SIGKILL)
        eventually(lambda: len(worker.logged("child_died")) >= 4)
        waits = [record["restart_in_s"] for record in worker.logged("child_died")]
        for waited, expected in zip(waits, (0, 0.5, 1, 2), strict=False):
            assert waited == pytest.approx(expected, rel=0.21)
        status, answer = worker.ask("/readyz")
        assert (status, answer["code"]) == (503, "WORKER.NOT_READY")
        assert "times in a row" in answer["detail"]
        worker.wait_for("job_succeeded", job_id=tasks.nothing.enqueue().id)
        [(other, pid)] = seen("SELECT id, pid FROM salon_jobs_process WHERE kind = 'worker'")
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not seen("SELECT FROM salon_jobs_process WHERE id = %s", other))
        worker.stop()
        assert worker.wait(5) == 0, "the pause before the next try holds nothing up"


@pytest.mark.slow
def test_a_job_that_kills_its_process_is_failed_in_the_end(database: None) -> None:
    with WorkerProcess(url=URL, POLL_INTERVAL=0.2) as worker:
        job_id = tasks.die.using(max_attempts=1).enqueue().id
        worker.wait_for("job_failed", job_id=job_id, code="JOB.PROCESS_DIED")
        worker.wait_for("job_succeeded", job_id=tasks.nothing.enqueue().id)
    assert states(job_id) == [("failed", 0, 3)]


@pytest.mark.slow
def test_a_job_that_ends_its_process_as_if_all_were_well_is_a_death_too(database: None) -> None:
    """Alone it is charged, and a burst goes on with what waited behind it."""
    first = tasks.die.using(max_attempts=1, priority=-1).enqueue(status=0).id
    others = {tasks.nothing.enqueue().id for _ in range(3)}
    with WorkerProcess("--burst", "--concurrency", "1", url=URL) as worker:
        assert worker.wait() == 1, "it died at once three times in a row"
        died = worker.logged("child_died", end="ended with status 0")
        assert [record["restart_in_s"] > 0 for record in died] == [False, True]
        assert {record["job_id"] for record in worker.logged("job_rescued", charged=True)} == {first}
        assert worker.logged("job_failed", job_id=first, code="JOB.PROCESS_DIED")
    with WorkerProcess("--burst", url=URL) as worker:
        assert worker.wait() == 0
        assert {record["job_id"] for record in worker.logged("job_succeeded")} == others
    assert states(first) == [("failed", 0, 3)]


@pytest.mark.slow
def test_a_signal_to_the_whole_group_is_the_supervisors_alone(stores: list[UUID], tmp_path: Path) -> None:
    started, gate = tmp_path / "started", tmp_path / "gate"
    with WorkerProcess(url=URL) as worker:
        _, pid = child_of(worker)
        job_id = tasks.wait_for_file.enqueue(store_id=stores[0], started=str(started), gate=str(gate)).id
        eventually(started.exists)
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(pid, number)
        worker.stop()
        worker.wait_for("process_stopping")
        gate.touch()
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
def test_children_are_started_as_the_supervisor_was(database: None, tmp_path: Path, command: list[str]) -> None:
    job_id = seen("INSERT INTO salon_jobs_job (task) VALUES ('ping') RETURNING id")[0][0]
    environment = {"PYTHONPATH": str(ROOT), "WORKER_DATABASE_URL": URL, "DATABASE_URL": URL, "PATH": os.environ["PATH"]}
    if "--settings" not in " ".join(command):
        environment["DJANGO_SETTINGS_MODULE"] = "project.settings"
    arguments = [] if "-c" in command else ["--burst"]
    done = run_command(*command, *arguments, environment=environment, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["job_id"] for r in records if r["event"] == "job_succeeded"] == [job_id]
