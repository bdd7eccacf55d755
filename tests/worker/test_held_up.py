"""Tests that a job whose row or key another transaction holds waits by itself: all others end and are queued again."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import OperationalError

from salon_jobs import Snooze
from salon_jobs.db.statements import is_held_up
from salon_jobs.jobs import control
from salon_jobs.process.heartbeat import application_name
from salon_jobs.worker.maintenance import RescueCounts, rescue_process
from tests import tasks
from tests.settings import url_for
from tests.support import another_process, be_silent, change, claim, event_fields, leases_of, rescuer, seen, working
from tests.waiting import eventually
from tests.worker.ends import RETURNS

# Far less than until the other transaction ends, which is never while a test waits for a job.
SOON_S = 10.0


@pytest.fixture
def other() -> Iterator[psycopg.Connection]:
    """Return a connection with an open transaction that never ends by itself."""
    with psycopg.connect(url_for(None)) as connection:
        yield connection


def hold_keys(other: psycopg.Connection, store: UUID, *numbers: int) -> None:
    """Add jobs under these keys, and do not commit."""
    with other.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO salon_jobs_job (task, store_id, job_key, run_at)"
            " VALUES ('test-keyed', %s, %s, now() + interval '1 h')",
            [(store, f"k:{number}") for number in numbers],
        )


def ends() -> list[tuple[Any, ...]]:
    return seen("SELECT state, count(*) FROM salon_jobs_job GROUP BY state ORDER BY state")


@contextmanager
def within(seconds: float) -> Generator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


@pytest.mark.parametrize(("commits", "ended"), [(True, ("cancelled", "superseded")), (False, ("queued", ""))])
def test_a_rescue_leaves_the_job_whose_key_is_held_until_the_holder_ends(
    stores: list[UUID],
    process_id: int,
    other: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
    *,
    commits: bool,
    ended: tuple[str, str],
) -> None:
    held = tasks.keyed.enqueue(store_id=stores[0], number=0)
    for number in range(1, 6):
        tasks.keyed.enqueue(store_id=stores[0], number=number)
        tasks.in_store.enqueue(store_id=stores[0])
    claim(process_id)
    hold_keys(other, stores[0], 0)
    with within(SOON_S):
        assert rescue_process(process_id, None, using="default") == RescueCounts(processes=1, queued=10)
    assert ends() == [("queued", 10), ("running", 1)]
    assert seen("SELECT count(*) FROM salon_jobs_process") == [(0,)], "the burial is not rolled back"
    [logged] = event_fields(caplog, "process_dead")
    assert (logged["jobs"], logged["held_up"]) == (10, 1)
    with within(SOON_S):
        for _ in range(3):
            assert rescuer().run_once() == RescueCounts()
    assert len(event_fields(caplog, "process_dead")) == 1, "once, not with every sweep"
    if commits:
        other.commit()
    else:
        other.rollback()
    assert rescuer().run_once().processes == 1
    assert seen("SELECT state, reason FROM salon_jobs_job WHERE id = %s", held.id) == [ended]


def test_a_rescue_leaves_rows_that_another_transaction_has_locked(
    stores: list[UUID], process_id: int, other: psycopg.Connection
) -> None:
    ids = [tasks.in_store.enqueue(store_id=stores[0]).id for _ in range(10)]
    claim(process_id)
    other.execute("SELECT FROM salon_jobs_job WHERE id = ANY (%s) FOR UPDATE", [ids[:3]])
    with within(SOON_S):
        assert rescue_process(process_id, None, using="default") == RescueCounts(processes=1, queued=7)
    other.rollback()
    assert rescuer().run_once() == RescueCounts(processes=1, queued=3)


def test_of_hundreds_of_jobs_those_whose_keys_are_free_are_rescued_soon(
    stores: list[UUID], process_id: int, other: psycopg.Connection
) -> None:
    for store in stores[:2]:
        tasks.keyed.enqueue_many([tasks.keyed.call(store_id=store, number=n) for n in range(400)])
    assert len(claim(process_id, 800)) == 800
    hold_keys(other, stores[0], *range(0, 400, 2))
    sweeper, queued = rescuer(), 0
    with within(SOON_S):
        queued = rescue_process(process_id, None, using="default").queued
        # On a busy machine the search for those that are held up can reach its end of a second before all are seen.
        while queued < 600:
            queued += sweeper.run_once().queued
    assert ends() == [("queued", 600), ("running", 200)]
    other.rollback()
    assert sweeper.run_once() == RescueCounts(processes=1, queued=200)


def test_an_owner_whose_jobs_are_held_hides_no_other(
    stores: list[UUID], process_id: int, other: psycopg.Connection
) -> None:
    tasks.keyed.enqueue(store_id=stores[0], number=1)
    claim(process_id)
    later = another_process()
    tasks.in_store.enqueue(store_id=stores[0])
    claim(later)
    change("DELETE FROM salon_jobs_process")
    hold_keys(other, stores[0], 1)
    assert rescuer().run_once() == RescueCounts(processes=1, queued=1)
    assert seen("SELECT leased_by FROM salon_jobs_job WHERE state = 'running'") == [(process_id,)]


def test_a_claim_that_its_process_does_not_end_is_ended_by_the_rescue(stores: list[UUID], process_id: int) -> None:
    """As when the host is gone in the midst of an answer: the backend waits for a client that never reads."""
    tasks.in_store.enqueue(store_id=stores[0])
    name = application_name(process_id)
    zombie = psycopg.connect(url_for("worker_runtime"), application_name=name)
    zombie.execute("SELECT FROM salon_jobs_process WHERE id = %s FOR KEY SHARE", [process_id])
    be_silent(process_id)
    with within(SOON_S):
        assert rescuer().run_once() == RescueCounts(processes=1)
    with pytest.raises(psycopg.OperationalError):
        zombie.execute("SELECT")
    zombie.close()


def test_a_process_whose_row_is_held_keeps_no_other_from_being_rescued(
    stores: list[UUID], process_id: int, other: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    tasks.in_store.enqueue(store_id=stores[0])
    claim(process_id)
    held = another_process()
    for process in (process_id, held):
        be_silent(process)
    other.execute("SELECT FROM salon_jobs_process WHERE id = %s FOR UPDATE", [held])
    sweeper = rescuer()
    with within(SOON_S):
        assert sweeper.run_once() == RescueCounts(processes=1, queued=1)
        assert sweeper.run_once() == RescueCounts()
    assert [fields["process_id"] for fields in event_fields(caplog, "rescue_held_up")] == [held]
    other.rollback()
    assert sweeper.run_once() == RescueCounts(processes=1)


def test_what_is_given_back_waits_for_no_key(stores: list[UUID], process_id: int, other: psycopg.Connection) -> None:
    for number in range(10):
        tasks.keyed.enqueue(store_id=stores[0], number=number)
    jobs = claim(process_id)
    hold_keys(other, stores[0], 4, 7)
    with within(SOON_S):
        given_back = leases_of(process_id).give_back([(job.id, job.lease) for job in jobs])
    assert {job.id for job in given_back} == {jobs[n].id for n in range(10) if n not in (4, 7)}
    assert ends() == [("queued", 8), ("running", 2)]


@pytest.mark.parametrize("verb", ["fail", "release"])
def test_the_end_of_one_run_gives_up_and_has_changed_nothing(
    stores: list[UUID], process_id: int, other: psycopg.Connection, verb: str
) -> None:
    tasks.keyed.enqueue(store_id=stores[0], number=1)
    [job] = claim(process_id)
    hold_keys(other, stores[0], 1)
    with within(SOON_S), pytest.raises(OperationalError) as raised:
        RETURNS[verb](job, process_id)
    assert is_held_up(raised.value)
    assert ends() == [("running", 1)]
    assert seen("SELECT count(*) FROM salon_jobs_job_error") == [(0,)]


@pytest.mark.parametrize("how", ["fails", "snoozes"])
def test_a_run_whose_retry_is_held_frees_its_thread(
    stores: list[UUID],
    process_id: int,
    hooks: tasks.Hooks,
    other: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    def end(store_id: UUID, number: int) -> None:
        if number:
            hold_keys(other, stores[0], number)
            raise OSError if how == "fails" else Snooze(timedelta(hours=1))

    hooks.store = end
    held = tasks.keyed.using(priority=-1).enqueue(store_id=stores[0], number=1)
    tasks.in_store.enqueue(store_id=stores[0])
    with working(process_id):
        eventually(ends, [("running", 1)])
        assert [fields["job_id"] for fields in event_fields(caplog, "job_held_up")] == [held.id]
        other.rollback()
        eventually(ends, [("queued", 1)])
    [(state, attempts, is_later)] = seen("SELECT state, attempts, run_at > now() FROM salon_jobs_job")
    assert (state, attempts, is_later) == ("queued", 1 if how == "fails" else 0, True)


def test_a_cancellation_in_flight_holds_up_only_its_own_job(
    stores: list[UUID], process_id: int, hooks: tasks.Hooks, other: psycopg.Connection
) -> None:
    def discarded(**_: object) -> None:
        other.execute("SELECT FROM salon_jobs_job WHERE id = %s FOR UPDATE", [held.id])
        hooks.system = lambda **_: None
        raise OSError

    hooks.system = discarded
    held = tasks.system.using(priority=-1, max_attempts=1).enqueue()
    tasks.system.enqueue()
    with working(process_id):
        eventually(ends, [("running", 1)])
        other.rollback()
        eventually(ends, [("failed", 1)])
    assert control.retry_jobs([held.id], using="default")[0].changed
