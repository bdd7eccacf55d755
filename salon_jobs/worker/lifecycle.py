"""The life of a run, from its claim to its outcome, as threads, coroutines and chunks share it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

from django.db import Error

from salon_jobs.core.errors import Expired, LeaseLost, PayloadInvalid, PayloadUnknown, TimedOut
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
from salon_jobs.worker.store_transaction import refuse_vanished_store, store_transaction

# By whether the handler's own transaction finished the job.
_SUCCEEDED: Final = {finished: Succeeded(finished=finished) for finished in (False, True)}


def lifecycle(run: JobRun) -> Generator[dict[str, Any] | Callable[[], Any], Any, Outcome]:
    """Lead a run from its claim to its outcome.

    Yields the arguments, with which its driver calls the handler, and before and after that each function that may talk
    to the database; the driver sends what came of it, or throws its error. A thread calls all of them where it is; the
    loop of coroutines awaits the handler, and has a thread call the functions. Only a store's transaction is begun and
    committed in here, since coroutines have none.

    To be driven in one context, and closed: an interrupt can hit the driver between two steps.
    """
    task, job = run.declaration, run.job
    may_expire = job.expired or task.timeouts is not None
    # Those of a chunk were in time when they joined it.
    if may_expire and len(run.runs) == 1 and (why := why_expired(task, job, run.waited_s)):
        return NotStarted(Expired(why))
    if not job.payload:
        try:
            job = run.job = yield partial(run.leases.with_payload, job)
        except Error:  # an outage, which the end of this run waits out
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
            if not (yield partial(run.leases.begin_once, job)):
                return Lost()
        except Error:  # it may have been recorded, but the handler was not called
            return Released(begun=False)
    is_atomic = task.is_store_task and task.atomic
    # A coroutine that has asked for no thread yet has the connection of the thread that claimed it.
    was_in_transaction = run.connection.in_atomic_block and run.may_hold_transaction
    token, as_system = current_run.set(run), None
    try:
        if job_started.receivers:
            for each in run.runs:
                yield partial(job_started.send_robust, task, job=CurrentJob(each))
        if job.store_id is not None and not is_atomic:
            # Between its transactions it must see no rows, even if an earlier job on this connection used SET directly.
            yield partial(refuse_vanished_store, run)
        if job.store_id is None:  # not in a block, which a small job would pay for
            as_system = system_task.set(task.name)
            value = yield arguments
            if not run.finished:  # otherwise it returns its result too late
                run.returned(value)
        else:
            block: AbstractContextManager[Any] = store_transaction(run) if is_atomic else run.as_store()
            with block as own:
                value = yield arguments
                if not run.finished:
                    run.returned(value)
                if is_atomic:
                    own.finish()
        if not is_atomic:
            run.refuse_to_go_on()
        if run.may_hold_transaction and not was_in_transaction:
            yield lambda: refuse_open_transaction(run.connection)
        return _SUCCEEDED[is_atomic]
    except BaseException as error:  # a handler may raise anything, even what closes a generator; only the job fails
        break_cycles(error)
        asks = run.interrupted_by is None and failed_read_only(error)
        met_read_only = asks and (yield partial(_leads_to_read_only_server, run))
        return outcome_of(run, error, met_read_only=met_read_only)
    finally:
        if run.extensions:
            run.close_extensions()
        if as_system is not None:
            system_task.reset(as_system)
        current_run.reset(token)


def why_expired(task: TaskDeclaration, job: ClaimedJob, waited_s: float) -> str | None:
    """Return why a job does not begin that has waited for so many seconds; None if it may."""
    if job.expired:
        return "claimed after expires_at"
    return None if task.timeouts is None else task.timeouts.expiry(waited_s)


def outcome_of(run: JobRun, error: BaseException, *, met_read_only: bool = False) -> Outcome:
    """Return how a run ends that raised this error, or met it at its end; an interrupt takes precedence.

    ``met_read_only``: its connection leads to a server that accepts no writes.
    """
    if len(run.runs) > 1:  # by a fault of their own, the jobs of a chunk then run alone
        return Split(error, alone=isinstance(_ended_by(run, error, met_read_only=met_read_only), Errored))
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


def _ended_by(run: JobRun, error: BaseException, *, met_read_only: bool) -> Outcome:
    rules = run.declaration.errors
    if run.interrupted_by is None:
        return _released(run, "the server accepted no writes") if met_read_only else rules.outcome(error)
    if run.interrupted_by is not TimedOut:
        if run.cancelled():
            return Cancelled(CANCELLED, CANCELLED)
        return _released(run, "the run was interrupted when its process stopped")
    took_s = time.monotonic() - run.started
    # Of a handler that caught it and went on, the error says so.
    went_on = f": {error}" if isinstance(error, TimedOut) and error.args else ""
    timed_out = TimedOut(f"timed out after {in_seconds(took_s)}{went_on}").with_traceback(error.__traceback__)
    timed_out.__cause__ = None if isinstance(error, TimedOut) else error
    return Errored(timed_out, delay=error.after) if isinstance(error, Retry) else rules.outcome(timed_out)


def _released(run: JobRun, why: str) -> Released | Errored:
    """Return the outcome of a run that was cut short through no fault of its own."""
    return not_repeated(why) if run.declaration.at_most_once else Released()


def _leads_to_read_only_server(run: JobRun) -> bool:
    """Ask whether the connection of a run that failed leads to a read-only server, as in a failover.

    A handler that begins READ ONLY transactions gets the same error by its own fault.
    """
    if run.connection.in_atomic_block:
        return False
    try:
        return refuses_writes(run.connection)
    except Error:
        return True  # it is gone in the meantime
