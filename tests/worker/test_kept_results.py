"""What handlers return, and what failed attempts logged, is kept with the job, and then pruned."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction

from salon_jobs import Discard, current_job, fan_out, get_job
from salon_jobs.core.errors import JobDoesNotExist, NoResult
from salon_jobs.core.outcomes import Errored, Lost, Succeeded
from salon_jobs.core.records import JobState
from salon_jobs.core.run_log import LONGEST_RECORD, JobLog, current_run
from salon_jobs.jobs import enqueue
from salon_jobs.jobs.pruning import Pruner
from salon_jobs.jobs.results import load_result
from salon_jobs.process.log_lines import LinesHandler, as_json, log_batch
from tests import tasks
from tests.support import change, job_row, run, seen
from tests.waiting import LIMIT_S, eventually
from tests.worker.effects import write, written
from tests.worker.work import Work, shown_to_people, states

RESULTS = "SELECT job_id FROM salon_jobs_job_result ORDER BY job_id"
HOUR = timedelta(hours=1)


@dataclass
class Receipt:
    number: int
    at: datetime


def returns(value: object) -> Callable[..., object]:
    return lambda **_: value


@pytest.mark.parametrize("kept", [False, True], ids=["deleted", "RETAIN_SUCCEEDED"])
def test_results_of_batch(work: Work, settings: Any, kept: bool) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": 60 * kept}
    work.hooks.system = lambda note: {"note": note}
    work.hooks.store = lambda number, **_: number

    async def later(note: str) -> str:
        return note

    work.hooks.coroutine = later
    plain = tasks.system.enqueue(note="x")
    first, second = tasks.kept_result.enqueue(note="a"), tasks.kept_result.enqueue(note="b")
    of_store = tasks.kept_result_in_store.enqueue(store_id=work.stores[0], number=7)
    outside = tasks.kept_result_outside.enqueue(store_id=work.stores[1], number=8)
    coroutine = tasks.kept_result_async.enqueue(note="c")
    work.run_on_thread()
    handles = (first, second, of_store, outside, coroutine)
    assert seen(RESULTS) == [(handle.id,) for handle in handles]
    assert [handle.result() for handle in handles] == [{"note": "a"}, {"note": "b"}, 7, 8, "c"]
    record = of_store.refresh()
    ended = (JobState.SUCCEEDED, not kept, 1, (work.process_id,))
    assert (record.state, record.gone, record.attempts, record.worker_ids) == ended
    assert (record.store_id, record.task, record.payload) == (work.stores[0], "test-kept-result-store", {"number": 7})
    assert record.created_at <= record.first_started_at == record.last_started_at <= record.finished_at  # type: ignore[operator]
    if kept:
        with pytest.raises(NoResult, match="keep_result"):
            plain.result()
    else:
        assert states() == []
        with pytest.raises(JobDoesNotExist):
            plain.result()


def test_result_and_effects_are_one_transaction(work: Work) -> None:
    def sell(**_: object) -> str:
        write("sale")
        return "sold"

    job = work.claim_one(sell, tasks.kept_result_in_store)
    change("UPDATE salon_jobs_job SET lease = lease + 1")
    assert isinstance(run(job, work.process_id), Lost)
    assert (seen(RESULTS), written()) == ([], [])
    change("UPDATE salon_jobs_job SET lease = lease - 1")
    assert isinstance(run(job, work.process_id), Succeeded)
    assert (get_job(job.id).value, written()) == ("sold", ["sale"])


def test_result_given_to_finish(work: Work) -> None:
    def body(**_: object) -> str:
        with transaction.atomic():
            current_job().finish({"early": True})
        return "too late"

    job_id = work.add(body, tasks.kept_result_outside)
    assert isinstance(work.run_due()[0], Succeeded)
    assert get_job(job_id).value == {"early": True}


@pytest.mark.parametrize("task", [tasks.kept_result_outside, tasks.kept_result_in_store, tasks.kept_result_async])
def test_result_after_rolled_back_finish(work: Work, task: Any) -> None:
    """It is what the handler returned, as if it had not called ``finish``."""

    def end() -> None:
        with suppress(ZeroDivisionError), transaction.atomic():
            current_job().finish("early")
            raise ZeroDivisionError

    def body(**_: object) -> str:
        end()
        return "returned"

    async def coroutine(**_: object) -> str:
        await sync_to_async(end)()
        return "returned"

    job_id = work.run_on_thread(coroutine if task is tasks.kept_result_async else body, task)
    assert get_job(job_id).value == "returned"


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
def test_result_is_kept_as_json(work: Work, value: object, stored: object) -> None:
    work.hooks.system = returns(value)
    handle = tasks.kept_result.enqueue()
    longer = tasks.kept_result.using(keep_result=timedelta(days=2)).enqueue()
    work.run_due()
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
def test_invalid_result_is_an_error(work: Work, value: object, says: str) -> None:
    """It is ignored where no result is kept."""
    work.hooks.system = returns(value)
    handle = tasks.kept_result.enqueue()
    ignored = tasks.system.enqueue()
    refused, succeeded = work.run_due()
    assert isinstance(refused, Errored)
    [error] = handle.refresh().errors
    assert error.code == "JOB.RESULT_INVALID"
    assert says in error.message
    assert "declare the task without keep_result" in error.message
    assert isinstance(succeeded, Succeeded)
    assert job_row(ignored.id) is None


def test_keep_result_of_one_enqueue(work: Work) -> None:
    work.hooks.system = work.hooks.store = returns("x")
    not_kept = tasks.kept_result.using(keep_result=timedelta(0)).enqueue()
    kept = tasks.system.using(keep_result=HOUR).enqueue()
    in_store = tasks.in_store.using(keep_result=HOUR)
    many = in_store.enqueue_many(tasks.in_store.call(store_id=store) for store in work.stores)
    same = tasks.kept_result.using(keep_result=HOUR).enqueue()
    assert seen("SELECT trace FROM salon_jobs_job WHERE id = %s", same.id) == [(None,)], "as declared: nothing travels"
    fan_out(in_store)
    work.run_due()
    # The tasks return nothing that they hand on: only what the hook of a task that returns it says is kept.
    assert len(seen(RESULTS)) == 1 + 3 + 1 + 3
    assert all(handle.refresh().gone for handle in (kept, *many))
    with pytest.raises(JobDoesNotExist):
        not_kept.refresh()


def test_public_id_and_errors_of_result(work: Work) -> None:
    """A retry and a rescue keep the public id, and the errors stay with the result until it is pruned."""
    work.hooks.system = tasks.raises(ZeroDivisionError)
    task, public_id = tasks.kept_result, uuid4()
    new = task.new_job(task.payload.bind((), {}), task.options)
    enqueue.add(replace(new, public_id=public_id), using="default")
    work.run_due()
    change("UPDATE salon_jobs_job SET run_at = now()")
    work.claim()
    work.leases.rescue("died")
    work.hooks.system = returns(5)
    [job] = work.claim()
    assert job.public_id == public_id
    run(job, work.process_id)
    record = load_result(public_id)
    assert record is not None
    assert (record.value, record.gone, record.attempts) == (5, True, 2)
    classes = ["builtins.ZeroDivisionError", "salon_jobs.core.errors.ProcessDied"]
    assert [error.error_class for error in record.errors] == classes
    assert record.worker_ids == (work.process_id,) * 3
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


def test_result_of_runner_is_refused_alone(work: Work) -> None:
    """The handler finishes its job in a transaction that it rolls back, so the finisher cannot tell what is true."""
    public_id, task = uuid4(), tasks.kept_result_outside
    first = work.add(returns("first"), task)
    work.run_due()

    def body(number: int, **_: object) -> str:
        if number == 1:
            with suppress(ZeroDivisionError), transaction.atomic():
                current_job().finish("early")
                raise ZeroDivisionError
            # The public id of a kept result, which no enqueue gives.
            change("UPDATE salon_jobs_job_result SET public_id = %s WHERE job_id = %s", public_id, first)
            change("UPDATE salon_jobs_job SET public_id = %s WHERE id = %s", public_id, wrong)
        return "next"

    wrong, other = work.add(body, task, number=1), work.add(body, task)
    work.run_on_thread()
    assert (get_job(first).value, get_job(other).value) == ("first", "next")
    job = get_job(wrong)
    [error] = job.errors
    assert (job.state, error.code) == (JobState.FAILED, "JOB.END_REFUSED")
    assert "IntegrityError" in error.message


@pytest.mark.parametrize("task", [tasks.kept_result_outside, tasks.outside], ids=["result", "plain"])
def test_cancelling_transaction_holds_up_one_end(work: Work, task: Any) -> None:
    work.hooks.store, work.hooks.system = returns("done"), returns("other")
    job_id = work.add(None, task)
    jobs = [locked] = work.claim()
    with work.on_thread() as runner, connections["web"].cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT set_config('app.current_store_id', %s, true)", [str(work.stores[0])])
        cursor.execute("SELECT salon_jobs_cancel(ARRAY[%s])", [job_id])
        assert cursor.fetchall() == [(job_id,)]
        others = []
        for _ in range(2):
            others += [tasks.kept_result.enqueue(), tasks.system.enqueue()]
            runner.jobs.put(jobs + work.claim())
            jobs = []
            eventually(runner.jobs.leases, [(locked.id, locked.lease)])
        assert [job_row(other.id) for other in others] == [None] * 4
        assert [other.result() for other in others[::2]] == ["other"] * 2
        cursor.execute("COMMIT")
        assert runner.jobs.wait_until_empty(LIMIT_S)
    assert job_row(job_id) is None, "the success stands"
    if task is tasks.kept_result_outside:
        assert get_job(job_id).value == "done"


# What a run logged

log = logging.getLogger("tests.shop")


@pytest.fixture
def job_log() -> Iterator[JobLog]:
    """Keep lines as a worker's process does."""
    handler = JobLog()
    own = {name: logging.getLogger(f"tests.{name}") for name in ("own", "own.part", "silent", "mute")}
    for logger in own.values():
        logger.propagate = False
        logger.setLevel(logging.INFO)
    own["own"].addHandler(logging.StreamHandler(StringIO()))
    own["own.part"].addHandler(logging.StreamHandler(StringIO()))
    own["silent"].addHandler(logging.NullHandler())
    handler.listen()
    log.setLevel(logging.INFO)
    yield handler
    log.setLevel(logging.NOTSET)
    logging.getLogger().removeHandler(handler)
    for logger in own.values():
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
        logger.handlers.clear()


@pytest.mark.usefixtures("job_log")
def test_log_of_failed_attempt(work: Work) -> None:
    """It has the last lines that the attempt logged itself, without secrets."""
    log.info("of no job")

    def fail(**_: object) -> None:
        log.info("charging %s", "password=hunter2")
        log.debug("not logged at this level")
        try:
            raise KeyError("no card")
        except KeyError:
            log.exception("cannot charge")
        raise ValueError("no such card")

    async def fail_later(**_: object) -> None:
        await sync_to_async(log.warning)("of the coroutine \x1b[31m\0")
        raise ValueError("no answer")

    first = work.add(fail)
    work.hooks.coroutine = fail_later
    second = work.add(None, tasks.async_system)
    work.run_on_thread()
    [error], [other] = get_job(first).errors, get_job(second).errors
    lines = error.log.splitlines()
    assert lines[0].endswith(" INFO tests.shop: charging password=***")
    assert lines[1].endswith(" ERROR tests.shop: cannot charge")
    assert lines[-1] == "KeyError: 'no card'"
    assert "of no job" not in error.log
    [line] = other.log.splitlines()
    assert line.endswith(r" WARNING tests.shop: of the coroutine \x1b[31m\x00")
    assert all("tests.shop: charging password=***" in text for text in shown_to_people(first))


@pytest.mark.usefixtures("job_log")
def test_log_of_loggers_that_do_not_propagate(work: Work) -> None:
    """Each line is there once; a logger that writes nowhere stays silent."""

    def fail(**_: object) -> None:
        for name in ("shop", "own", "own.part", "own.other", "silent", "mute"):
            logging.getLogger(f"tests.{name}").info("here")
        raise ValueError

    [error] = get_job(work.run_on_thread(fail, tasks.system)).errors
    said = [line.split()[-2] for line in error.log.splitlines() if line.endswith(": here")]
    assert said == ["tests.shop:", "tests.own:", "tests.own.part:", "tests.own.other:"]


@pytest.mark.usefixtures("job_log")
def test_log_of_run_is_bounded(work: Work) -> None:
    """64 KiB of its end are kept."""

    def fail(**_: object) -> None:
        for number in range(5000):
            log.info("line %s", number)
        raise ValueError

    [error] = get_job(work.run_on_thread(fail, tasks.system)).errors
    assert LONGEST_RECORD - 200 < len(error.log) <= LONGEST_RECORD
    assert error.log.endswith("line 4999")
    assert "line 0\n" not in error.log


@pytest.mark.usefixtures("job_log")
@pytest.mark.parametrize("keep", ["failed", "all", "none"])
def test_setting_keep_log(work: Work, settings: Any, keep: str) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "KEEP_LOG": keep, "RETAIN_SUCCEEDED": HOUR}

    def body(note: str) -> None:
        log.info("working")
        if note:
            raise {"failed": ValueError("x"), "discarded": Discard("gone")}[note]

    once = tasks.system.using(max_attempts=1)
    ids = [work.add(body, once, note=note) for note in ("", "discarded", "failed")]
    work.run_on_thread()
    kept = [bool(text) for (text,) in seen("SELECT log FROM salon_jobs_job ORDER BY id")]
    assert kept == [keep == "all", keep == "all", False]
    assert bool(get_job(ids[2]).errors[0].log) is (keep != "none")
    if keep == "all":
        assert all("tests.shop: working" in text for text in shown_to_people(ids[0]))


def test_log_of_batch_is_one_write(monkeypatch: pytest.MonkeyPatch, job_log: JobLog) -> None:
    writer = LinesHandler(StringIO(), as_json)
    batches: list[int] = []
    monkeypatch.setattr(writer, "write_batch", lambda *_, **__: batches.append(1))
    monkeypatch.setattr(logging.getLogger(), "handlers", [job_log, writer])
    log_batch(logging.ERROR, "job_succeeded", [1, 2], fields=lambda number: {"number": number})
    assert batches == [1]
    assert current_run.get() is None
