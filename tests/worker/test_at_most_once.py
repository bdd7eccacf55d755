"""Tests that a run of a task declared at_most_once is never repeated, however it is cut short."""

from __future__ import annotations

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
from tests.support import (
    another_process,
    change,
    claim,
    event_fields,
    job_row,
    leases_of,
    rescuer,
    run_due,
    run_on_threads,
    running_job,
    seen,
)
from tests.worker.effects import write, written


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


def errors() -> list[tuple[Any, ...]]:
    return seen("SELECT job_id, attempt, code, error_class FROM salon_jobs_job_error ORDER BY id")


NOT_REPEATED = "salon_jobs.core.errors.NotRepeated"


def test_a_run_of_any_kind_that_ends_by_itself_leaves_nothing(stores: list[UUID], process_id: int) -> None:
    for declared in (tasks.once, tasks.once_async):
        declared.enqueue()
    for in_store in (tasks.once_in_store, tasks.once_outside):
        in_store.enqueue(store_id=stores[0])
    run_on_threads(process_id)
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]


def test_it_begins_durably_before_the_handler_and_only_once(
    stores: list[UUID], process_id: int, hooks: tasks.Hooks
) -> None:
    settings: list[Any] = []

    def look(**_: object) -> None:
        # From another session: what it sees is committed.
        settings.extend(seen("SELECT begun_once_at IS NOT NULL FROM salon_jobs_job"))

    hooks.store = look
    handle = tasks.once_in_store.enqueue(store_id=stores[0])
    [job] = claim(process_id)
    first = running_job(job, process_id)
    assert isinstance(execute(first), Succeeded)
    assert settings == [(True,)]
    assert job_row(handle.id) is None
    tasks.once.enqueue()
    job = begin(process_id)
    assert isinstance(execute(running_job(job, process_id)), Lost), "the answer to a second beginning"


@pytest.mark.parametrize(("session", "at_commit"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")])
def test_the_beginning_waits_for_the_disk_whatever_the_session_says(
    process_id: int, session: str, at_commit: str
) -> None:
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
def test_a_run_whose_process_died_fails_and_is_not_repeated(
    enqueued: int, process_id: int, charged: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    begin(process_id)
    known = None if charged is None else [enqueued] * (charged == "it")
    assert rescue_process(
        process_id, None, end="was killed by SIGKILL", charged=known, using="default"
    ) == RescueCounts(1, 0, 1)
    rescues = 0 if charged == "none" else 1
    assert end_of(enqueued) == ("failed", "JOB.NOT_REPEATED", 1, rescues, None, NOT_REPEATED)
    assert errors() == [(enqueued, 1, "JOB.NOT_REPEATED", NOT_REPEATED)]
    [fields] = event_fields(caplog, "job_failed")
    assert (fields["code"], fields["attempt"]) == ("JOB.NOT_REPEATED", 1)
    assert rescuer().run_once() == RescueCounts()


def test_a_job_that_had_not_begun_is_queued_again_however_often_its_processes_die(enqueued: int) -> None:
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
def test_whatever_it_raises_is_the_end_also_of_a_row_of_an_older_release_that_allowed_attempts(
    enqueued: int, process_id: int, hooks: tasks.Hooks, error: Exception, state: str, reason: str
) -> None:
    def end(**_: object) -> None:
        raise error

    hooks.system = end
    change("UPDATE salon_jobs_job SET max_attempts = 25")
    run_due(process_id)
    assert end_of(enqueued)[:3] == (state, reason, 1)


@pytest.mark.parametrize(("kind", "reason"), [(Interrupted, "JOB.NOT_REPEATED"), (TimedOut, "JOB.TIMED_OUT")])
def test_an_interrupt_is_the_end_and_effects_in_the_transaction_are_rolled_back(
    stores: list[UUID], process_id: int, hooks: tasks.Hooks, kind: type[Interrupted], reason: str
) -> None:
    def interrupted(store_id: UUID, number: int) -> None:
        write()
        current_job().interrupted_by = kind
        raise kind

    hooks.store = interrupted
    handle = tasks.once_in_store.enqueue(store_id=stores[0])
    run_due(process_id)
    assert end_of(handle.id)[:3] == ("failed", reason, 1)
    assert written() == []


def test_a_run_for_which_its_process_was_killed_has_timed_out(enqueued: int, process_id: int) -> None:
    job = begin(process_id)
    overdue = [InFlightRun(0, job.id, job.lease, 100.0, 101.5)]
    rescue_process(process_id, None, charged=[], overdue=overdue, using="default")
    assert end_of(enqueued)[:3] == ("failed", "JOB.TIMED_OUT", 1)


def test_a_cancelled_run_is_cancelled(enqueued: int, process_id: int) -> None:
    begin(process_id)
    control.cancel_jobs([enqueued], using="default")
    rescue_process(process_id, None, using="default")
    assert end_of(enqueued)[:2] == ("cancelled", "cancelled")


def test_a_beginning_that_the_database_refused_is_no_beginning(
    process_id: int, hooks: tasks.Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one that was committed, and whose answer was lost."""
    began: list[str] = []
    hooks.system = lambda **arguments: began.append(arguments["note"])
    handle = tasks.once.enqueue(note="ran")
    begin_once = Leases.begin_once

    def lose_the_answer(leases: Leases, job: ClaimedJob) -> bool:
        begin_once(leases, job)
        raise OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patched:
        patched.setattr(Leases, "begin_once", lose_the_answer)
        [outcome] = run_due(process_id)
    assert outcome == Released(begun=False)
    assert end_of(handle.id) == ("queued", "", 0, 0, None, None)
    assert began == []
    run_due(process_id)
    assert began == ["ran"]


def test_no_statement_queues_again_what_has_begun(enqueued: int, process_id: int) -> None:
    job = begin(process_id)
    assert leases_of(process_id).requeue([(job.id, job.lease)]) == {}
    assert leases_of(process_id).give_back([(job.id, job.lease)]) == []
    with pytest.raises(IntegrityError, match="salon_jobs_job_state"):
        change("UPDATE salon_jobs_job SET state = 'queued', leased_by = NULL")


def test_an_operator_may_have_it_run_again(enqueued: int, process_id: int) -> None:
    begin(process_id)
    rescue_process(process_id, None, using="default")
    assert control.retry_jobs([enqueued], using="default")[0].changed
    again = another_process()
    begin(again)
    rescue_process(again, None, using="default")
    assert end_of(enqueued)[:3] == ("failed", "JOB.NOT_REPEATED", 2)


def test_every_way_to_enqueue_gives_it_one_attempt(stores: list[UUID], process_id: int) -> None:
    tasks.once.enqueue()
    tasks.once.enqueue_many([tasks.once.call(note="many")])
    enqueue_job("test-once", {"note": "by name"})
    fan_out(tasks.once_in_store)
    tasks.system.enqueue_many([tasks.system.call()], then=tasks.once.call(note="then"))
    assert seen("SELECT DISTINCT max_attempts FROM salon_jobs_job WHERE task LIKE 'test-once%%'") == [(1,)]
    assert seen("SELECT options ->> 'max_attempts' FROM salon_jobs_follow_up") == [("1",)]


def test_it_drains_in_a_test(stores: list[UUID]) -> None:
    tasks.once.enqueue()
    tasks.once_in_store.enqueue(store_id=stores[0])
    assert [type(job.outcome) for job in drain_jobs()] == [Succeeded, Succeeded]


@pytest.mark.parametrize(
    "options",
    [{"max_attempts": 2}, {"retry_on": (OSError,)}, {"backoff": object()}, {"at_most_once": 1}, {"at_most_once": None}],
)
def test_what_contradicts_it_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionInvalid, match=next(iter(options))):
        task(**cast("Any", {"name": "test-refused", "at_most_once": True, **options}))


def test_chunks_and_another_number_of_attempts_for_one_enqueue_are_refused() -> None:
    with pytest.raises(OptionInvalid, match="chunk=10"):
        store_task(name="test-refused", chunk=10, at_most_once=True)
    with pytest.raises(OptionInvalid, match="max_attempts=3"):
        tasks.once.using(max_attempts=3)
    with pytest.raises(OptionInvalid, match="declare the task with it"):
        tasks.system.using(at_most_once=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert tasks.once.using(max_attempts=1, queue="mail").options.queue == "mail"
    assert "test-refused" not in registry.task_names()


def test_an_end_that_nobody_writes_is_written_by_the_sweep(process_id: int) -> None:
    handle = tasks.once.enqueue()
    job = begin(process_id)
    assert leases_of(process_id).begun_once() == {(job.id, job.lease)}
    change("UPDATE salon_jobs_job SET begun_once_at = now() - interval '1 hour'")
    end_begun(job.id, job.lease, leases_of(process_id))
    assert end_of(handle.id)[:3] == ("failed", "JOB.NOT_REPEATED", 1)
    assert seen("SELECT started_at = begun_once_at FROM salon_jobs_job") == [(True,)]
    settle(running_job(job, process_id), Succeeded(finished=False))
    assert end_of(handle.id)[0] == "failed"
