"""Tests when a process counts as dead, and what becomes of its jobs and its connections."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import Any
from unittest.mock import Mock
from uuid import UUID, uuid4

import psycopg
import pytest
from django.db import DatabaseError, OperationalError, connection

from salon_jobs.db import statements
from salon_jobs.jobs.leases import Leases
from salon_jobs.process.heartbeat import application_name
from salon_jobs.worker.in_flight import InFlightRun
from salon_jobs.worker.maintenance import RescueCounts, Rescuer, rescue_process
from tests import tasks
from tests.settings import url_for
from tests.support import (
    another_process,
    be_silent,
    change,
    claim,
    elsewhere,
    event_fields,
    job_row,
    rescuer,
    row_of,
    seen,
    wait_until_waiting,
    working,
)
from tests.waiting import eventually


def test_nobody_is_judged_when_the_question_itself_had_to_wait(process_id: int) -> None:
    """Whatever held it up (a pooler without a free connection) held up heartbeats too."""
    be_silent(process_id, 16)
    now_s = [0.0]
    sweeper = Rescuer(clock=lambda: now_s[0], using="default")
    sweeper.run_once()
    now_s[0] += 16

    def look(waiting_s: float) -> RescueCounts:
        with ThreadPoolExecutor(1) as pool, psycopg.connect(url_for(None)) as other:
            other.execute("LOCK TABLE salon_jobs_process")
            found = elsewhere(pool, sweeper.run_once)
            wait_until_waiting()
            now_s[0] += waiting_s
            other.rollback()
            return found.result(10)

    assert look(waiting_s=3.1) == RescueCounts()
    now_s[0] += 14
    assert sweeper.run_once() == RescueCounts(), "they have a silence's time to beat"
    now_s[0] += 2
    assert look(waiting_s=0.1) == RescueCounts(processes=1)


def test_jobs_of_a_silent_process_are_queued_again_uncharged(
    stores: list[UUID], process_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    held = tasks.in_store.enqueue(store_id=stores[0])
    claim(process_id)
    other = another_process()
    safe = tasks.in_store.enqueue(store_id=stores[1])
    claim(other)
    change("UPDATE salon_jobs_job SET started_at = now() - interval '9 h' WHERE id = %s", safe.id)
    be_silent(process_id, 16)
    be_silent(other, 14)
    assert rescuer().run_once() == RescueCounts(processes=1, queued=1)
    assert seen("SELECT id FROM salon_jobs_process") == [(other,)]
    row = row_of(held.id)
    assert (row["state"], row["attempts"], row["rescues"], row["lease"], row["leased_by"]) == ("queued", 0, 1, 0, None)
    assert row_of(safe.id)["state"] == "running"
    assert seen("SELECT job_id, attempt, code, error_class, store_id FROM salon_jobs_job_error") == [
        (held.id, 1, "JOB.PROCESS_DIED", "salon_jobs.core.errors.ProcessDied", stores[0])
    ]
    [fields] = event_fields(caplog, "job_rescued")
    assert {"task_name", "job_id", "store_id", "attempt"} <= fields.keys()
    assert rescuer().run_once() == RescueCounts()


def test_jobs_of_an_owner_without_a_row_are_rescued_too(stores: list[UUID], process_id: int) -> None:
    handle = tasks.in_store.enqueue(store_id=stores[0])
    claim(process_id)
    change("DELETE FROM salon_jobs_process")
    assert rescuer().run_once() == RescueCounts(processes=1, queued=1)
    assert row_of(handle.id)["state"] == "queued"


def test_a_rescue_leaves_the_connections_of_another_database_alone(stores: list[UUID], process_id: int) -> None:
    name = application_name(process_id)
    with psycopg.connect(url_for("worker_runtime", "postgres"), application_name=name, autocommit=True) as neighbour:
        be_silent(process_id, 16)
        assert rescuer().run_once() == RescueCounts(processes=1)
        neighbour.execute("SELECT 1")


def test_the_dead_processs_open_transaction_can_not_commit(stores: list[UUID], process_id: int) -> None:
    # Not as a context of its own: that commits once more, on a connection that may not know yet how dead it is.
    with closing(psycopg.connect(url_for("worker_runtime"), application_name=application_name(process_id))) as zombie:
        zombie.execute("SELECT set_config('app.current_store_id', %s, true)", [str(stores[0])])
        zombie.execute(
            "INSERT INTO customer (id, store_id, name, email) VALUES (%s, %s, 'ghost', 'e')", [uuid4(), stores[0]]
        )
        be_silent(process_id, 16)
        rescuer().run_once()
        with pytest.raises(psycopg.OperationalError):
            zombie.commit()
    assert seen("SELECT count(*) FROM customer") == [(0,)]


@pytest.mark.parametrize(("max_attempts", "attempts", "fails_at"), [(1, 0, 3), (5, 0, 5), (25, 22, 3)])
def test_rescues_and_attempts_together_bound_a_job_that_kills_its_process(
    stores: list[UUID], process_id: int, max_attempts: int, attempts: int, fails_at: int
) -> None:
    handle = tasks.in_store.using(max_attempts=max_attempts).enqueue(store_id=stores[0])
    change("UPDATE salon_jobs_job SET attempts = %s", attempts)
    for number in range(1, fails_at + 1):
        process = another_process()
        [job] = claim(process)
        be_silent(process, 16)
        counts = rescuer().run_once()
        assert counts == (RescueCounts(1, 0, 1) if number == fails_at else RescueCounts(1, 1, 0))
        assert job.attempts == attempts, "nobody knows whether it had started"
    row = row_of(handle.id)
    assert (row["state"], row["reason"], row["finished_at"] is None) == ("failed", "process_died", False)
    assert seen("SELECT count(*) FROM salon_jobs_job_error") == [(fails_at,)]


class Clock:
    """Clock of a rescuer, which the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.rescuer = Rescuer(clock=lambda: self.now, using="default")

    def waits_a_full_silence(self) -> None:
        for waited, processes in ((0, 0), (14, 0), (2, 1)):
            self.now += waited
            assert self.rescuer.run_once() == RescueCounts(processes=processes)


def test_on_a_server_that_it_has_just_met_it_waits_a_full_silence(process_id: int) -> None:
    be_silent(process_id, 16)
    Clock().waits_a_full_silence()


def test_after_an_outage_it_waits_a_full_silence_since_nobody_could_beat(
    process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    clock.rescuer.run_once()
    clock.now += 16
    be_silent(process_id, 16)
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
def test_on_another_server_it_waits_a_full_silence_although_no_statement_failed(process_id: int, differs: str) -> None:
    """As when the connection was replaced between two sweeps, or led to a standby before."""
    clock = Clock()
    clock.rescuer.run_once()
    clock.now += 16
    change(f"CREATE SCHEMA another; CREATE FUNCTION another.{differs}; GRANT USAGE ON SCHEMA another TO PUBLIC")
    be_silent(process_id, 16)
    try:
        statements.in_one_trip(connection, "SET search_path = another, pg_catalog, public")
        clock.waits_a_full_silence()
    finally:
        statements.in_one_trip(connection, "RESET search_path")
        change("DROP SCHEMA another CASCADE")
    assert clock.rescuer.run_once() == RescueCounts(), "this one is known"


def test_the_silence_is_a_setting(stores: list[UUID], process_id: int, settings: Any) -> None:
    be_silent(process_id, 5)
    assert rescuer().run_once() == RescueCounts()
    settings.SALON_JOBS = {**settings.SALON_JOBS, "PROCESS_SILENT_AFTER": 4}
    assert rescuer().run_once() == RescueCounts(processes=1)
    other = another_process()
    be_silent(other, 3)
    assert rescuer().run_once(silent_after=timedelta(seconds=2)) == RescueCounts(processes=1)


def test_of_a_child_that_died_only_jobs_that_had_started_are_charged(stores: list[UUID], process_id: int) -> None:
    started, waiting = (tasks.in_store.enqueue(store_id=stores[0]).id for _ in range(2))
    claim(process_id)
    assert rescue_process(
        process_id, None, end="was killed by SIGKILL", charged=[started], using="default"
    ) == RescueCounts(processes=1, queued=2)
    rows = seen("SELECT id, state, attempts, rescues, lease, leased_by FROM salon_jobs_job ORDER BY id")
    assert rows == [(started, "queued", 0, 1, 0, None), (waiting, "queued", 0, 0, 0, None)]
    [(job_id, message)] = seen("SELECT job_id, message FROM salon_jobs_job_error")
    assert job_id == started
    assert message.endswith("was killed by SIGKILL and was declared dead")


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_the_run_for_which_a_child_was_killed_is_a_failed_attempt_and_its_neighbour_is_not(
    stores: list[UUID], process_id: int, max_attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    culprit = tasks.in_store.using(max_attempts=max_attempts).enqueue(store_id=stores[0]).id
    tasks.in_store.enqueue(store_id=stores[0])
    job, other = claim(process_id)
    assert job.id == culprit
    overdue = [
        InFlightRun(0, culprit, job.lease, 100.0, 101.5),
        InFlightRun(1, other.id, other.lease + 1, 100.0, 101.5),
    ]
    rescue_process(process_id, None, charged=[], overdue=overdue, using="default")
    rows = seen("SELECT id, state, attempts, rescues, run_at > now() FROM salon_jobs_job ORDER BY id")
    assert rows[0] == ((culprit, "failed", 1, 0, False) if max_attempts == 1 else (culprit, "queued", 1, 0, True))
    assert rows[1] == (other.id, "queued", 0, 0, False), "a lease of before is another run's"
    assert seen("SELECT job_id, attempt FROM salon_jobs_job_error") == [(culprit, 1)]
    assert len(event_fields(caplog, "job_failed" if max_attempts == 1 else "job_retried")) == 1


def test_a_worker_that_others_may_declare_dead_claims_nothing_after_an_outage(
    process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[bool] = []
    really = Leases.has_fresh_heartbeat

    def has_fresh_heartbeat(leases: Leases) -> bool:
        answers.append(really(leases))
        return answers[-1]

    monkeypatch.setattr(Leases, "has_fresh_heartbeat", has_fresh_heartbeat)
    change("UPDATE salon_jobs_process SET heartbeat_at = now() - interval '10 s'")
    job = tasks.system.enqueue()
    with working(process_id):
        eventually(lambda: len(answers) > 2)
        assert [state for (state,) in seen("SELECT state FROM salon_jobs_job")] == ["queued"]
        change("UPDATE salon_jobs_process SET heartbeat_at = now()")
        eventually(lambda: job_row(job.id) is None)
    assert answers[-1]
    assert not any(answers[:-1])
