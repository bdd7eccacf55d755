"""Jobs are cancelled while they run, wait in a process, or change hands at this very moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction

from salon_jobs import current_job, tenant_context
from salon_jobs.control import ActionResult, cancel_jobs
from salon_jobs.core.errors import CancelRequested
from salon_jobs.jobs import control
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.statistics import TaskStatistics
from salon_jobs.models import Job
from salon_jobs.worker import buffer
from salon_jobs.worker.buffer import JobBuffer
from salon_jobs.worker.cancellations import Cancellations
from tests import tasks
from tests.support import behind_transaction, change, finish, row_of, seen
from tests.waiting import LIMIT_S, eventually
from tests.worker.effects import spin, write, written
from tests.worker.ends import ENDS, RETURNS
from tests.worker.work import Work, error_classes, states

ENDED = "SELECT state, reason, attempts, leased_by FROM salon_jobs_job ORDER BY id"
CANCELLED = [("cancelled", "cancelled", 1, None)]
NOW = datetime.now(UTC)
ASKED = "still running; its worker was asked to end it"


def until_cancelled() -> None:
    eventually(lambda: current_job().cancelled())


@pytest.fixture
def grace(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set how long a cancelled handler has to end by itself."""
    return lambda seconds: monkeypatch.setattr("salon_jobs.worker.deadlines.CANCEL_GRACE_S", seconds)


def cancel_running(
    work: Work, handler: Callable[[], None], declared: Any = tasks.in_store, ends: Sequence[str] = ("cancelled",)
) -> None:
    """Run a job, cancel it once its handler has started, and wait until it ended."""
    started = threading.Event()

    def run(**_: object) -> None:
        started.set()
        handler()

    job_id = work.add(run, declared)
    with work.working():
        assert started.wait(LIMIT_S)
        assert cancel_jobs([job_id], using="operator") == [ActionResult(job_id, True, ASKED)]
        eventually(states, list(ends))


@pytest.mark.parametrize("listen", [True, False])
def test_handler_sees_request(work: Work, settings: Any, grace: Callable[[float], None], listen: bool) -> None:
    """It ends by itself, and its effects are rolled back."""
    settings.SALON_JOBS = {**settings.SALON_JOBS, "LISTEN": listen, "POLL_INTERVAL": 3600}
    grace(600)

    def handler() -> None:
        write()
        until_cancelled()
        raise RuntimeError("as you wish")

    cancel_running(work, handler)
    assert (seen(ENDED), written()) == (CANCELLED, [])
    assert error_classes() == ["RuntimeError"]
    assert work.events == ["job_cancel_noticed", "job_cancelled"]


def test_success_despite_request(work: Work) -> None:
    def handler() -> None:
        write()
        until_cancelled()

    cancel_running(work, handler, ends=())
    assert written() == ["effect"]


def swallow() -> None:
    with suppress(CancelRequested):
        spin()


def sleep_in_a_query() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(600)")


@pytest.mark.parametrize(("body", "declared"), [(swallow, tasks.outside), (sleep_in_a_query, tasks.in_store)])
def test_interrupt_after_grace(
    work: Work, grace: Callable[[float], None], declared: Any, body: Callable[[], None]
) -> None:
    grace(0.2)
    cancel_running(work, body, declared)
    assert (seen(ENDED), error_classes()) == (CANCELLED, [])


def test_cancel_of_prefetched_job(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits in a process, and ends before it starts."""
    for name in ("_PREFETCH_S", "OVERDUE_S"):  # however slow the machine is
        monkeypatch.setattr(buffer, name, 2 * LIMIT_S)
    measured, started, gate = threading.Event(), threading.Event(), threading.Event()
    runs: list[str] = []

    def handler(note: str) -> None:
        runs.append(note)
        if note == "measured":
            measured.set()
        if note == "long":
            started.set()
            assert gate.wait(LIMIT_S)

    work.hooks.system = handler
    with work.working():
        # A short job makes it prefetch.
        tasks.system.enqueue(note="measured")
        assert measured.wait(LIMIT_S)
        eventually(states, [])
        with transaction.atomic():
            tasks.system.enqueue(note="long")
            waiting = tasks.system.enqueue(note="waiting").id
        assert started.wait(LIMIT_S)
        assert (row_of(waiting)["state"], row_of(waiting)["leased_by"]) == ("running", work.process_id)
        cancel_jobs([waiting], using="operator")
        eventually(states, ["running", "cancelled"])
        gate.set()
        eventually(states, ["cancelled"])
    assert runs == ["measured", "long"]
    assert seen(ENDED) == [("cancelled", "cancelled", 0, None)]


def test_log_and_count_of_cancelled(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what was really cancelled is logged and counted so."""
    counted = TaskStatistics()
    monkeypatch.setattr("salon_jobs.worker.ends.ended_runs", counted)
    ids = [work.add() for _ in range(3)]
    wanted, rescued, retried = ids
    queue = JobBuffer(1)
    queue.put(work.claim())
    control.cancel_jobs(ids, using="operator")
    requests = Leases.cancel_requests

    def and_then_two_change(leases: Leases) -> set[tuple[int, int]]:
        found = requests(leases)
        change("UPDATE salon_jobs_job SET lease = lease # (1::bigint << 40) WHERE id = %s", rescued)
        change("UPDATE salon_jobs_job SET cancel_requested_at = NULL WHERE id = %s", retried)
        return found

    monkeypatch.setattr(Leases, "cancel_requests", and_then_two_change)
    Cancellations(work.leases, queue, ()).poll()
    ended = seen("SELECT state, reason FROM salon_jobs_job ORDER BY id")
    assert ended == [("cancelled", "cancelled"), ("running", ""), ("queued", "")]
    assert work.events == ["job_released", "job_cancelled"]
    assert [fields["job_id"] for fields in work.fields("job_cancelled")] == [wanted]
    assert [fields["job_id"] for fields in work.fields("job_released")] == [retried]
    counted.flush(using="default")
    assert seen("SELECT task, cancelled FROM salon_jobs_task_minute") == [("test-store", 1)]


@pytest.fixture
def running(work: Work) -> Any:
    """Claim one job of the first store."""
    return work.claim_one()


def requested(job: Any) -> bool:
    return row_of(job.id)["cancel_requested_at"] is not None


@pytest.mark.parametrize("verb", [*RETURNS, "fail at last"])
def test_cancelled_job_is_not_requeued(running: Any, process_id: int, verb: str) -> None:
    assert control.cancel_jobs([running.id], using="operator")[0].changed
    assert requested(running)
    assert ENDS[verb](running, process_id)
    [(state, reason, _, leased_by)] = seen(ENDED)
    assert (state, reason, leased_by) == ("cancelled", "cancelled", None)
    assert seen("SELECT finished_at IS NOT NULL FROM salon_jobs_job") == [(True,)]


def test_operator_retry_forgets_request(work: Work, running: Any) -> None:
    control.cancel_jobs([running.id], using="operator")
    work.leases.requeue([(running.id, running.lease)])
    assert control.retry_jobs([running.id], using="operator") == [ActionResult(running.id, True)]
    assert not requested(running)
    [again] = work.claim()
    assert work.leases.cancel_requests() == set()
    assert finish(again, work.process_id)


def test_cancel_during_claim(work: Work) -> None:
    job_id = work.add()
    with behind_transaction(lambda: cancel_jobs([job_id], using="operator")):
        [job] = work.claim()
    assert work.leases.cancel_requests() == {(job.id, job.lease)}


@pytest.mark.parametrize(("verb", "ended"), [("fail", CANCELLED), ("finish", [])])
def test_cancel_during_end(running: Any, process_id: int, verb: str, ended: list[Any]) -> None:
    """A retry is cancelled; a success wins."""
    with behind_transaction(lambda: cancel_jobs([running.id], using="operator")):
        assert ENDS[verb](running, process_id)
    assert seen(ENDED) == ended


@pytest.mark.parametrize("verb", ["snooze", "fail", "fail at last"])
def test_cancel_of_job_that_stops_running(running: Any, process_id: int, verb: str) -> None:
    """It stops between the two looks at it."""

    def stop_before_the_second(execute: Any, statement: str, *rest: Any) -> Any:
        if statement.startswith('SELECT "salon_jobs_job"'):
            assert ENDS[verb](running, process_id)
        return execute(statement, *rest)

    with connections["operator"].execute_wrapper(stop_before_the_second), transaction.atomic(using="operator"):
        assert cancel_jobs([running.id], using="operator") == [ActionResult(running.id, True, ASKED)]
    assert states() == ["cancelled"]


@pytest.mark.parametrize(("verb", "ended"), [("finish", []), ("fail", ["cancelled"])])
def test_end_waits_for_request(running: Any, process_id: int, verb: str, ended: list[str]) -> None:
    with behind_transaction(lambda: ENDS[verb](running, process_id), using="operator") as ending:
        control._ask_to_end([running.id], "operator")
    assert ending.result()
    assert states() == ended


def test_finish_during_cancelling_transaction(running: Any, process_id: int) -> None:
    """It does not wait for the transaction that cancels."""
    with transaction.atomic(using="operator"):
        assert cancel_jobs([running.id], using="operator") == [ActionResult(running.id, True, ASKED)]
        assert not requested(running)
        assert finish(running, process_id)
    assert states() == []


def test_web_role_cancels_in_its_store(work: Work, running: Any) -> None:
    assert not cancel_jobs([running.id], using="web")[0].changed
    with tenant_context(work.stores[1], using="web"):
        refused = ActionResult(running.id, False, "there is no such job, or you may not see it")
        assert cancel_jobs([running.id], using="web") == [refused]
    assert not requested(running)
    with tenant_context(work.stores[0], using="web"):
        assert cancel_jobs([running.id], using="web") == [ActionResult(running.id, True, ASKED)]
    assert requested(running)
    assert work.leases.cancel_requests() == {(running.id, running.lease)}


@pytest.mark.parametrize(
    ("state", "columns", "words"),
    [
        ("running", {}, "running"),
        ("running", {"cancel_requested_at": NOW}, "cancelling"),
        ("queued", {}, "queued"),
        ("queued", {"run_at": NOW + timedelta(days=1)}, "scheduled"),
        ("running", {"run_at": NOW + timedelta(days=1)}, "running"),
        ("cancelled", {"reason": "expired: waited 5 s, longer than 1 s"}, "expired"),
        ("cancelled", {}, "cancelled"),
        ("failed", {"reason": "JOB.TIMED_OUT"}, "timed out"),
        ("failed", {}, "failed"),
    ],
)
def test_timeliness_in_words(state: str, columns: dict[str, Any], words: str) -> None:
    job = {"state": state, "run_at": NOW, "attempts": 0, "reason": "", **columns}
    assert Job(**job).timeliness(NOW) == words
