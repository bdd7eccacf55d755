"""Tests how jobs are cancelled while they run, wait in a process, or change hands at this very moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, connections, transaction

from salon_jobs import Snooze, current_job, tenant_context
from salon_jobs.control import ActionResult, cancel_jobs
from salon_jobs.core.errors import CancelRequested
from salon_jobs.jobs import control
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.statistics import TaskStatistics
from salon_jobs.models import Job
from salon_jobs.worker.buffer import JobBuffer
from salon_jobs.worker.deadlines import Cancellations
from tests import tasks
from tests.support import (
    change,
    claim,
    elsewhere,
    finish,
    job_row,
    leases_of,
    moved_to,
    seen,
    wait_until_waiting,
    working,
)
from tests.waiting import eventually
from tests.worker.conftest import Enqueue
from tests.worker.effects import job_events, states, write, written
from tests.worker.ends import ENDS, RETURNS

ENDED = "SELECT state, reason, attempts, leased_by FROM salon_jobs_job ORDER BY id"
ASKED = "still running; its worker was asked to end it"


def until_cancelled() -> None:
    deadline = time.monotonic() + 10
    while not current_job().cancelled():
        assert time.monotonic() < deadline
        time.sleep(0.005)


CancelRunning = Callable[..., float]


@pytest.fixture
def cancel_running(enqueue_with: Enqueue, process_id: int) -> CancelRunning:
    """Run a job, cancel it once its handler has started, and wait until it ended; return how long that took."""

    def cancel(
        handler: Callable[[], None], declared: Any = tasks.in_store, ends: Sequence[str] = ("cancelled",)
    ) -> float:
        started = threading.Event()

        def run(**_: object) -> None:
            started.set()
            handler()

        job_id = enqueue_with(run, declared)
        with working(process_id):
            assert started.wait(10)
            began = time.monotonic()
            assert cancel_jobs([job_id], using="operator") == [ActionResult(job_id, True, ASKED)]
            eventually(lambda: states() == list(ends))
            return time.monotonic() - began

    return cancel


@pytest.mark.parametrize("listen", [True, False])
def test_a_handler_sees_the_request_and_ends_by_itself(
    cancel_running: CancelRunning, settings: Any, caplog: pytest.LogCaptureFixture, listen: bool
) -> None:
    caplog.set_level("INFO")
    settings.SALON_JOBS = {**settings.SALON_JOBS, "LISTEN": listen, "POLL_INTERVAL": 30}

    def handler() -> None:
        write()
        until_cancelled()
        raise RuntimeError("as you wish")

    assert cancel_running(handler) < 3
    assert seen(ENDED) == [("cancelled", "cancelled", 1, None)]
    assert written() == []
    assert seen("SELECT error_class FROM salon_jobs_job_error") == [("builtins.RuntimeError",)]
    assert job_events(caplog) == ["job_cancel_noticed", "job_cancelled"]


def test_a_handler_that_ends_well_has_succeeded(cancel_running: CancelRunning) -> None:
    def handler() -> None:
        write()
        until_cancelled()

    cancel_running(handler, ends=())
    assert written() == ["effect"]


def test_snoozing_a_cancelled_job_ends_it(cancel_running: CancelRunning) -> None:
    def handler() -> None:
        until_cancelled()
        raise Snooze(timedelta(0))

    cancel_running(handler, tasks.system)


def swallow() -> None:
    deadline = time.monotonic() + 10
    with suppress(CancelRequested):
        while time.monotonic() < deadline:
            pass


def sleep_in_a_query() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(60)")


@pytest.mark.parametrize(("body", "declared"), [(swallow, tasks.outside), (sleep_in_a_query, tasks.in_store)])
def test_a_handler_that_continues_is_interrupted_after_the_grace(
    cancel_running: CancelRunning, monkeypatch: pytest.MonkeyPatch, declared: Any, body: Callable[[], None]
) -> None:
    monkeypatch.setattr("salon_jobs.worker.deadlines.CANCEL_GRACE_S", 0.2)
    assert 0.2 <= cancel_running(body, declared) < 5
    assert seen(ENDED) == [("cancelled", "cancelled", 1, None)]
    assert seen("SELECT count(*) FROM salon_jobs_job_error") == [(0,)]


def test_a_job_that_waits_in_a_process_ends_before_it_starts(
    database: None, hooks: tasks.Hooks, process_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    measured, started, gate = threading.Event(), threading.Event(), threading.Event()
    runs: list[str] = []

    def handler(note: str) -> None:
        runs.append(note)
        if note == "measured":
            measured.set()
        if note == "long":
            started.set()
            assert gate.wait(10)

    hooks.system = handler
    with working(process_id):
        # A short job makes it prefetch.
        tasks.system.enqueue(note="measured")
        assert measured.wait(10)
        eventually(states, [])
        with transaction.atomic():
            tasks.system.enqueue(note="long")
            waiting = tasks.system.enqueue(note="waiting").id
        assert started.wait(10)
        assert seen("SELECT state, leased_by FROM salon_jobs_job WHERE id = %s", waiting) == [("running", process_id)]
        cancel_jobs([waiting], using="operator")
        eventually(states, ["running", "cancelled"])
        gate.set()
        eventually(states, ["cancelled"])
    assert runs == ["measured", "long"]
    assert seen(ENDED) == [("cancelled", "cancelled", 0, None)]


def test_only_what_was_really_cancelled_is_logged_and_counted(
    stores: list[UUID], process_id: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = TaskStatistics()
    monkeypatch.setattr("salon_jobs.worker.ends.ended_runs", counted)
    caplog.set_level("INFO")
    handles = [tasks.in_store.enqueue(store_id=stores[0]) for _ in range(3)]
    wanted, rescued, retried = jobs = claim(process_id)
    assert [job.id for job in jobs] == [handle.id for handle in handles]
    queue = JobBuffer(1)
    queue.put(jobs)
    control.cancel_jobs([job.id for job in jobs], using="operator")
    cancellations = Cancellations(leases_of(process_id), queue, ())

    requests = Leases.cancel_requests

    def and_then_two_change(leases: Leases) -> set[tuple[int, int]]:
        found = requests(leases)
        change("UPDATE salon_jobs_job SET lease = lease # (1::bigint << 40) WHERE id = %s", rescued.id)
        change("UPDATE salon_jobs_job SET cancel_requested_at = NULL WHERE id = %s", retried.id)
        return found

    monkeypatch.setattr(Leases, "cancel_requests", and_then_two_change)
    cancellations.poll()
    assert seen("SELECT state, reason FROM salon_jobs_job ORDER BY id") == [
        ("cancelled", "cancelled"),
        ("running", ""),
        ("queued", ""),
    ]
    assert job_events(caplog) == ["job_released", "job_cancelled"]
    assert f"job_id={wanted.id} " in caplog.messages[1]
    assert f"job_id={retried.id} " in caplog.messages[0]
    counted.flush(using="default")
    assert seen("SELECT task, cancelled FROM salon_jobs_task_minute") == [("test-store", 1)]


@pytest.fixture
def running(stores: list[UUID], process_id: int) -> Any:
    """Claim one job of the first store."""
    tasks.in_store.enqueue(store_id=stores[0])
    [job] = claim(process_id)
    return job


def requested(job_id: int) -> bool:
    row = job_row(job_id)
    return row is not None and row["cancel_requested_at"] is not None


@pytest.mark.parametrize("verb", [*RETURNS, "fail at last"])
def test_a_job_that_is_to_be_cancelled_is_not_queued_again(running: Any, process_id: int, verb: str) -> None:
    assert control.cancel_jobs([running.id], using="operator")[0].changed
    assert requested(running.id)
    assert ENDS[verb](running, process_id)
    [(state, reason, _, leased_by)] = seen(ENDED)
    assert (state, reason, leased_by) == ("cancelled", "cancelled", None)
    assert seen("SELECT finished_at IS NOT NULL FROM salon_jobs_job") == [(True,)]


def test_an_operators_retry_forgets_the_request(running: Any, process_id: int) -> None:
    control.cancel_jobs([running.id], using="operator")
    leases_of(process_id).requeue([(running.id, running.lease)])
    assert control.retry_jobs([running.id], using="operator") == [ActionResult(running.id, True)]
    assert not requested(running.id)
    [again] = claim(process_id)
    assert leases_of(process_id).cancel_requests() == set()
    assert finish(again, process_id)


@contextmanager
def cancelling_meanwhile(job_id: int) -> Generator[None]:
    """Cancel a job that the block changes in a transaction; the cancellation waits for its end."""
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            yield
            cancelling = elsewhere(pool, lambda: cancel_jobs([job_id], using="operator"))
            wait_until_waiting()
        cancelling.result(10)


def test_a_claim_in_flight_is_waited_for_and_then_asked(stores: list[UUID], process_id: int) -> None:
    handle = tasks.in_store.enqueue(store_id=stores[0])
    with cancelling_meanwhile(handle.id):
        [job] = claim(process_id)
    assert leases_of(process_id).cancel_requests() == {(job.id, job.lease)}


def test_a_retry_in_flight_is_waited_for_and_then_cancelled(running: Any, process_id: int) -> None:
    with cancelling_meanwhile(running.id):
        ENDS["fail"](running, process_id)
    assert seen(ENDED) == [("cancelled", "cancelled", 1, None)]


def test_a_finish_in_flight_wins(running: Any, process_id: int) -> None:
    with cancelling_meanwhile(running.id):
        assert finish(running, process_id)
    assert states() == []


@pytest.mark.parametrize("verb", ["snooze", "fail", "fail at last"])
def test_a_job_that_stops_running_between_the_two_looks_is_cancelled(running: Any, process_id: int, verb: str) -> None:
    def stop_before_the_second(execute: Any, statement: str, *rest: Any) -> Any:
        if statement.startswith('SELECT "salon_jobs_job"'):
            assert ENDS[verb](running, process_id)
        return execute(statement, *rest)

    with connections["operator"].execute_wrapper(stop_before_the_second), transaction.atomic(using="operator"):
        assert cancel_jobs([running.id], using="operator") == [ActionResult(running.id, True, ASKED)]
    assert states() == ["cancelled"]


@pytest.mark.parametrize("verb", ["finish", "fail"])
def test_an_end_waits_for_a_request_in_flight_and_then_knows_it(running: Any, process_id: int, verb: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(using="operator"):
            control._ask_to_end([running.id], "operator")
            ending = elsewhere(pool, lambda: ENDS[verb](running, process_id))
            wait_until_waiting()
        assert ending.result(10)
    assert states() == ([] if verb == "finish" else ["cancelled"])


def test_nobody_who_finishes_waits_for_the_transaction_that_cancels(running: Any, process_id: int) -> None:
    with transaction.atomic(using="operator"):
        assert cancel_jobs([running.id], using="operator") == [ActionResult(running.id, True, ASKED)]
        assert not requested(running.id)
        assert finish(running, process_id)
    assert states() == []


def test_the_web_role_cancels_running_jobs_of_its_store_alone(
    stores: list[UUID], running: Any, process_id: int
) -> None:
    refused = "there is no such job, or you may not see it"
    assert not cancel_jobs([running.id], using="web")[0].changed
    with tenant_context(stores[1], using="web"):
        assert cancel_jobs([running.id], using="web") == [ActionResult(running.id, False, refused)]
    assert not requested(running.id)
    with tenant_context(stores[0], using="web"):
        assert cancel_jobs([running.id], using="web") == [ActionResult(running.id, True, ASKED)]
    assert requested(running.id)
    assert leases_of(process_id).cancel_requests() == {(running.id, running.lease)}


def test_timeliness_in_words(stores: list[UUID], running: Any) -> None:
    def now(state: str, **changes: str) -> str:
        change(f"UPDATE salon_jobs_job SET {moved_to(state, **changes)}")
        return Job.objects.get(pk=running.id).timeliness

    assert now("running") == "running"
    assert now("running", cancel_requested_at="now()") == "cancelling"
    assert now("queued") == "queued"
    assert now("queued", run_at="now() + interval '1 h'") == "scheduled"
    assert now("cancelled", reason="'expired: waited 5 s, longer than 1 s'") == "expired"
    assert now("cancelled") == "cancelled"
    assert now("queued") == "scheduled"
    assert now("running") == "running"
    assert now("failed", reason="'JOB.TIMED_OUT'") == "timed out"
    assert now("failed") == "failed"
