"""A run of a task declared at_most_once is never repeated, however it is cut short."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import pytest
from django.db import IntegrityError, OperationalError, connection

from salon_jobs import Discard, Snooze, current_job, enqueue_job, fan_out, store_task, task
from salon_jobs.core.errors import Interrupted, OptionInvalid, TimedOut
from salon_jobs.core.outcomes import Lost, Released, Succeeded
from salon_jobs.core.records import ClaimedJob
from salon_jobs.jobs import control, registry
from salon_jobs.jobs.leases import Leases
from salon_jobs.testing import drain_jobs
from salon_jobs.worker.ends import end_begun, settle
from salon_jobs.worker.executor import execute
from salon_jobs.worker.in_flight import InFlightRun
from salon_jobs.worker.maintenance import RescueCounts, rescue_process
from tests import tasks
from tests.support import another_process, change, claim, leases_of, rescuer, running_coroutines, running_job, seen
from tests.worker.effects import write, written
from tests.worker.work import Work, errors, states


@pytest.fixture
def enqueued(database: None) -> int:
    """Return the id of a job that runs at most once."""
    return tasks.once.enqueue().id


def begin(process_id: int) -> ClaimedJob:
    """Claim the only job and begin its run, as a process does that dies in it."""
    [job] = claim(process_id)
    assert leases_of(process_id).begin_once(job)
    return job


def end_of(job_id: int) -> tuple[Any, ...]:
    [row] = seen(
        "SELECT state, reason, attempts, rescues, leased_by, error_class FROM salon_jobs_job WHERE id = %s", job_id
    )
    return row


NOT_REPEATED = "salon_jobs.core.errors.NotRepeated"


def test_success_leaves_nothing(work: Work) -> None:
    for declared in (tasks.once, tasks.once_async, tasks.once_in_store, tasks.once_outside):
        work.add(None, declared)
    work.run_on_thread()
    assert states() == []


def test_run_begins_once(work: Work) -> None:
    """It begins before the handler, durably."""
    settings: list[Any] = []

    def look(**_: object) -> None:
        # From another session: what it sees is committed.
        settings.extend(seen("SELECT begun_once_at IS NOT NULL FROM salon_jobs_job"))

    first = running_job(work.claim_one(look, tasks.once_in_store), work.process_id)
    assert isinstance(execute(first), Succeeded)
    assert (settings, states()) == ([(True,)], [])
    tasks.once.enqueue()
    job = begin(work.process_id)
    assert isinstance(execute(running_job(job, work.process_id)), Lost), "the answer to a second beginning"


@pytest.mark.parametrize(("session", "at_commit"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")])
def test_beginning_waits_for_disk(process_id: int, session: str, at_commit: str) -> None:
    tasks.once.enqueue()
    [job] = claim(process_id)
    change(
        "CREATE FUNCTION show_commit() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'commits %%', current_setting('synchronous_commit'); END $$"
    )
    change(
        "CREATE CONSTRAINT TRIGGER show_commit AFTER UPDATE ON salon_jobs_job DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION show_commit()"
    )
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('synchronous_commit', %s, false)", [session])
    try:
        with pytest.raises(Exception, match=f"commits {at_commit}$|commits {at_commit}\n"):
            leases_of(process_id).begin_once(job)
    finally:
        connection.close()
        change("DROP FUNCTION show_commit CASCADE")


@pytest.mark.parametrize("charged", [None, "it", "none"])
def test_run_of_dead_process_fails(enqueued: int, work: Work, charged: str | None) -> None:
    """It is not repeated, whether or not the process is known to have started it."""
    begin(work.process_id)
    known = None if charged is None else [enqueued] * (charged == "it")
    assert rescue_process(work.process_id, None, charged=known, using="default") == RescueCounts(1, 0, 1)
    rescues = 0 if charged == "none" else 1
    assert end_of(enqueued) == ("failed", "JOB.NOT_REPEATED", 1, rescues, None, NOT_REPEATED)
    assert errors() == [(1, NOT_REPEATED, "JOB.NOT_REPEATED")]
    [fields] = work.fields("job_failed")
    assert (fields["code"], fields["attempt"], fields["queue"]) == ("JOB.NOT_REPEATED", 1, "default")
    assert fields["error_class"] == NOT_REPEATED
    assert fields["error"].endswith("died running it, and the task runs at most once")
    assert rescuer().run_once() == RescueCounts()


def test_job_not_begun_is_requeued(enqueued: int) -> None:
    for _ in range(4):
        process = another_process()
        assert len(claim(process)) == 1
        assert rescue_process(process, None, using="default") == RescueCounts(1, 1, 0)
    assert end_of(enqueued) == ("queued", "", 0, 0, None, None)
    assert errors() == []


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (OSError(), "failed", "attempts_exhausted"),
        (Snooze(timedelta(minutes=1)), "failed", "JOB.NOT_REPEATED"),
        (Discard("no need"), "cancelled", "discarded: no need"),
    ],
    ids=["error", "snooze", "discard"],
)
def test_raised_exception_is_the_end(work: Work, error: Exception, state: str, reason: str) -> None:
    """It is so for the row of an older release that allowed attempts, too."""
    job_id = work.add(tasks.raises(error), tasks.once)
    change("UPDATE salon_jobs_job SET max_attempts = 25")
    work.run_due()
    assert end_of(job_id)[:3] == (state, reason, 1)


@pytest.mark.parametrize(("kind", "reason"), [(Interrupted, "JOB.NOT_REPEATED"), (TimedOut, "JOB.TIMED_OUT")])
def test_interrupt_is_the_end(work: Work, kind: type[Interrupted], reason: str) -> None:
    """Effects in the transaction are rolled back."""

    def interrupted(**_: object) -> None:
        write()
        current_job().run.interrupted_by = kind
        raise kind

    job_id = work.add(interrupted, tasks.once_in_store)
    work.run_due()
    assert end_of(job_id)[:3] == ("failed", reason, 1)
    assert written() == []


def test_killed_run_has_timed_out(enqueued: int, process_id: int) -> None:
    job = begin(process_id)
    overdue = [InFlightRun(0, job.id, job.lease, 100.0, 101.5)]
    rescue_process(process_id, None, charged=[], overdue=overdue, using="default")
    assert end_of(enqueued)[:3] == ("failed", "JOB.TIMED_OUT", 1)


def test_cancelled_run_is_cancelled(enqueued: int, process_id: int) -> None:
    begin(process_id)
    control.cancel_jobs([enqueued], using="default")
    rescue_process(process_id, None, using="default")
    assert end_of(enqueued)[:2] == ("cancelled", "cancelled")


def test_refused_beginning_is_none(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that was committed, and whose answer was lost."""
    began: list[str] = []
    job_id = work.add(lambda **given: began.append(given["note"]), tasks.once, note="ran")
    begin_once = Leases.begin_once

    def lose_the_answer(leases: Leases, job: ClaimedJob) -> bool:
        begin_once(leases, job)
        raise OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patched:
        patched.setattr(Leases, "begin_once", lose_the_answer)
        assert work.run_due() == [Released(begun=False)]
    assert end_of(job_id) == ("queued", "", 0, 0, None, None)
    assert began == []
    work.run_due()
    assert began == ["ran"]


@pytest.mark.parametrize("declared", [tasks.once, tasks.once_async])
def test_interrupt_before_handler_is_called(work: Work, monkeypatch: pytest.MonkeyPatch, declared: Any) -> None:
    """The beginning is recorded, and a shutdown comes in between: the job is queued again."""
    begin_once, interrupts = Leases.begin_once, list[Callable[[], object]]()

    def and_then_stop(leases: Leases, job: ClaimedJob) -> bool:
        begun = begin_once(leases, job)
        interrupts[0]()
        return begun

    monkeypatch.setattr(Leases, "begin_once", and_then_stop)
    if declared is tasks.once:
        with work.on_thread() as runner:
            interrupts.append(runner.interrupt_current)
            job_id = work.add(lambda **_: pytest.fail("it was called"), declared)
            runner.end_all(work.claim())
    else:
        with running_coroutines(work.process_id) as (lane, _):
            interrupts.append(lane.interrupt_all)
            job_id = work.add(lambda **_: pytest.fail("it was called"), declared)
            lane.start(work.claim())
    assert end_of(job_id) == ("queued", "", 0, 0, None, None)


def test_begun_job_is_never_requeued(enqueued: int, process_id: int) -> None:
    job = begin(process_id)
    assert leases_of(process_id).requeue([(job.id, job.lease)]) == {}
    assert leases_of(process_id).give_back([(job.id, job.lease)]) == []
    with pytest.raises(IntegrityError, match="salon_jobs_job_state"):
        change("UPDATE salon_jobs_job SET state = 'queued', leased_by = NULL")


def test_operator_runs_it_again(enqueued: int, process_id: int) -> None:
    begin(process_id)
    rescue_process(process_id, None, using="default")
    assert control.retry_jobs([enqueued], using="default")[0].changed
    again = another_process()
    begin(again)
    rescue_process(again, None, using="default")
    assert end_of(enqueued)[:3] == ("failed", "JOB.NOT_REPEATED", 2)


def test_every_enqueue_gives_one_attempt(stores: list[UUID], process_id: int) -> None:
    tasks.once.enqueue()
    tasks.once.enqueue_many([tasks.once.call(note="many")])
    enqueue_job("test-once", {"note": "by name"})
    fan_out(tasks.once_in_store)
    tasks.system.enqueue_many([tasks.system.call()], then=tasks.once.call(note="then"))
    assert seen("SELECT DISTINCT max_attempts FROM salon_jobs_job WHERE task LIKE 'test-once%%'") == [(1,)]
    assert seen("SELECT options ->> 'max_attempts' FROM salon_jobs_follow_up") == [("1",)]


def test_drain_in_test(stores: list[UUID]) -> None:
    tasks.once.enqueue()
    tasks.once_in_store.enqueue(store_id=stores[0])
    assert [type(job.outcome) for job in drain_jobs()] == [Succeeded, Succeeded]


@pytest.mark.parametrize(
    "options", [{"max_attempts": 2}, {"retry_on": (OSError,)}, {"backoff": object()}, {"at_most_once": 1}]
)
def test_contradicting_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionInvalid, match=next(iter(options))):
        task(**cast("Any", {"name": "test-refused", "at_most_once": True, **options}))


def test_contradicting_enqueue_is_refused() -> None:
    with pytest.raises(OptionInvalid, match="chunk=10"):
        store_task(name="test-refused", chunk=10, at_most_once=True)
    with pytest.raises(OptionInvalid, match="max_attempts=3"):
        tasks.once.using(max_attempts=3)
    with pytest.raises(OptionInvalid, match="declare the task with it"):
        tasks.system.using(at_most_once=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert tasks.once.using(max_attempts=1, queue="mail").options.queue == "mail"
    assert "test-refused" not in registry.task_names()


def test_sweep_writes_missing_end(process_id: int) -> None:
    handle = tasks.once.enqueue()
    job = begin(process_id)
    assert leases_of(process_id).begun_once() == {(job.id, job.lease)}
    change("UPDATE salon_jobs_job SET begun_once_at = now() - interval '1 hour'")
    end_begun(job.id, job.lease, leases_of(process_id))
    assert end_of(handle.id)[:3] == ("failed", "JOB.NOT_REPEATED", 1)
    assert seen("SELECT started_at = begun_once_at FROM salon_jobs_job") == [(True,)]
    settle(running_job(job, process_id), Succeeded(finished=False))
    assert end_of(handle.id)[0] == "failed"
