"""Prunes as the worker role beside operators, other pruners and schedulers: what is old goes, nothing else does."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from salon_jobs.core.records import JobState
from salon_jobs.db import statements
from salon_jobs.jobs import control
from salon_jobs.jobs import pruning as pruner
from salon_jobs.jobs.pruning import BATCH, PruneCounts, Pruner
from salon_jobs.models import Process
from salon_jobs.schedules.scheduler import fire, register, skip
from salon_jobs.worker.maintenance import RescueCounts
from tests import tasks
from tests.jobs.rows import count
from tests.jobs.threads import together
from tests.settings import url_for
from tests.support import be_silent, change, event_fields, in_state, in_thread, moved_to, rescuer, seen, selected

DAYS = {"succeeded": 1, "cancelled": 7, "failed": 90}


def ended(state: str, age: timedelta, number: int = 1) -> list[int]:
    """Insert jobs that ended so long ago, each with an error row; returns their ids."""
    finished_at = "now() - %s + n * interval '1 us'" if state in DAYS else "NULL"
    job = in_state(f"'{state}'", task="'ping'", attempts="1", max_attempts="1", finished_at=finished_at)
    rows = seen(
        f"WITH job AS (INSERT INTO salon_jobs_job {selected(job)} FROM generate_series(1, %s) AS n RETURNING id),"
        " error AS (INSERT INTO salon_jobs_job_error (job_id, attempt, error_class, occurred_at)"
        "  SELECT id, 1, 'X', now() - %s FROM job)"
        " SELECT id FROM job ORDER BY id",
        *[age][: state in DAYS],
        number,
        age,
    )
    return [row[0] for row in rows]


def remaining() -> set[int]:
    return {row[0] for row in seen("SELECT id FROM salon_jobs_job")}


def a_pruner() -> Pruner:
    """Return a pruner for which no time passes, since a round ends after a while."""
    return Pruner(clock=lambda: 0.0, using="default")


def pruned() -> PruneCounts:
    return a_pruner().run_once()


def test_only_jobs_past_retention_go(database: None, settings: Any) -> None:
    """Their errors go with them."""
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": timedelta(days=1)}
    for state, days in DAYS.items():
        ended(state, timedelta(days=days, minutes=1))
    stays = {ended(state, timedelta(days=days, minutes=-10))[0] for state, days in DAYS.items()}
    assert pruned() == PruneCounts({"succeeded": 1, "cancelled": 1, "failed": 1, "errors": 3})
    assert remaining() == {row[0] for row in seen("SELECT job_id FROM salon_jobs_job_error")} == stays
    assert pruned() == PruneCounts({})


@pytest.mark.parametrize("state", ["queued", "running"])
def test_live_job_is_never_touched(database: None, state: str) -> None:
    [job] = ended(state, timedelta(days=9999))
    change("UPDATE salon_jobs_job SET created_at = now() - interval '27 years', run_at = created_at")
    assert pruned() == PruneCounts({})
    assert (remaining(), count("salon_jobs_job_error")) == ({job}, 1)


def test_none_keeps_for_ever(database: None, settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": None, "RETAIN_FAILED": None}
    for state in DAYS:
        ended(state, timedelta(days=9999))
    error = "INSERT INTO salon_jobs_job_error (job_id, attempt, error_class, occurred_at)"
    change(f"{error} VALUES (1, 1, 'X', '1999-1-1')")
    assert pruned() == PruneCounts({})


def test_retry_in_flight_is_left_alone(database: None) -> None:
    """The pruner does not wait for it."""
    mine, other = ended("failed", timedelta(days=91), 2)
    with psycopg.connect(url_for("jobs_operator")) as retrying:
        retrying.execute(f"UPDATE salon_jobs_job SET {moved_to('queued')} WHERE id = %s".encode(), [mine])
        assert in_thread(pruned).deleted["failed"] == 1
        assert remaining() == {mine}
        retrying.rollback()
    assert control.retry_jobs([mine, other], using="operator")[0].changed
    assert pruned() == PruneCounts({})


def test_two_pruners_share_the_work(database: None) -> None:
    ids = ended("failed", timedelta(days=91), 2 * BATCH)
    with psycopg.connect(url_for("jobs_operator")) as other:
        statement = statements.load("prune_jobs")
        done = other.execute(statement.encode(), {"state": "failed", "age": timedelta(days=90)}).fetchone()
        assert done == (BATCH, BATCH)
        assert pruner.prune_jobs(JobState.FAILED, timedelta(days=90), using="default") == (BATCH, BATCH)
        assert pruner.prune_jobs(JobState.FAILED, timedelta(days=90), using="default") == (0, 0)
        other.rollback()
    assert remaining() == set(ids[:BATCH]), "the oldest first; those of the other came back with its rollback"


def test_round_is_bounded(database: None, caplog: pytest.LogCaptureFixture) -> None:
    """The next one goes on."""
    ticking = itertools.count(step=0.2)
    caplog.set_level("INFO", "salon_jobs")
    work = Pruner(clock=lambda: next(ticking), using="default")
    for step in (0.2, 10):
        ended("failed", timedelta(days=91), 2 * BATCH + 1)
        ended("cancelled", timedelta(days=8))
        ticking = itertools.count(step=step)
        if step < 1:
            assert work.run_once() == PruneCounts({"failed": 2 * BATCH + 1, "cancelled": 1, "errors": 2 * BATCH + 2})
            assert event_fields(caplog, "pruned") == [{"failed": 2001, "cancelled": 1, "errors": 2002}]
    assert work.run_once() == PruneCounts({"failed": BATCH, "cancelled": 1, "errors": BATCH + 1}, more=True)
    assert [work.run_once().more for _ in range(2)] == [True, False]


def test_orphaned_errors_go_by_pages(database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    [job] = ended("failed", timedelta(days=80))
    insert = "INSERT INTO salon_jobs_job_error (job_id, attempt, error_class, occurred_at)"
    change(f"{insert} SELECT 10000000, 1, 'X', now() - interval '25 h' FROM generate_series(1, 10000)")
    change(f"{insert} VALUES (%s, 2, 'X', now() - interval '25 h'), (10000000, 1, 'X', now())", job)
    work = a_pruner()
    assert work.run_once() == PruneCounts({"errors": 10_000})
    assert seen("SELECT job_id FROM salon_jobs_job_error ORDER BY id") == [(job,), (job,), (10_000_000,)]
    assert work.run_once() == PruneCounts({})


def test_tick_is_kept_while_it_could_refire(database: None) -> None:
    old = datetime.now(UTC).replace(microsecond=0) - timedelta(days=31)
    register(["entry"], using="default")
    change("UPDATE salon_jobs_cron_entry SET registered_at = %s", old - timedelta(days=2))
    added = tasks.system.enqueue()
    # Fired ahead of its time by --at, which does not advance the entry: it is still owed.
    assert fire("entry", old, lambda: added, advance=False, using="default")
    change("UPDATE salon_jobs_cron_tick SET fired_at = tick_at")
    assert pruned() == PruneCounts({})
    assert fire("entry", old, lambda: added, advance=False, using="default") is None, (
        "the row keeps it from firing again"
    )
    skip("entry", old, using="default")
    assert pruned() == PruneCounts({"ticks": 1})
    # Long past, but fired just now: a second --at must not fire it again.
    assert fire("entry", old, lambda: added, advance=False, using="default")
    assert pruned() == PruneCounts({})
    assert fire("entry", old, lambda: added, advance=False, using="default") is None


def test_fan_out_record_is_kept_like_ticks(database: None, settings: Any) -> None:
    """It never outlives its failed jobs."""
    insert = "INSERT INTO salon_jobs_fan_out (task, digest, created_at) VALUES ('ping', '', now() - %s)"
    for days in (31, 29, 11, 9):
        change(insert, timedelta(days=days))
    assert pruned() == PruneCounts({"fan_outs": 1})
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_FAILED": timedelta(days=10)}
    assert pruned() == PruneCounts({"fan_outs": 2})
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_FAILED": None}
    change(insert, timedelta(days=9999))
    assert pruned() == PruneCounts({"fan_outs": 1})


@pytest.mark.parametrize(
    ("kind", "days", "insert"),
    [
        ("depths", 14, "queue_minute SELECT now() - age, 'default', 1, 1, 0, true"),
        ("progress", 1, "job_progress (job_id, lease, done, text, updated_at) SELECT 1 + n, 1, 1, '', now() - age"),
    ],
)
def test_old_rows_are_pruned(database: None, kind: str, days: int, insert: str) -> None:
    for number, hours in enumerate((1, -1)):
        age = timedelta(days=days, hours=hours)
        change(f"INSERT INTO salon_jobs_{insert} FROM (VALUES (%s::interval, %s)) AS row (age, n)", age, number)
    assert pruned().deleted == {kind: 1}
    assert count(f"salon_jobs_{insert.split(maxsplit=1)[0]}") == 1


@pytest.mark.parametrize("kind", ["worker", "scheduler", "test"])
def test_silent_process_of_any_kind_goes(database: None, kind: str) -> None:
    process = Process.objects.create(kind=kind, hostname="gone", pid=1)
    assert rescuer().run_once() == RescueCounts()
    be_silent(process.pk)
    assert rescuer().run_once() == RescueCounts(processes=1)
    assert count("salon_jobs_process") == 0


def test_pruners_and_retries_do_not_deadlock(database: None) -> None:
    """They lose no job."""
    ids = ended("failed", timedelta(days=91), 2 * BATCH)
    retried: list[int] = []

    def prune() -> None:
        while pruned().deleted:
            pass

    def retry() -> None:
        for start in range(2 * BATCH - 10, 0, -100):
            results = control.retry_jobs(ids[start : start + 10], using="operator")
            retried.extend(result.id for result in results if result.changed)

    together(prune, prune, prune, retry)
    pruned()
    assert remaining() == set(retried), "what was retried stays, everything else is gone"
