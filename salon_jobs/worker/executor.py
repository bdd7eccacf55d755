"""Execution of a run, from its claim to its outcome.

Each rule stands here once, for threads, coroutines, chunks and tests. ``execute`` calls the functions below one after
the other on a thread; the coroutine runner awaits the handler, and calls on a thread what may wait for the database. As
a single generator, which its drivers answer, they would cost a small job 3 of its 45 µs.
"""

from __future__ import annotations

import inspect
import time
from contextvars import Token
from typing import Any, Final

from django.db import Error

from salon_jobs.core.errors import Expired, LeaseLost, PayloadInvalid, PayloadUnknown, TaskInvalid, TimedOut
from salon_jobs.core.outcomes import (
    CANCELLED,
    DISCARDED,
    Cancelled,
    Discard,
    Errored,
    Left,
    Lost,
    NotStarted,
    Outcome,
    Released,
    Retry,
    Snooze,
    Snoozed,
    Split,
    Succeeded,
    not_repeated,
)
from salon_jobs.core.records import ClaimedJob
from salon_jobs.core.units import in_seconds
from salon_jobs.db.internals import break_cycles
from salon_jobs.db.read_only import failed_read_only, refuses_writes
from salon_jobs.jobs.current import CurrentJob
from salon_jobs.jobs.registry import TaskDeclaration
from salon_jobs.jobs.run import JobRun, current_run, refuse_open_transaction
from salon_jobs.signals import job_started
from salon_jobs.tenancy.active import system_task
from salon_jobs.worker.async_handlers import run_coroutine
from salon_jobs.worker.forks import exit_if_forked
from salon_jobs.worker.store_transaction import refuse_vanished_store, store_transaction

# State that ``enter`` keeps for ``leave``.
Entered = tuple[Token[JobRun | None], Token[str | None] | None]
# By whether the handler's own transaction finished the job.
SUCCEEDED: Final = {finished: Succeeded(finished=finished) for finished in (False, True)}


def execute(run: JobRun) -> Outcome:
    """Lead a run through its life on this thread; return how it ended.

    Raises only an interrupt, which can arrive between any two bytecodes.
    """
    arguments = begin(run)
    if not isinstance(arguments, dict):
        return arguments
    was_in_transaction, has_transaction = run.connection.in_atomic_block, is_atomic(run)
    entered = enter(run)
    try:
        start(run)
        if run.job.store_id is None:
            keep_result(run, _call_handler(arguments, run))
        elif has_transaction:
            with store_transaction(run) as opened:
                keep_result(run, _call_handler(arguments, run))
                opened.finish()
        else:
            with run.as_store():
                keep_result(run, _call_handler(arguments, run))
        if not has_transaction:
            run.refuse_to_go_on()
        if run.may_hold_transaction and not was_in_transaction:
            refuse_open_transaction(run.connection)
        return SUCCEEDED[has_transaction]
    except BaseException as error:  # a handler may raise anything, even SystemExit; only the job fails
        return outcome_of(run, error)
    finally:
        leave(run, entered)


def begin(run: JobRun) -> dict[str, Any] | Outcome:
    """Return the handler's arguments, or how the run ends without it; may wait if ``begins_in_database``."""
    task, job = run.declaration, run.job
    may_expire = job.expired or task.timeouts is not None
    # The jobs of a chunk were in time when they joined it.
    if may_expire and len(run.runs) == 1 and (why := why_expired(task, job, run.waited_s)):
        return NotStarted(Expired(why))
    if not job.payload:
        try:
            job = run.job = run.leases.with_payload(job)
        except Error:  # an outage; the end of this run waits until it is over
            return Released()
        if not job.payload:
            return Lost()
    try:
        arguments = run.arguments()
    except PayloadInvalid as error:
        if len(run.runs) > 1:
            return outcome_of(run, error)
        return Left(error) if isinstance(error, PayloadUnknown) else Errored(error, retryable=False)
    if task.at_most_once:
        try:
            if not run.leases.begin_once(job):
                return Lost()
        except Error:  # it may have been recorded, but the handler was not called
            return Released(begun=False)
    return arguments


def begins_in_database(run: JobRun) -> bool:
    """Return whether ``begin`` queries the database: for a large payload, or to record the only attempt of a job."""
    return run.declaration.at_most_once or not run.job.payload


def enter(run: JobRun) -> Entered:
    """Make the run the current one of this context, until ``leave``; mark a system task as running without a store."""
    as_system = system_task.set(run.job.task) if run.job.store_id is None else None
    return current_run.set(run), as_system


def start(run: JobRun) -> None:
    """Call the receivers of ``job_started``; look up the store of a handler without a transaction.

    ``starts_in_database`` tells whether this may wait. Raises Discard.
    """
    if job_started.receivers:
        as_handler = system_task.set(None)  # only the handler of a system task may run without a store
        for each in run.runs:
            job_started.send_robust(run.declaration, job=CurrentJob(each))
        system_task.reset(as_handler)
    if run.job.store_id is not None and not is_atomic(run):
        # Between its transactions it must see no rows, even if an earlier job on this connection used SET directly.
        refuse_vanished_store(run)


def starts_in_database(run: JobRun) -> bool:
    """Return whether ``start`` queries the database, or calls receivers, which may."""
    return bool(job_started.receivers) or (run.job.store_id is not None and not is_atomic(run))


def is_atomic(run: JobRun) -> bool:
    """Return whether the handler runs in one transaction as its store, which also finishes the run."""
    task = run.declaration
    return task.is_store_task and task.atomic


def keep_result(run: JobRun, value: object) -> None:
    """Keep the return value of the handler, unless it comes too late, after ``current_job().finish()``."""
    if not run.finished:
        run.keep_returned(value)


def leave(run: JobRun, entered: Entered) -> None:
    """Undo ``enter``."""
    if run.extensions:
        run.close_extensions()
    before, as_system = entered
    if as_system is not None:
        system_task.reset(as_system)
    current_run.reset(before)


def why_expired(task: TaskDeclaration, job: ClaimedJob, waited_s: float) -> str | None:
    """Return why a job must not begin after waiting for so many seconds; None if it may."""
    if job.expired:
        return "claimed after expires_at"
    return None if task.timeouts is None else task.timeouts.expiry(waited_s)


def outcome_of(run: JobRun, error: BaseException) -> Outcome:
    """Return how a run ends that raised this error, from its handler or at its end.

    An interrupt counts for more than the error, unless the lease is lost or the handler raised Snooze or Discard; after
    a timeout, Retry still says when to try again. Queries the database if ``asks_server``.
    """
    break_cycles(error)
    met_read_only = asks_server(run, error) and _leads_to_read_only_server(run)
    if len(run.runs) > 1:  # by its own fault: then each job runs alone, and ends by its own fault only
        return Split(error, alone=run.interrupted_by in (None, TimedOut) and not met_read_only)
    at_most_once = run.declaration.at_most_once
    match error:
        case LeaseLost():
            return Lost()
        case Snooze():
            if run.cancelled():
                return Cancelled(CANCELLED, CANCELLED)
            return not_repeated("its handler raised Snooze") if at_most_once else Snoozed(error.delay)
        case Discard():
            return Cancelled(DISCARDED, error.reason)
        case _:
            return _ended_by(run, error, met_read_only=met_read_only)


def asks_server(run: JobRun, error: BaseException) -> bool:
    """Return whether the outcome depends on whether the server is read-only, as in a failover."""
    return run.interrupted_by is None and failed_read_only(error)


def _ended_by(run: JobRun, error: BaseException, *, met_read_only: bool) -> Outcome:
    """Return the outcome by the run's interrupt, or else by the task's rules for this error."""
    rules = run.declaration.errors
    if run.interrupted_by is None:
        return _released(run, "the server accepted no writes") if met_read_only else rules.outcome(error)
    if run.interrupted_by is not TimedOut:
        if run.cancelled():
            return Cancelled(CANCELLED, CANCELLED)
        return _released(run, "the run was interrupted when its process stopped")
    took_s = time.monotonic() - run.started
    # If the handler caught the interrupt and continued, the error says so.
    went_on = f": {error}" if isinstance(error, TimedOut) and error.args else ""
    timed_out = TimedOut(f"timed out after {in_seconds(took_s)}{went_on}").with_traceback(error.__traceback__)
    timed_out.__cause__ = None if isinstance(error, TimedOut) else error
    return Errored(timed_out, delay=error.after) if isinstance(error, Retry) else rules.outcome(timed_out)


def _released(run: JobRun, why: str) -> Released | Errored:
    """Return the outcome of a run that the worker interrupted."""
    if not run.declaration.at_most_once:
        return Released()
    return not_repeated(why) if run.is_called else Released(begun=False)


def _leads_to_read_only_server(run: JobRun) -> bool:
    """Ask whether the connection of a failed run leads to a read-only server, as in a failover.

    A handler that begins READ ONLY transactions gets the same error by its own fault.
    """
    if run.connection.in_atomic_block:
        return False
    try:
        return refuses_writes(run.connection)
    except Error:
        return True  # the connection was lost in the meantime


def _call_handler(arguments: dict[str, Any], run: JobRun) -> Any:
    """Call the handler. Raises TaskInvalid if it returned an awaitable, since nothing has run then."""
    task = run.declaration
    if task.at_most_once:
        run.is_called = True
    try:
        result = task.function(**arguments)
    except BaseException as error:
        exit_if_forked(error)
        raise
    exit_if_forked()
    if task.is_async:  # in a test, or by EAGER; those of a worker run in lane.py
        result = run_coroutine(result)
    elif result is not None and inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TaskInvalid(f"task {task.name!r} returned something to await; declare its handler with async def")
    if run.finished:
        run.recheck_finish()
    return result
