"""When a process counts as dead, what becomes of its jobs and connections, and what makes a worker not ready."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import psycopg
import pytest
from django.conf import settings
from django.db import DatabaseError, OperationalError, connection
from django.test import override_settings

from salon_jobs.core.errors import NotReady, TimedOut
from salon_jobs.db import statements
from salon_jobs.jobs import registry
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.options import ErrorRules
from salon_jobs.jobs.statistics import TaskStatistics
from salon_jobs.jobs.waiting import QueueFront, look_at_queue
from salon_jobs.process.heartbeat import application_name
from salon_jobs.worker import maintenance as maintenance_module
from salon_jobs.worker.in_flight import InFlightRun
from salon_jobs.worker.maintenance import Maintenance, RescueCounts, Rescuer, rescue_process
from salon_jobs.worker.supervisor import RunTotals
from tests import tasks
from tests.management.operator import run as run_command
from tests.metrics import of, shown
from tests.settings import url_for
from tests.support import (
    another_process,
    be_silent,
    change,
    claim,
    elsewhere,
    job_row,
    rescuer,
    row_of,
    seen,
    wait_until_waiting,
)
from tests.waiting import LIMIT_S, eventually
from tests.worker.work import Work

pytestmark = pytest.mark.usefixtures("database")
NOBODY = RescueCounts()
SILENT_S = 16  # one more than the setting


class Clock:
    """Clock of a rescuer, which the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.rescuer = Rescuer(clock=lambda: self.now, using="default")

    def waits_a_full_silence(self) -> None:
        for waited, processes in ((0, 0), (14, 0), (2, 1)):
            self.now += waited
            assert self.rescuer.run_once() == RescueCounts(processes=processes)


def test_delayed_sweep_judges_nobody(process_id: int) -> None:
    """Whatever held up the question (a pooler without a free connection) held up heartbeats too."""
    be_silent(process_id, SILENT_S)
    clock = Clock()
    clock.rescuer.run_once()
    clock.now += 16

    def look(waiting_s: float) -> RescueCounts:
        with ThreadPoolExecutor(1) as pool, psycopg.connect(url_for(None)) as other:
            other.execute("LOCK TABLE salon_jobs_process")
            found = elsewhere(pool, clock.rescuer.run_once)
            wait_until_waiting()
            clock.now += waiting_s
            other.rollback()
            return found.result(LIMIT_S)

    assert look(waiting_s=3.1) == NOBODY
    clock.now += 14
    assert clock.rescuer.run_once() == NOBODY, "they have a silence's time to beat"
    clock.now += 2
    assert look(waiting_s=0.1) == RescueCounts(processes=1)


def test_jobs_of_silent_process_are_requeued(work: Work) -> None:
    """They are not charged."""
    held = work.claim_one()
    other = another_process()
    safe = work.add(store=1)
    claim(other)
    change("UPDATE salon_jobs_job SET started_at = now() - interval '9 h' WHERE id = %s", safe)
    be_silent(work.process_id, SILENT_S)
    assert rescuer().run_once() == RescueCounts(processes=1, queued=1)
    assert seen("SELECT id FROM salon_jobs_process") == [(other,)]
    row = row_of(held.id)
    assert (row["state"], row["attempts"], row["rescues"], row["lease"], row["leased_by"]) == ("queued", 0, 1, 0, None)
    assert row_of(safe)["state"] == "running"
    assert seen("SELECT job_id, attempt, code, error_class, store_id FROM salon_jobs_job_error") == [
        (held.id, 1, "JOB.PROCESS_DIED", "salon_jobs.core.errors.ProcessDied", work.stores[0])
    ]
    [fields] = work.fields("job_rescued")
    assert {"task_name", "job_id", "store_id", "attempt"} <= fields.keys()
    assert rescuer().run_once() == NOBODY


def test_connections_of_other_database_stay(process_id: int) -> None:
    name = application_name(process_id)
    with psycopg.connect(url_for("worker_runtime", "postgres"), application_name=name, autocommit=True) as neighbour:
        be_silent(process_id, SILENT_S)
        assert rescuer().run_once() == RescueCounts(processes=1)
        neighbour.execute("SELECT 1")


def test_dead_process_cannot_commit(work: Work) -> None:
    name = application_name(work.process_id)
    # Not as a context of its own: that commits once more, on a connection that may not know yet how dead it is.
    with closing(psycopg.connect(url_for("worker_runtime"), application_name=name)) as zombie:
        zombie.execute("SELECT set_config('app.current_store_id', %s, true)", [str(work.stores[0])])
        customer = "INSERT INTO customer (id, store_id, name, email) VALUES (%s, %s, 'ghost', 'e')"
        zombie.execute(customer, [uuid4(), work.stores[0]])
        be_silent(work.process_id, SILENT_S)
        rescuer().run_once()
        with pytest.raises(psycopg.OperationalError):
            zombie.commit()
    assert seen("SELECT count(*) FROM customer") == [(0,)]


@pytest.mark.parametrize(
    ("max_attempts", "attempts", "declared", "setting", "fails_at"),
    [(1, 0, None, 5, 5), (25, 22, None, 5, 5), (25, 0, None, 2, 2), (25, 0, 1, 5, 1)],
)
def test_job_that_kills_its_processes(
    work: Work,
    monkeypatch: pytest.MonkeyPatch,
    max_attempts: int,
    attempts: int,
    declared: int | None,
    setting: int,
    fails_at: int,
) -> None:
    """It fails after so many deaths, of the task or else the setting, whatever its attempts are; the error says so."""
    monkeypatch.setattr(tasks.in_store, "max_deaths", declared)
    job_id = work.add(None, tasks.in_store.using(max_attempts=max_attempts))
    change("UPDATE salon_jobs_job SET attempts = %s", attempts)
    with override_settings(SALON_JOBS={**settings.SALON_JOBS, "MAX_DEATHS": setting}):
        _die_with_job(job_id, attempts, fails_at)
    row = row_of(job_id)
    assert (row["state"], row["reason"], row["finished_at"] is None) == ("failed", "process_died", False)
    messages = [message for (message,) in seen("SELECT message FROM salon_jobs_job_error ORDER BY id")]
    assert len(messages) == fails_at
    assert messages[-1].endswith(f"was declared dead; the job fails after {fails_at} such death{'s' * (fails_at > 1)}")
    assert not any("the job fails" in message for message in messages[:-1])
    said = "1 process died running it" if fails_at == 1 else f"{fails_at} processes died running it"
    shown = run_command("show", str(job_id))[0]
    assert f"failed since {said}" in shown
    assert f"of {max_attempts} attempt" in shown


def _die_with_job(job_id: int, attempts: int, fails_at: int) -> None:
    for number in range(1, fails_at + 1):
        process = another_process()
        [job] = claim(process)
        be_silent(process, SILENT_S)
        counts = rescuer().run_once()
        assert counts == (RescueCounts(1, 0, 1) if number == fails_at else RescueCounts(1, 1, 0))
        assert (job.id, job.attempts) == (job_id, attempts), "nobody knows whether it had started"


def test_innocent_jobs_of_lost_process(work: Work) -> None:
    """Of several, nobody knows which killed it: at the fifth such death they fail, or at one that is known."""
    jobs = [work.add(store=store) for store in (0, 0)]
    with override_settings(SALON_JOBS={**settings.SALON_JOBS, "MAX_DEATHS": 1}):
        for number in range(1, 5):
            process = another_process()
            claim(process)
            assert rescue_process(process, None, using="default") == RescueCounts(1, 2, 0), number
        process = another_process()
        claim(process)
        assert rescue_process(process, None, using="default", charged=jobs[:1]) == RescueCounts(1, 1, 1)
        change("UPDATE salon_jobs_job SET state = 'queued', reason = '', finished_at = NULL, run_at = now()")
        assert seen("SELECT rescues FROM salon_jobs_job ORDER BY id") == [(0,), (4,)]
        claim(process := another_process())
        assert rescue_process(process, None, using="default") == RescueCounts(1, 1, 1)
        assert [row_of(job)["state"] for job in jobs] == ["queued", "failed"]


def test_full_silence_on_new_server(process_id: int) -> None:
    be_silent(process_id, SILENT_S)
    Clock().waits_a_full_silence()


def test_full_silence_after_outage(process_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody could beat meanwhile."""
    clock = Clock()
    clock.rescuer.run_once()
    clock.now += 16
    be_silent(process_id, SILENT_S)
    with monkeypatch.context() as patched:
        patched.setattr(statements, "rows", Mock(side_effect=OperationalError("the server closed the connection")))
        with pytest.raises(DatabaseError):
            clock.rescuer.run_once()
    clock.waits_a_full_silence()


@pytest.mark.parametrize(
    "differs",
    [
        "pg_postmaster_start_time() RETURNS timestamptz RETURN timestamptz '2026-01-01 00:00Z'",
        "pg_is_in_recovery() RETURNS bool RETURN true",
    ],
)
def test_full_silence_on_other_server(process_id: int, differs: str) -> None:
    """No statement failed: the connection was replaced between two sweeps, or led to a standby before."""
    clock = Clock()
    clock.rescuer.run_once()
    clock.now += 16
    change(f"CREATE SCHEMA another; CREATE FUNCTION another.{differs}; GRANT USAGE ON SCHEMA another TO PUBLIC")
    be_silent(process_id, SILENT_S)
    try:
        statements.in_one_trip(connection, "SET search_path = another, pg_catalog, public")
        clock.waits_a_full_silence()
    finally:
        statements.in_one_trip(connection, "RESET search_path")
        change("DROP SCHEMA another CASCADE")
    assert clock.rescuer.run_once() == NOBODY, "this one is known"


def test_silence_is_a_setting(process_id: int, settings: Any) -> None:
    be_silent(process_id, SILENT_S)
    settings.SALON_JOBS = {**settings.SALON_JOBS, "PROCESS_SILENT_AFTER": 3000}
    assert rescuer().run_once() == NOBODY
    assert rescuer().run_once(silent_after=timedelta(seconds=8)) == RescueCounts(processes=1)
    be_silent(another_process(), 3001)
    assert rescuer().run_once() == RescueCounts(processes=1)


def test_started_jobs_of_dead_child_are_charged(work: Work) -> None:
    """Others are not."""
    started, waiting = work.add(), work.add()
    work.claim()
    how = {"end": "was killed by SIGKILL", "charged": [started]}
    assert rescue_process(work.process_id, None, **how, using="default") == RescueCounts(1, 2)  # type: ignore[arg-type]
    jobs = seen("SELECT id, state, attempts, rescues, lease, leased_by FROM salon_jobs_job ORDER BY id")
    assert jobs == [(started, "queued", 0, 1, 0, None), (waiting, "queued", 0, 0, 0, None)]
    [(job_id, message)] = seen("SELECT job_id, message FROM salon_jobs_job_error")
    assert job_id == started
    assert message.endswith("was killed by SIGKILL and was declared dead")


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_run_for_which_child_was_killed(work: Work, max_attempts: int) -> None:
    """It is a failed attempt, and its neighbour is not."""
    culprit = work.add(None, tasks.in_store.using(max_attempts=max_attempts))
    work.add()
    job, other = work.claim()
    assert job.id == culprit
    ids = ((0, culprit, job.lease), (1, other.id, other.lease + 1))
    overdue = [InFlightRun(*each, 100.0, 101.5) for each in ids]
    rescue_process(work.process_id, None, charged=[], overdue=overdue, using="default")
    jobs = seen("SELECT id, state, attempts, rescues, run_at > now() FROM salon_jobs_job ORDER BY id")
    assert jobs[0] == ((culprit, "failed", 1, 0, False) if max_attempts == 1 else (culprit, "queued", 1, 0, True))
    assert jobs[1] == (other.id, "queued", 0, 0, False), "a lease of before is another run's"
    assert seen("SELECT job_id, attempt FROM salon_jobs_job_error") == [(culprit, 1)]
    assert len(work.fields("job_failed" if max_attempts == 1 else "job_retried")) == 1


@pytest.mark.parametrize(
    ("rules", "ended"),
    [
        ({"fail_on": (TimedOut,)}, ("failed", "JOB.TIMED_OUT")),
        ({"retry_on": (OSError,)}, ("failed", "JOB.TIMED_OUT")),
        ({"retry_on": (TimedOut,)}, ("queued", "")),
        (
            {"discard_on": (TimedOut,)},
            ("cancelled", "discarded: TimedOut: timed out, went on for 1.5 s and was killed with its process"),
        ),
    ],
)
def test_error_rules_of_killed_childs_run(
    work: Work, monkeypatch: pytest.MonkeyPatch, rules: dict[str, Any], ended: tuple[str, str]
) -> None:
    """The task's rules apply to this timeout as to one that the handler has met."""
    monkeypatch.setattr(tasks.in_store, "errors", ErrorRules(**rules))
    job = work.claim_one()
    overdue = [InFlightRun(0, job.id, job.lease, 100.0, 101.5)]
    rescue_process(work.process_id, None, charged=[], overdue=overdue, using="default")
    assert seen("SELECT state, reason FROM salon_jobs_job") == [ended]


def test_worker_without_heartbeat_claims_nothing(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage, others may declare it dead."""
    answers: list[bool] = []
    really = Leases.has_fresh_heartbeat

    def has_fresh_heartbeat(leases: Leases) -> bool:
        answers.append(really(leases))
        return answers[-1]

    monkeypatch.setattr(Leases, "has_fresh_heartbeat", has_fresh_heartbeat)
    be_silent(work.process_id, 10)
    job_id = work.add(None, tasks.system)
    with work.working():
        eventually(lambda: len(answers) > 2)
        assert row_of(job_id)["state"] == "queued"
        change("UPDATE salon_jobs_process SET heartbeat_at = now()")
        eventually(lambda: job_row(job_id) is None)
    assert answers[-1]
    assert not any(answers[:-1])


def test_worker_without_sweep_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = threading.Event()

    def fail(_rescuer: Rescuer) -> None:
        swept.set()
        raise OperationalError("no")

    monkeypatch.setattr(Rescuer, "run_once", fail)
    monkeypatch.setattr("salon_jobs.worker.maintenance._SWEEP_STALE_S", 0.2)
    maintenance = Maintenance(using="default")
    maintenance.start()
    try:
        assert swept.wait(LIMIT_S)
        eventually(lambda: of(shown(maintenance.samples()), "loop_age_seconds", loop="sweep") > 0.2)
        with pytest.raises(NotReady, match="no sweep for dead processes has succeeded"):
            maintenance.require_ready()
    finally:
        maintenance.stop()
        assert maintenance.join(LIMIT_S)


def test_counts_are_reported_once(process_id: int) -> None:
    """Tasks of another release are one."""
    statistics, totals = TaskStatistics(), RunTotals()
    for task in ("ping", "ping", "left-over", "left-behind"):
        statistics.count_untimed("job_rescued", task, "default")
    for _ in range(2):
        totals.add(statistics.take_report())  # also while the database is away
        statistics.flush(using="default")
    assert seen("SELECT task, rescued FROM salon_jobs_task_minute WHERE task = 'ping'") == [("ping", 2)]
    statistics.count_untimed("job_rescued", "ping", "default")
    statistics.flush(using="default")
    totals.add([*statistics.take_report(), *statistics.take_report()])
    values = shown(totals.samples())
    assert of(values, "finished_total", task="ping", outcome="rescued") == 3
    assert of(values, "finished_total", task="other", outcome="rescued") == 2
    assert ("salon_jobs_finished_total", (("outcome", "failed"), ("task", "test-store"))) in values


def test_task_registered_while_looking(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It is not unknown. Before each of the first two looks at the queue, a job of another new task is added."""
    late = ["late", "later"]
    paths: set[str] = set()

    def find(using: str) -> bool:
        waiting = {task for (task,) in seen("SELECT task FROM salon_jobs_job")} & {"late", "later"} - paths
        paths.update(waiting)
        return bool(waiting)

    def look(*, using: str) -> QueueFront:
        if late:
            change("INSERT INTO salon_jobs_job (task) VALUES (%s), ('never-seen')", late.pop(0))
        return look_at_queue(using=using)

    monkeypatch.setattr(registry, "_finders", [find])
    monkeypatch.setattr(registry, "task_names", lambda: sorted(paths))
    monkeypatch.setattr(maintenance_module, "look_at_queue", look)
    maintenance = Maintenance(using="default")
    maintenance.poll()
    assert maintenance.front.unknown_tasks == ("never-seen",)
    fields: list[Any] = [vars(record).get("event_fields") for record in caplog.records if "tasks" in record.message]
    assert [each["tasks"] for each in fields] == [["never-seen"]]


def test_lag_is_told_while_jobs_are_late(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """And once more when they no longer are; an idle worker says nothing every ten seconds."""
    lags = [0.0, 0.4, 5.0, 7.0, 0.2, 0.2, 0.0]
    fronts = iter(map(QueueFront, lags))
    monkeypatch.setattr(maintenance_module, "look_at_queue", lambda **_: next(fronts))
    monkeypatch.setattr(maintenance_module, "_INSPECT_EVERY_S", 0.0)
    maintenance = Maintenance(using="default")
    with caplog.at_level(logging.DEBUG, "salon_jobs"):
        for _ in lags:
            maintenance.poll()
    told = [record for record in caplog.records if getattr(record, "event", "") == "queue_lag"]
    assert [vars(record)["event_fields"]["lag_s"] for record in told] == lags
    assert [record.levelname for record in told] == ["DEBUG", "DEBUG", "INFO", "INFO", "INFO", "DEBUG", "DEBUG"]
