"""Tests how a run can end and what its row, its error rows and the log say afterwards."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from salon_jobs import Discard, Snooze, current_job
from salon_jobs.core.backoff import Backoff
from salon_jobs.core.errors import NoCurrentJob, SalonJobsError
from salon_jobs.core.outcomes import Cancelled, Errored, NotStarted, Snoozed, Succeeded
from tests import tasks
from tests.support import change, claim, event_fields, new_store_id, row_of, run_due, running_on_a_thread, seen
from tests.worker.conftest import RunOnThread
from tests.worker.effects import job_events


def raises(error: BaseException) -> Callable[..., Any]:
    def body(**_: object) -> None:
        raise error

    return body


def make_due() -> None:
    change("UPDATE salon_jobs_job SET run_at = now() WHERE state = 'queued'")


@pytest.mark.parametrize("kept", [False, True])
def test_a_success_deletes_the_row_unless_it_is_kept(
    stores: list[UUID], process_id: int, settings: Any, kept: bool
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": 60 * kept}
    tasks.system.enqueue()
    for declared in (tasks.in_store, tasks.outside):
        declared.enqueue(store_id=stores[0])
    assert {type(outcome) for outcome in run_due(process_id)} == {Succeeded}
    rows = seen("SELECT state, attempts, leased_by, finished_at IS NULL FROM salon_jobs_job")
    assert rows == [("succeeded", 1, None, False)] * 3 * kept


def test_the_handler_can_ask_for_its_own_job(stores: list[UUID], hooks: tasks.Hooks, process_id: int) -> None:
    got: list[Any] = []

    def body(**_: object) -> None:
        job = current_job()
        got.append((job.id, job.task, job.attempt, job.max_attempts, job.store_id, job.tick))

    hooks.store = body
    handle = tasks.in_store.enqueue(store_id=stores[2])
    run_due(process_id)
    assert got == [(handle.id, "test-store", 1, 3, stores[2], None)]
    with pytest.raises(NoCurrentJob):
        current_job()


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (OSError("gone"), "queued", ""),
        (ConnectionResetError("gone"), "queued", ""),  # a subclass counts
        (RuntimeError("gone"), "failed", "not_retried"),
        (KeyError("gone"), "cancelled", "discarded: KeyError: 'gone'"),
    ],
)
def test_a_task_says_which_errors_are_retried_and_which_discard_the_job(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, error: Exception, state: str, reason: str
) -> None:
    def body(store_id: UUID, **_: object) -> None:
        tasks.system.enqueue()
        raise error

    hooks.store = body
    handle = tasks.with_error_rules.enqueue(store_id=stores[0])
    run_due(process_id)
    row = row_of(handle.id)
    assert (row["state"], row["reason"], row["attempts"], row["leased_by"]) == (state, reason, 1, None)
    assert seen("SELECT count(*) FROM salon_jobs_job WHERE task = 'test-system'") == [(0,)], "rolled back"
    errors = seen("SELECT error_class FROM salon_jobs_job_error")
    assert len(errors) == (state != "cancelled")


def test_an_error_at_the_last_attempt_is_attempts_exhausted(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int
) -> None:
    hooks.store = raises(OSError("gone"))
    handle = tasks.with_error_rules.using(max_attempts=1).enqueue(store_id=stores[0])
    run_due(process_id)
    assert (row_of(handle.id)["state"], row_of(handle.id)["reason"]) == ("failed", "attempts_exhausted")


def test_attempts_end_in_failed_with_an_error_row_each(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    hooks.store = raises(RuntimeError("boom"))
    handle = tasks.in_store.enqueue(store_id=stores[0])
    for wait_s in (2, 4):
        run_due(process_id)
        [(waits_s,)] = seen("SELECT extract(epoch FROM run_at - now())::float8 FROM salon_jobs_job")
        assert 0.9 * wait_s - 0.5 <= waits_s <= 1.1 * wait_s
        make_due()
    run_due(process_id)
    make_due()
    assert run_due(process_id) == []
    row = row_of(handle.id)
    assert (row["state"], row["attempts"], row["reason"], row["leased_by"]) == ("failed", 3, "attempts_exhausted", None)
    errors = seen("SELECT attempt, store_id, error_class, message, traceback FROM salon_jobs_job_error ORDER BY id")
    assert [error[:4] for error in errors] == [
        (attempt, stores[0], "builtins.RuntimeError", "boom") for attempt in (1, 2, 3)
    ]
    assert all("in body\n" in error[4] for error in errors)
    assert job_events(caplog) == ["job_retried", "job_retried", "job_failed"]
    logged = [record for record in caplog.records if vars(record).get("event") in ("job_retried", "job_failed")]
    assert [vars(record)["event_fields"]["error"] for record in logged] == ["boom"] * 3
    assert [record.exc_info is not None for record in logged] == [True, False, True], "not what only repeats the first"


def test_an_error_that_names_what_is_redacted_is_not_quoted_in_the_log(
    database: None, hooks: tasks.Hooks, process_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    hooks.system = raises(RuntimeError('{"card_number": "4242", "amount": 7}'))
    tasks.system.using(max_attempts=2).enqueue()
    run_due(process_id)
    [fields] = event_fields(caplog, "job_retried")
    assert fields["error"] == '{"card_number": "***", "amount": 7}'


class Unshowable(Exception):
    """Is an error whose message cannot be computed."""

    def __str__(self) -> str:
        raise ValueError


class Exits(Exception):
    """Is an error that asks for the end of the process when it is shown, and whose notes are none."""

    def __str__(self) -> str:
        raise SystemExit(1)

    def __getattribute__(self, name: str) -> Any:
        if name == "__notes__":
            raise SystemExit(1)
        return super().__getattribute__(name)


class Miscoded(SalonJobsError):
    """Is an error whose code is no text and whose class has a name that no column takes."""

    code = object()  # type: ignore[assignment]


Miscoded.__module__ = "tests\0.\udce9"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SystemExit(3), "3"),
        (KeyboardInterrupt(), ""),
        (GeneratorExit(), ""),
        (RuntimeError("a\0b"), "a\\x00b"),
        (RuntimeError("caf\udce9"), "caf\\udce9"),
        (Unshowable(), "(cannot be shown: ValueError)"),
        (Exits(), "(cannot be shown: SystemExit)"),
        (Miscoded("x"), "x"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_a_handler_raises_is_an_error_of_its_job_alone(
    database: None, hooks: tasks.Hooks, process_id: int, error: BaseException, message: str
) -> None:
    hooks.system = raises(error)
    handle = tasks.system.enqueue()
    run_due(process_id)
    assert (row_of(handle.id)["state"], row_of(handle.id)["attempts"]) == ("queued", 1)
    assert seen("SELECT message FROM salon_jobs_job_error") == [(message,)]


def test_snooze_counts_no_attempt(stores: list[UUID], hooks: tasks.Hooks, process_id: int) -> None:
    hooks.store = raises(Snooze(timedelta(minutes=5)))
    handle = tasks.in_store.enqueue(store_id=stores[0])
    for _ in range(4):
        make_due()
        assert run_due(process_id) == [Snoozed(timedelta(minutes=5))]
    row = row_of(handle.id)
    assert (row["state"], row["attempts"]) == ("queued", 0)
    assert seen("SELECT run_at - now() > interval '4 min' FROM salon_jobs_job") == [(True,)]
    assert seen("SELECT count(*) FROM salon_jobs_job_error") == [(0,)]


def test_discard_cancels_with_its_reason(stores: list[UUID], hooks: tasks.Hooks, process_id: int) -> None:
    hooks.store = raises(Discard("the invitation was withdrawn\0"))
    handle = tasks.in_store.enqueue(store_id=stores[0])
    run_due(process_id)
    row = row_of(handle.id)
    assert (row["state"], row["attempts"]) == ("cancelled", 1)
    assert row["reason"] == "discarded: the invitation was withdrawn\\x00"


def test_a_stored_payload_that_no_longer_fits_fails_at_once(database: None, process_id: int) -> None:
    handle = tasks.system.enqueue()
    change("""UPDATE salon_jobs_job SET payload = '{"gone": 1}'""")
    [outcome] = run_due(process_id)
    assert isinstance(outcome, Errored)
    row = row_of(handle.id)
    assert (row["state"], row["attempts"], row["reason"]) == ("failed", 1, "JOB.PAYLOAD_INVALID")
    assert seen("SELECT code FROM salon_jobs_job_error") == [("JOB.PAYLOAD_INVALID",)]


@pytest.mark.parametrize("declared", [tasks.in_store, tasks.outside])
def test_a_store_that_no_longer_exists_discards_the_job(
    database: None, hooks: tasks.Hooks, process_id: int, declared: Any
) -> None:
    hooks.store = raises(AssertionError("it must not run"))
    handle = declared.enqueue(store_id=new_store_id())
    assert run_due(process_id) == [Cancelled("discarded", "the store no longer exists")]
    row = row_of(handle.id)
    assert (row["state"], row["reason"]) == ("cancelled", "discarded: the store no longer exists")


def test_an_expired_job_is_cancelled_and_not_run(stores: list[UUID], hooks: tasks.Hooks, process_id: int) -> None:
    hooks.store = raises(AssertionError("it must not run"))
    handle = tasks.in_store.enqueue(store_id=stores[0])
    change("UPDATE salon_jobs_job SET expires_at = now() - interval '1 s'")
    [outcome] = run_due(process_id)
    assert isinstance(outcome, NotStarted)
    row = row_of(handle.id)
    assert (row["state"], row["reason"], row["attempts"]) == ("cancelled", "expired: claimed after expires_at", 0)
    assert seen("SELECT attempt, code FROM salon_jobs_job_error") == [(1, "JOB.EXPIRED")]


def test_a_runner_survives_every_job_and_an_end_that_can_not_be_written(
    database: None, hooks: tasks.Hooks, process_id: int
) -> None:
    beyond = Snooze(timedelta(0))
    beyond.delay = timedelta.max
    bodies = {"1 exit": raises(SystemExit(1)), "2 beyond the calendar": raises(beyond), "3 fine": lambda: None}
    hooks.system = lambda note: bodies[note]()
    for note in bodies:
        tasks.system.enqueue(note=note)
    with running_on_a_thread(process_id, claim(process_id)) as runner:
        assert not runner.ended
    rows = seen("SELECT payload->>'note', state, attempts FROM salon_jobs_job ORDER BY 1")
    assert rows == [(note, "queued", 1) for note in list(bodies)[:2]]
    errors = seen("SELECT error_class FROM salon_jobs_job_error ORDER BY id")
    assert errors == [("builtins.SystemExit",), ("django.db.utils.DataError",)]


class Uncomputable(Backoff):
    """Is a backoff of somebody's own, with a mistake in it."""

    def delay(self, attempt: int, rng: object = None) -> timedelta:
        raise ZeroDivisionError


def test_an_error_that_can_not_even_be_settled_still_costs_an_attempt(
    run_on_thread: RunOnThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks.system, "_backoff", Uncomputable())
    job_id = run_on_thread(raises(RuntimeError("the till is closed")))
    assert (row_of(job_id)["state"], row_of(job_id)["attempts"]) == ("queued", 1)
    assert seen("SELECT error_class FROM salon_jobs_job_error") == [("builtins.ZeroDivisionError",)]
