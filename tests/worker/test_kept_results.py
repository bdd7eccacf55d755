"""Shows that what handlers return is kept with the success itself, for those jobs that keep it, and then pruned."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connections, transaction

from salon_jobs import current_job, fan_out, get_job
from salon_jobs.core.errors import JobDoesNotExist, NoResult
from salon_jobs.core.outcomes import Errored, Lost, Succeeded
from salon_jobs.core.records import JobState
from salon_jobs.jobs import enqueue
from salon_jobs.jobs.pruning import Pruner
from salon_jobs.jobs.results import load_result
from tests import tasks
from tests.support import change, claim, job_row, leases_of, run, run_due, run_on_threads, running_on_a_thread, seen
from tests.tasks import Hooks

RESULTS = "SELECT job_id FROM salon_jobs_job_result ORDER BY job_id"
HOUR = timedelta(hours=1)


@dataclass
class Receipt:
    number: int
    at: datetime


def returns(value: object) -> Callable[..., object]:
    return lambda **_: value


@pytest.mark.parametrize("kept", [False, True], ids=["deleted", "RETAIN_SUCCEEDED"])
def test_a_batch_keeps_the_results_of_those_that_have_one(
    process_id: int, hooks: Hooks, stores: list[UUID], settings: Any, kept: bool
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": 60 * kept}
    hooks.system = lambda note: {"note": note}
    hooks.store = lambda number, **_: number

    async def later(note: str) -> str:
        return note

    hooks.coroutine = later
    plain = tasks.system.enqueue(note="x")
    first, second = tasks.kept_result.enqueue(note="a"), tasks.kept_result.enqueue(note="b")
    of_store = tasks.kept_result_in_store.enqueue(store_id=stores[0], number=7)
    outside = tasks.kept_result_outside.enqueue(store_id=stores[1], number=8)
    coroutine = tasks.kept_result_async.enqueue(note="c")
    run_on_threads(process_id)
    handles = (first, second, of_store, outside, coroutine)
    assert seen(RESULTS) == [(handle.id,) for handle in handles]
    assert [handle.result() for handle in handles] == [{"note": "a"}, {"note": "b"}, 7, 8, "c"]
    record = of_store.refresh()
    ended = (JobState.SUCCEEDED, not kept, 1, (process_id,))
    assert (record.state, record.gone, record.attempts, record.worker_ids) == ended
    assert (record.store_id, record.task, record.payload) == (stores[0], "test-kept-result-store", {"number": 7})
    assert record.created_at <= record.first_started_at == record.last_started_at <= record.finished_at  # type: ignore[operator]
    if kept:
        with pytest.raises(NoResult, match="keep_result"):
            plain.result()
    else:
        assert seen("SELECT id FROM salon_jobs_job") == []
        with pytest.raises(JobDoesNotExist):
            plain.result()


def test_a_store_tasks_result_and_effects_are_one_transaction(
    process_id: int, hooks: Hooks, stores: list[UUID]
) -> None:
    sale = "INSERT INTO sale (id, store_id, sold_at, amount) VALUES (%s, %s, now(), 1)"

    def sell(store_id: UUID, **_: object) -> str:
        with connections["default"].cursor() as cursor:
            cursor.execute(sale, [uuid4(), store_id])
        return "sold"

    hooks.store = sell
    handle = tasks.kept_result_in_store.enqueue(store_id=stores[0])
    [job] = claim(process_id)
    change("UPDATE salon_jobs_job SET lease = lease + 1")
    assert isinstance(run(job, process_id), Lost)
    assert (seen(RESULTS), seen("SELECT count(*) FROM sale")) == ([], [(0,)])
    change("UPDATE salon_jobs_job SET lease = lease - 1")
    assert isinstance(run(job, process_id), Succeeded)
    assert (handle.result(), seen("SELECT count(*) FROM sale")) == ("sold", [(1,)])


def test_a_handler_that_finishes_its_job_hands_over_the_result(
    process_id: int, hooks: Hooks, stores: list[UUID]
) -> None:
    def body(**_: object) -> str:
        with transaction.atomic():
            current_job().finish({"early": True})
        return "too late"

    hooks.store = body
    handle = tasks.kept_result_outside.enqueue(store_id=stores[0])
    [outcome] = run_due(process_id)
    assert isinstance(outcome, Succeeded)
    assert handle.result() == {"early": True}


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, None),
        (Receipt(1, datetime(2026, 5, 6, tzinfo=UTC)), {"number": 1, "at": "2026-05-06T00:00:00Z"}),
        ({date(2026, 5, 6): {1.5}}, {"2026-05-06": [1.5]}),
        ("\\u0000 in letters", "\\u0000 in letters"),
    ],
    ids=["none", "dataclass", "keys", "backslash"],
)
def test_what_can_be_json_is_kept_as_json(process_id: int, hooks: Hooks, value: object, stored: object) -> None:
    hooks.system = returns(value)
    handle = tasks.kept_result.enqueue()
    longer = tasks.kept_result.using(keep_result=timedelta(days=2)).enqueue()
    run_due(process_id)
    assert handle.result() == longer.result() == stored
    ages = "SELECT extract(epoch FROM expires_at - finished_at)::int FROM salon_jobs_job_result ORDER BY job_id"
    assert seen(ages) == [(3600,), (172_800,)]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "returned object, which cannot"),
        (float("nan"), "not a number in JSON"),
        ("\0", "NUL"),
        ("\ud800", "surrogate"),
        (10**5000, "returned int"),
        ("x" * 10_000_001, "at most 10,000,000 are kept"),
    ],
    ids=["object", "not a number", "NUL", "surrogate", "long number", "too long"],
)
def test_what_is_no_json_is_an_error_where_results_are_kept_and_ignored_elsewhere(
    process_id: int, hooks: Hooks, value: object, says: str
) -> None:
    hooks.system = returns(value)
    handle = tasks.kept_result.enqueue()
    ignored = tasks.system.enqueue()
    outcomes = run_due(process_id)
    assert isinstance(outcomes[0], Errored)
    [error] = handle.refresh().errors
    assert error.code == "JOB.RESULT_INVALID"
    assert says in error.message
    assert "declare the task without keep_result" in error.message
    assert isinstance(outcomes[1], Succeeded)
    assert job_row(ignored.id) is None


def test_an_enqueue_says_otherwise_for_its_job(process_id: int, hooks: Hooks, stores: list[UUID]) -> None:
    hooks.system = hooks.store = returns("x")
    not_kept = tasks.kept_result.using(keep_result=timedelta(0)).enqueue()
    kept = tasks.system.using(keep_result=HOUR).enqueue()
    many = tasks.in_store.using(keep_result=HOUR).enqueue_many(tasks.in_store.call(store_id=store) for store in stores)
    same = tasks.kept_result.using(keep_result=HOUR).enqueue()
    assert seen("SELECT trace FROM salon_jobs_job WHERE id = %s", same.id) == [(None,)], "as declared: nothing travels"
    fan_out(tasks.in_store.using(keep_result=HOUR))
    run_due(process_id)
    # The tasks return nothing that they hand on: only what the hook of a task that returns it says is kept.
    assert len(seen(RESULTS)) == 1 + 3 + 1 + 3
    assert kept.refresh().gone
    assert all(handle.refresh().gone for handle in many)
    with pytest.raises(JobDoesNotExist):
        not_kept.refresh()


def test_a_retry_and_a_rescue_keep_the_public_id_and_the_errors_stay_with_the_result(
    process_id: int, hooks: Hooks
) -> None:
    def explode(**_: object) -> None:
        raise ZeroDivisionError

    hooks.system = explode
    task, public_id = tasks.kept_result, uuid4()
    new = task.new_job(task.payload.bind((), {}), task.options)
    enqueue.add(replace(new, public_id=public_id), using="default")
    run_due(process_id)
    change("UPDATE salon_jobs_job SET run_at = now()")
    claim(process_id)
    leases_of(process_id).rescue("died")
    hooks.system = returns(5)
    [job] = claim(process_id)
    assert job.public_id == public_id
    run(job, process_id)
    record = load_result(public_id)
    assert record is not None
    assert (record.value, record.gone, record.attempts) == (5, True, 2)
    assert [error.error_class for error in record.errors] == [
        "builtins.ZeroDivisionError",
        "salon_jobs.core.errors.ProcessDied",
    ]
    assert record.worker_ids == (process_id,) * 3
    assert record.first_started_at == record.errors[0].started_at
    # Errors of a job that succeeded are pruned after a day, while its result is kept for longer.
    change("UPDATE salon_jobs_job_error SET occurred_at = now() - interval '2 days'")
    pruner = Pruner(using="default")
    pruner.run_once()
    assert len(get_job(job.id).errors) == 2
    change("UPDATE salon_jobs_job_result SET expires_at = now() - interval '1 second'")
    assert pruner.run_once().deleted["results"] == 1
    assert load_result(public_id) is None
    with pytest.raises(JobDoesNotExist):
        get_job(job.id)
    Pruner(using="default").run_once()
    assert seen("SELECT count(*) FROM salon_jobs_job_error") == [(0,)]


def test_a_result_that_a_runner_writes_itself_is_refused_alone_too(
    process_id: int, hooks: Hooks, stores: list[UUID]
) -> None:
    """The handler finishes its job in a transaction that it rolls back, so the finisher cannot tell what is true."""
    public_id = uuid4()
    hooks.store = returns("first")
    first = tasks.kept_result_outside.enqueue(store_id=stores[0])
    run_due(process_id)
    wrong = tasks.kept_result_outside.enqueue(store_id=stores[0], number=1)

    def body(number: int, **_: object) -> str:
        if number == 1:
            with suppress(ZeroDivisionError), transaction.atomic():
                current_job().finish("early")
                raise ZeroDivisionError
            # The public id of a kept result, which no enqueue gives.
            change("UPDATE salon_jobs_job_result SET public_id = %s WHERE job_id = %s", public_id, first.id)
            change("UPDATE salon_jobs_job SET public_id = %s WHERE id = %s", public_id, wrong.id)
        return "next"

    hooks.store = body
    other = tasks.kept_result_outside.enqueue(store_id=stores[0])
    run_on_threads(process_id)
    assert (first.result(), other.result()) == ("first", "next")
    [error] = wrong.refresh().errors
    assert (wrong.status(), error.code) == (JobState.FAILED, "JOB.END_REFUSED")
    assert "IntegrityError" in error.message


@pytest.mark.parametrize("task", [tasks.kept_result_outside, tasks.outside], ids=["result", "plain"])
def test_an_open_transaction_that_cancels_a_job_holds_up_the_end_of_no_other(
    process_id: int, hooks: Hooks, stores: list[UUID], task: Any
) -> None:
    hooks.store, hooks.system = returns("done"), returns("other")
    handle = task.enqueue(store_id=stores[0])
    with running_on_a_thread(process_id, []) as runner, connections["web"].cursor() as cursor:
        jobs = [locked] = claim(process_id)
        cursor.execute("BEGIN")
        cursor.execute("SELECT set_config('app.current_store_id', %s, true)", [str(stores[0])])
        cursor.execute("SELECT salon_jobs_cancel(ARRAY[%s])", [handle.id])
        assert cursor.fetchall() == [(handle.id,)]
        others = []
        for _ in range(2):
            others += [tasks.kept_result.enqueue(), tasks.system.enqueue()]
            runner._jobs.put(jobs + claim(process_id))
            jobs = []
            give_up_at = time.monotonic() + 10
            while runner._jobs.leases() != [(locked.id, locked.lease)]:
                assert time.monotonic() < give_up_at, "the locked row holds up the others"
        assert [job_row(other.id) for other in others] == [None] * 4
        assert [other.result() for other in others[::2]] == ["other"] * 2
        cursor.execute("COMMIT")
        assert runner._jobs.wait_idle(10)
    assert job_row(handle.id) is None, "the success stands"
    if task is tasks.kept_result_outside:
        assert handle.result() == "done"
