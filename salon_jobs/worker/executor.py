"""Execution of one claimed job: task, tenant context, handler, outcome."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache, partial
from typing import Any, Final, cast
from uuid import UUID

from django.apps import apps
from django.db import DatabaseError, Error
from msgspec import UNSET, Struct, UnsetType
from psycopg import sql as compose

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.error_report import report
from salon_jobs.core.errors import (
    EndRefused,
    Expired,
    LeaseLost,
    NotRepeated,
    OutcomeUnknown,
    PayloadInvalid,
    ResultInvalid,
    TaskInvalid,
    TimedOut,
)
from salon_jobs.core.events import contained, log_batch, log_event
from salon_jobs.core.outcomes import (
    CANCELLED,
    DISCARDED,
    Cancelled,
    Discard,
    Errored,
    Lost,
    NotStarted,
    Outcome,
    Released,
    Snooze,
    Snoozed,
    Split,
    Succeeded,
    Unknown,
)
from salon_jobs.core.records import ClaimedJob, JobState
from salon_jobs.core.tracing import FinalFailure, report_failure
from salon_jobs.db.read_only import failed_read_only, refuses_writes
from salon_jobs.db.statements import in_one_trip
from salon_jobs.jobs import current, queries, registry
from salon_jobs.jobs.current import RunningJob, refuse_open_transaction
from salon_jobs.jobs.payload import ChunkPayload
from salon_jobs.jobs.registry import TaskDeclaration
from salon_jobs.jobs.results import MOST_PER_STATEMENT, in_statements
from salon_jobs.jobs.statistics import ended_runs
from salon_jobs.signals import job_finished, job_started
from salon_jobs.tenancy.active import ActiveContext, run_as_system_task
from salon_jobs.tenancy.context import StoreJobContext, tenant_context
from salon_jobs.worker.async_handlers import run_coroutine
from salon_jobs.worker.forks import end_copy

# By whether the handler's own transaction finished the job.
_SUCCEEDED: Final = {finished: Succeeded(finished=finished) for finished in (False, True)}


def execute(running: RunningJob) -> Outcome:
    """Run the handler and return how it ended. Raises only an interrupt, which can arrive between any two bytecodes."""
    job, task = running.job, running.declaration
    if job.expired:
        return NotStarted(Expired("claimed after expires_at"))
    if running.others:
        return _execute_chunk(running)
    if task.timeouts is not None and (why := task.timeouts.expiry(running.waited_s)):
        return NotStarted(Expired(why))
    if not job.payload:
        try:
            job = running.job = queries.with_payload(job, running.process_id)
        except Error:  # an outage, which the end of this run waits out
            return Released()
        if not job.payload:
            return Lost()
    try:
        arguments = task.payload.decode(job.payload, job.store_id)
    except PayloadInvalid as error:
        return Errored(error, retryable=False)
    if task.at_most_once and (unbegun := _begin_once(running)) is not None:
        return unbegun
    in_transaction = running.connection.in_atomic_block
    token = current.running.set(running)
    try:
        if job_started.receivers:
            job_started.send_robust(task, job=running)
        finished = task.is_store_task and task.atomic
        if finished:
            _run_in_transaction(arguments, running)
        else:
            _run_outside(arguments, running)
            if running.interrupted_by is not None:
                raise running.interrupted_by
        if not in_transaction:
            refuse_open_transaction(running.connection)
        return _SUCCEEDED[finished]
    except LeaseLost:
        return Lost()
    except Snooze as snooze:
        if running.cancelled():
            return Cancelled(CANCELLED, CANCELLED)
        return _not_repeated("its handler raised Snooze") if task.at_most_once else Snoozed(snooze.delay)
    except Discard as discard:
        return Cancelled(DISCARDED, discard.reason)
    except BaseException as error:  # a handler may raise anything, even SystemExit; only the job fails
        return ended_by(running, error)
    finally:
        current.running.reset(token)


def _begin_once(running: RunningJob) -> Outcome | None:
    """Record that the only run of a job begins; return an outcome if the handler must not be called."""
    try:
        return None if queries.begin_once(running.job, running.process_id) else Lost()
    except Error:  # it may have been recorded, but the handler was not called
        return Released(begun=False)


def _released(running: RunningJob, why: str) -> Released | Errored:
    """Return the outcome of a run that was cut short through no fault of its own."""
    return _not_repeated(why) if running.declaration.at_most_once else Released()


def _not_repeated(why: str) -> Errored:
    return Errored(NotRepeated(f"{why}, and the task runs at most once"), retryable=False)


def joins_chunk(task: TaskDeclaration, job: ClaimedJob) -> bool:
    """Return whether the job may run together with others.

    A job that failed, or was in a chunk that failed, runs alone, since it would make the others fail again. So does one
    that waited too long, which ends without a run, and one whose payload is so large that its claim left it out.
    """
    if task.chunk is None or job.attempts or job.expired or job.alone or not job.payload:
        return False
    return task.timeouts is None or not task.timeouts.expiry(time.monotonic() - job.due_at)


def join(first: RunningJob, jobs: Sequence[ClaimedJob]) -> None:
    """Let these jobs run in one chunk with the first, on its connection."""
    first.others = tuple(
        RunningJob(job, first.declaration, first.process_id, first.connection, first.resets_session) for job in jobs
    )
    for run in first.runs:
        run.chunk_size, run.started = len(first.runs), first.started


def _execute_chunk(running: RunningJob) -> Outcome:
    """Run the chunk that begins with this run, in one transaction; it succeeds as a whole or not at all."""
    task, payload = running.declaration, cast("ChunkPayload", running.declaration.payload)
    in_transaction = running.connection.in_atomic_block
    token = current.running.set(running)
    try:
        arguments = payload.join([payload.decode(run.job.payload, run.job.store_id) for run in running.runs])
        if job_started.receivers:
            for run in running.runs:
                job_started.send_robust(task, job=run)
        with _store_transaction(running) as own:
            _call(arguments, running)
            _finish_chunk(own, running)
        for run in running.runs:
            run.finished = True
        if not in_transaction:
            refuse_open_transaction(running.connection)
        return Succeeded(finished=True)
    except BaseException as error:  # a handler may raise anything, even SystemExit; only the chunk fails
        return ended_by(running, error)
    finally:
        current.running.reset(token)


def ended_by(running: RunningJob, error: BaseException) -> Outcome:
    """Return the outcome of a run that raised this error; an interrupt from outside takes precedence."""
    rules = running.declaration.errors
    blameless = running.interrupted_by is None and _met_read_only_server(running, error)
    if running.others:
        return Split(error, alone=not blameless and running.interrupted_by in (None, TimedOut))
    if running.interrupted_by is None:
        return _released(running, "the server accepted no writes") if blameless else rules.outcome(error)
    if running.interrupted_by is not TimedOut:
        if running.cancelled():
            return Cancelled(CANCELLED, CANCELLED)
        return _released(running, "the run was interrupted when its process stopped")
    took_s = time.monotonic() - running.started
    timed_out = TimedOut(f"timed out after {took_s:.3g} s").with_traceback(error.__traceback__)
    timed_out.__cause__ = None if isinstance(error, TimedOut) else error
    return rules.outcome(timed_out)


def _met_read_only_server(running: RunningJob, error: BaseException) -> bool:
    """Return whether the run failed because its connection leads to a read-only server, as in a failover.

    A handler that begins READ ONLY transactions gets the same error by its own fault, so the server is asked.
    """
    if not failed_read_only(error) or running.connection.in_atomic_block:
        return False
    try:
        return refuses_writes(running.connection)
    except Error:
        return True  # it is gone in the meantime


def settle(running: RunningJob, outcome: Outcome) -> Outcome:
    """Write the outcome under the fence, log it and send ``job_finished``; return what really happened.

    Raises database errors, also when the job is held up (``queries.is_held_up``); then call it again.
    """
    if isinstance(outcome, Split):
        return _split(running, outcome)
    if (state := _write(running, outcome)) is not None:
        error = outcome.error if isinstance(outcome, (Errored, NotStarted)) else None
        _announce(running, state, error)
        return outcome
    is_committed = not isinstance(outcome, Lost) and _committed(running)
    if is_committed is None:
        return _report_unknown(running)
    if is_committed:
        # Without an interrupt, only an on_commit callback can have failed.
        error = outcome.error if isinstance(outcome, Errored) and running.interrupted_by is None else None
        if error is not None:
            _log(logging.ERROR, events.JOB_CALLBACK_FAILED, running, exc_info=error)
        _log(logging.INFO, events.JOB_SUCCEEDED, running)
        _announce(running, JobState.SUCCEEDED)
        return Succeeded(finished=True, callback_error=error)
    _log(logging.WARNING, events.JOB_LEASE_LOST, running)
    return Lost()


def end_begun(job_id: int, lease: int, process_id: int) -> None:
    """Fail a job of this process whose only run has begun, and whose end nobody will write. Raises database errors."""
    if (job := queries.leased_job(process_id, job_id, lease)) is not None:
        running = RunningJob(job, registry.get_declaration(job.task), process_id)
        settle(running, _not_repeated("the end of the run could not be written"))


def _split(running: RunningJob, outcome: Split) -> Outcome:
    """Requeue the jobs of a chunk that was rolled back, unless its COMMIT arrived after all. Raises database errors."""
    error, runs = outcome.error, running.runs
    own_error = error if running.interrupted_by is None else None
    ended = queries.requeue(
        [(run.job.id, run.job.lease) for run in runs],
        running.process_id,
        delay=_delay_of_release(running),
        alone=outcome.alone,
    )
    is_committed = False if ended else _committed(running)
    if is_committed is None:
        return _report_unknown(running)
    if is_committed:
        if own_error is not None:
            _log(logging.ERROR, events.JOB_CALLBACK_FAILED, running, exc_info=own_error)
        for run in runs:
            run.finished = True
        report_successes(runs)
        return Succeeded(finished=True, callback_error=own_error)
    described = report(error)
    if running.trace is not None:
        running.trace.error = error
    log_event(
        logging.WARNING,
        events.CHUNK_SPLIT,
        exc_info=own_error,
        **identify(running.job),
        jobs=len(runs),
        queue=running.job.queue,
        error_class=described.error_class,
        code=described.code,
        error=described.message[:_LONGEST_LOGGED],
    )
    for run in runs:
        end = ended.get(run.id)
        if end is None:
            _log(logging.WARNING, events.JOB_LEASE_LOST, run)
            continue
        if end.state is JobState.CANCELLED:
            _log(logging.INFO, events.JOB_CANCELLED, run, reason=end.reason)
        else:
            _log(logging.INFO, events.JOB_RELEASED, run, reason="chunk split")
        _announce(run, end.state)
    return outcome


def _committed(running: RunningJob) -> bool | None:
    """Return whether a run that owns no row was committed; None if that cannot be known. Raises database errors.

    Only a run that sent its end without a clear answer can have been: other rows are gone for other reasons.
    """
    return running.is_unclear and queries.committed(running.job, running.process_id, began=running.started)


def _report_unknown(running: RunningJob) -> Unknown:
    error = OutcomeUnknown("the database was promoted before it answered the COMMIT: the job has ended, or is lost")
    if running.trace is not None:
        running.trace.error = error
    for run in running.runs:
        _log(logging.WARNING, events.JOB_OUTCOME_UNKNOWN, run, code=error.code, error=str(error))
        _announce(run, None, error)
    return Unknown(error)


def _delay_of_release(running: RunningJob) -> timedelta | None:
    """Return zero if the task has a wait timeout, which its run must not count towards; None keeps ``run_at``."""
    timeouts = running.declaration.timeouts
    return timedelta(0) if timeouts is not None and timeouts.wait_timeout is not None else None


def _announce(running: RunningJob, state: JobState | None, error: BaseException | None = None) -> None:
    """Tell receivers and the task of an end that is written, whatever they raise."""
    if job_finished.receivers:
        with contained("receivers of job_finished raised for job %s", running.id):
            job_finished.send_robust(running.declaration, job=running, state=state, error=error)
    if state is not None and running.declaration.on_end is not None:
        with contained("the end of job %s could not be announced", running.id):
            running.declaration.on_end(running, state, error)


def _write(running: RunningJob, outcome: Outcome) -> JobState | None:
    """Write and log one outcome; return the job's state now, None when this run no longer owns the row."""
    job, process_id = running.job, running.process_id
    match outcome:
        case Succeeded(finished=finished):
            if not finished:
                # An earlier try, whose answer was lost, may have finished it. This one is unclear until it is answered.
                was_unclear, running.is_unclear = running.is_unclear, True
                if not queries.finish(job, process_id, running.result, ran_s=running.ran_s):
                    running.is_unclear = was_unclear
                    return None
            _log(logging.INFO, events.JOB_SUCCEEDED, running)
            return JobState.SUCCEEDED
        case Snoozed(delay=delay):
            ended = queries.requeue([(job.id, job.lease)], process_id, delay=delay)
            if not ended:
                return None
            _log(logging.INFO, events.JOB_SNOOZED, running, delay_s=delay.total_seconds())
            return ended[job.id].state
        case Released(begun=begun):
            wait = _delay_of_release(running)
            ended = queries.requeue([(job.id, job.lease)], process_id, delay=wait, unbegun=not begun)
            if not ended:
                return None
            _log(logging.WARNING, events.JOB_RELEASED, running)
            return ended[job.id].state
        case Cancelled(kind=kind, detail=detail):
            reason = kind if kind == detail else f"{kind}: {detail}"
            if not queries.cancel_run(job, process_id, reason, ran_s=running.ran_s):
                return None
            _log(logging.INFO, events.JOB_CANCELLED, running, reason=reason)
            return JobState.CANCELLED
        case NotStarted(error=error):
            return _write_expiry(running, error)
        case Errored():
            return _write_error(running, outcome)
        case Lost() | Unknown() | Split():
            return None


def _write_expiry(running: RunningJob, error: Expired) -> JobState | None:
    if running.trace is not None:
        running.trace.error = error
    described = report(error)
    reason = f"expired: {error}"
    if not queries.expire_run(running.job, running.process_id, described, reason):
        return None
    fields: dict[str, Any] = {
        "error_class": described.error_class,
        "code": described.code,
        "waited_s": round(running.waited_s, 3),
    }
    _log(logging.WARNING, events.JOB_EXPIRED, running, reason=reason, **fields)
    return JobState.CANCELLED


_LONGEST_LOGGED: Final = 500


def _write_error(running: RunningJob, outcome: Errored) -> JobState | None:
    job, error = running.job, outcome.error
    if running.trace is not None:
        running.trace.error = error
    delay = running.declaration.backoff.delay(job.attempt)
    described = report(error)
    ended = queries.fail(
        job,
        running.process_id,
        described,
        delay=delay,
        final=not outcome.retryable,
        reason=described.code or ("attempts_exhausted" if outcome.retryable else "not_retried"),
        ran_s=running.ran_s,
    )
    if ended is None and not queries.failed_by(job, running.process_id):
        return None
    # If the row is no longer owned but failed under this lease, an earlier attempt was written and its answer lost.
    state = JobState.FAILED if ended is None else ended.state
    fields: dict[str, Any] = {
        "error_class": described.error_class,
        "code": described.code,
        "error": described.message[:_LONGEST_LOGGED],
    }
    match state:
        case JobState.FAILED:
            _log(logging.ERROR, events.JOB_FAILED, running, exc_info=error, **fields)
            reported = running.trace is not None and error in running.trace.reported
            report_failure(FinalFailure(job.id, job.task, job.store_id, job.attempt, error, reported))
        case JobState.CANCELLED:
            _log(logging.WARNING, events.JOB_CANCELLED, running, reason=ended.reason if ended else "", **fields)
        case _:
            # The error rows have the tracebacks of failures that only repeat the first.
            shown = error if job.attempt == 1 else None
            fields["delay_s"] = round(delay.total_seconds(), 3)
            _log(logging.WARNING, events.JOB_RETRIED, running, exc_info=shown, **fields)
    return state


def refused(running: RunningJob, error: Exception) -> Errored:
    """Return the final outcome of a run that succeeded, and whose end the database refuses to write."""
    size = 0 if running.result is None else len(running.result.value.encode())
    what = f"keep its result of {size:,} bytes" if size else "record that it succeeded"
    refusal = EndRefused(
        f"the handler of task {running.task!r} has returned, so what it did outside a transaction of its own stands, "
        f"but the database refuses to {what}: {type(error).__name__}: {str(error).strip()[:_LONGEST_LOGGED]}"
    )
    refusal.__cause__ = error
    return Errored(refusal, retryable=False)


def report_successes(runs: Sequence[RunningJob], on_told: Callable[[], None] = lambda: None) -> None:
    """Log runs whose success is written, all in one write, and send ``job_finished`` for each.

    ``on_told`` is called after each run whose receivers were called.
    """
    ended_runs.count(events.JOB_SUCCEEDED, runs)
    log_batch(logging.INFO, events.JOB_SUCCEEDED, runs, fields=_described, line=_SuccessLine.of)
    for running in runs:
        if running.declaration.on_end is not None or job_finished.receivers:
            _announce(running, JobState.SUCCEEDED)
            on_told()


def _run_in_transaction(arguments: dict[str, Any], running: RunningJob) -> None:
    with _store_transaction(running) as own:
        _call(arguments, running)
        if own is None or running.finished or running.result is not None or not _commit_finished(own, running):
            running.end()


def _commit_finished(own: StoreJobContext, running: RunningJob) -> bool:
    """Finish and commit in one round trip; return False, having done nothing, if a block is open. Raises LeaseLost."""
    running.check_end()
    running.is_unclear = True
    with _lease_lost(running):
        running.finished = own.commit_after(queries.finish_call([running.job], running.process_id, ran_s=running.ran_s))
    return running.finished


def _finish_chunk(own: StoreJobContext | None, running: RunningJob) -> None:
    """Finish all jobs of a chunk, and commit if nothing else is open. Raises LeaseLost."""
    running.check_end()
    running.is_unclear = True
    results = [(run.job, run.result) for run in running.runs]
    for some in in_statements(results, MOST_PER_STATEMENT):
        jobs, kept = [job for job, _ in some], [result for _, result in some]
        if queries.finish_all(jobs, running.process_id, kept, ran_s=running.ran_s) < len(jobs):
            raise LeaseLost(f"jobs of the chunk of job {running.id} are no longer leased to this run")
    jobs = [run.job for run in running.runs if run.result is None]
    with _lease_lost(running):
        # An empty statement commits alone.
        finish = queries.finish_call(jobs, running.process_id, ran_s=running.ran_s) if jobs else "SELECT"
        if own is None or not own.commit_after(finish):
            in_one_trip(running.connection, finish)


@contextmanager
def _lease_lost(running: RunningJob) -> Generator[None]:
    """Raise LeaseLost for the error of a statement that found the lease lost."""
    try:
        yield
    except DatabaseError as error:
        if getattr(error.__cause__, "sqlstate", None) == queries.LEASE_LOST:
            raise LeaseLost(f"job {running.id} is no longer leased to this run") from error
        raise


def _run_outside(arguments: dict[str, Any], running: RunningJob) -> None:
    task, store_id = running.declaration, running.job.store_id
    if store_id is None:
        run_as_system_task(task.name, _call, arguments, running)
        return
    # Between its transactions it must see no rows, even when an earlier job on this connection used SET directly.
    with _store_transaction(running, afresh=True) as own:
        if own is not None:
            own.commit_after("SELECT")
    with ActiveContext(running.connection, store_id, atomic=False, by_statement=task.is_async):
        _call(arguments, running)


def _call(arguments: dict[str, Any], running: RunningJob) -> None:
    """Call the handler. Raises TaskInvalid if it returned an awaitable, since nothing has run then."""
    task = running.declaration
    try:
        result = task.function(**arguments)
    except BaseException as error:
        end_copy(error)
        raise
    end_copy()
    if task.is_async:
        result = run_coroutine(result, partial(_allow_interrupt, running))
    elif result is not None and inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TaskInvalid(f"task {task.name!r} returned something to await; declare its handler with async def")
    # Most jobs keep no result, and pay only for this condition. A handler that has finished its job returns its result
    # too late.
    if task.chunk is not None:
        _keep_results(running, result)
    elif (task.options.keep_result or running.job.keep_result_s) and not running.finished:
        running.returned(result)


def _keep_results(running: RunningJob, result: Any) -> None:
    """Keep the results of a chunk, which may have one job. Raises ResultInvalid unless there is one per job."""
    runs = running.runs
    if not any(run.keeps_result for run in runs):
        return
    results: list[Any] = [None] * len(runs) if result is None else result
    if not isinstance(results, list) or len(results) != len(runs):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ResultInvalid(
            f"task {running.task!r} keeps results: for {len(runs)} jobs it must return None, or a list of {len(runs)}"
        )
    for run, value in zip(runs, results, strict=True):
        run.returned(value)


def _allow_interrupt(running: RunningJob, cancel: Callable[[], None]) -> None:
    """Let an interrupt cancel the coroutine, even one that came just before."""
    running.cancel_coroutine = cancel
    if running.interrupted_by is not None:
        cancel()


@contextmanager
def _store_transaction(running: RunningJob, *, afresh: bool = False) -> Generator[StoreJobContext | None]:
    """Open a transaction as the job's store. Raises Discard if the store's row is gone."""
    connection, store_id = running.connection, running.store_id
    assert store_id is not None  # noqa: S101 - decode refused a store task without one
    exists = _store_exists(conf.store_model, store_id)
    if StoreJobContext.fits(connection):
        with StoreJobContext(connection, store_id, exists, afresh=afresh, resets=running.resets_session) as own:
            # Nothing guarantees that the one statement set the store before it looked the store up, so a store that
            # seems to be gone is looked up again.
            if not own.answer:
                _refuse_vanished_store(running, exists)
            yield own
        return
    with tenant_context(store_id):
        _refuse_vanished_store(running, exists)
        yield None


def _refuse_vanished_store(running: RunningJob, exists: str) -> None:
    if in_one_trip(running.connection, f"SELECT {exists}").get_value(0, 0) != b"t":
        raise Discard("the store no longer exists")


def _store_exists(store_model: str | None, store_id: UUID) -> str:
    """Return the SQL expression for whether a store's row is visible; always true without a store model."""
    return "true" if store_model is None else f"{_store_look_up(store_model)}'{store_id}')"


@cache
def _store_look_up(store_model: str) -> str:
    meta = apps.get_model(store_model)._meta
    table, key = compose.Identifier(meta.db_table), compose.Identifier(meta.pk.column)
    return compose.SQL("EXISTS (SELECT FROM {} WHERE {} = ").format(table, key).as_string(None)


def identify(job: ClaimedJob | queries.Ended) -> dict[str, Any]:
    """Return the fields that every log record of a run has."""
    return {"task_name": job.task, "job_id": job.id, "store_id": job.store_id, "attempt": job.attempts + 1}


def report_given_back(jobs: Sequence[queries.Ended], reason: str, *, level: int = logging.WARNING) -> None:
    """Log jobs that this process had claimed and has given back unstarted: queued again, or cancelled on request."""
    released = [job for job in jobs if job.state is JobState.QUEUED]
    log_batch(level, events.JOB_RELEASED, released, fields=lambda job: _unstarted(job, reason))
    for job in jobs:
        if job.state is JobState.CANCELLED:
            ended_runs.count_untimed(events.JOB_CANCELLED, job.task, job.queue)
            severity = logging.INFO if job.reason == CANCELLED else logging.WARNING
            log_event(severity, events.JOB_CANCELLED, **_unstarted(job, job.reason))


def _unstarted(job: queries.Ended, reason: str) -> dict[str, Any]:
    return {**identify(job), "queue": job.queue, "reason": reason}


def _log(
    level: int, event: str, running: RunningJob, *, exc_info: BaseException | None = None, **fields: object
) -> None:
    ended_runs.count(event, (running,))
    if running.trace is not None:
        running.trace.ended = event
    log_event(level, event, exc_info=exc_info, **_described(running), **fields)


class _SuccessLine(Struct, omit_defaults=True, gc=False):
    """Log line for a job that succeeded: the head of every line, and the fields of ``_described``."""

    time: str
    level: str
    logger: str
    event: str
    task_name: str
    job_id: int
    store_id: UUID | None
    attempt: int
    queue: str
    duration_ms: float
    chunk: int | UnsetType = UNSET
    trace_id: str | UnsetType = UNSET

    @classmethod
    def of(cls, running: RunningJob, when: str, level: str, name: str, event: str) -> _SuccessLine:
        job, trace = running.job, running.trace
        took_ms = round(running.duration_s * 1000, 3)
        line = cls(when, level, name, event, job.task, job.id, job.store_id, job.attempts + 1, job.queue, took_ms)
        if running.chunk_size > 1:
            line.chunk = running.chunk_size
        if trace is not None and trace.trace_id is not None:
            line.trace_id = trace.trace_id
        return line


def _described(running: RunningJob) -> dict[str, Any]:
    fields = identify(running.job)
    fields["queue"] = running.job.queue
    fields["duration_ms"] = round(running.duration_s * 1000, 3)
    if running.chunk_size > 1:
        fields["chunk"] = running.chunk_size
    if running.trace is not None and running.trace.trace_id is not None:
        fields["trace_id"] = running.trace.trace_id
    return fields
