"""Execution of one claimed job: task, tenant context, handler, outcome."""

from __future__ import annotations

import inspect
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from django.apps import apps
from django.db import DatabaseError, Error
from psycopg import sql as compose

from salon_jobs.conf import settings as conf
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
    Succeeded,
    not_repeated,
)
from salon_jobs.core.units import in_seconds
from salon_jobs.db.internals import break_cycles
from salon_jobs.db.read_only import failed_read_only, refuses_writes
from salon_jobs.db.statements import in_one_trip
from salon_jobs.jobs.current import CurrentJob
from salon_jobs.jobs.leases import LEASE_LOST
from salon_jobs.jobs.run import JobRun, current_run, refuse_open_transaction
from salon_jobs.signals import job_started
from salon_jobs.tenancy.active import ActiveContext, run_as_system_task
from salon_jobs.tenancy.context import StoreJobContext, tenant_context
from salon_jobs.worker.async_handlers import run_coroutine
from salon_jobs.worker.forks import end_copy

# By whether the handler's own transaction finished the job.
SUCCEEDED: Final = {finished: Succeeded(finished=finished) for finished in (False, True)}


def execute(running: JobRun) -> Outcome:
    """Run the handler and return how it ended. Raises only an interrupt, which can arrive between any two bytecodes."""
    begun = begin(running)
    if not isinstance(begun, dict):
        return begun
    job, task = running.job, running.declaration
    was_in_transaction = running.connection.in_atomic_block
    token = current_run.set(running)
    try:
        if job_started.receivers:
            job_started.send_robust(task, job=CurrentJob(running))
        finishes_inside = task.is_store_task and task.atomic
        if finishes_inside:
            with store_transaction(running) as own:
                call_handler(begun, running)
                if own is None or running.finished or running.result is not None:
                    running.end()
                else:
                    running.check_end()
                    running.is_unclear = True
                    with lease_lost(running):  # it commits in the same round trip, unless a block is open
                        running.finished = own.commit_after(running.leases.finish_call([running]))
                    if not running.finished:
                        running.end()
        elif job.store_id is None:
            run_as_system_task(task.name, call_handler, begun, running)
        else:
            # Between its transactions it must see no rows, even if an earlier job on this connection used SET directly.
            refuse_vanished_store(running, clears=True)
            with ActiveContext(running.connection, job.store_id, atomic=False, by_statement=task.is_async):
                call_handler(begun, running)
        if not finishes_inside:
            running.refuse_to_go_on()
        if not was_in_transaction:
            refuse_open_transaction(running.connection)
        return SUCCEEDED[finishes_inside]
    except BaseException as error:  # a handler may raise anything, even SystemExit; only the job fails
        return outcome_of(running, error)
    finally:
        if running.extensions:
            running.close_extensions()
        current_run.reset(token)


def begin(running: JobRun) -> dict[str, Any] | Outcome:
    """Return the handler's arguments, or how the run ends without it."""
    job, task = running.job, running.declaration
    if job.expired:
        return NotStarted(Expired("claimed after expires_at"))
    if task.timeouts is not None and (why := task.timeouts.expiry(running.waited_s)):
        return NotStarted(Expired(why))
    if not job.payload:
        try:
            job = running.job = running.leases.with_payload(job)
        except Error:  # an outage, which the end of this run waits out
            return Released()
        if not job.payload:
            return Lost()
    try:
        arguments = task.payload.decode(job.payload, job.store_id)
    except PayloadUnknown as error:
        return Left(error)
    except PayloadInvalid as error:
        return Errored(error, retryable=False)
    if task.at_most_once:
        try:
            if not running.leases.begin_once(job):
                return Lost()
        except Error:  # it may have been recorded, but the handler was not called
            return Released(begun=False)
    return arguments


def outcome_of(running: JobRun, error: BaseException) -> Outcome:
    """Return the outcome of a run whose handler raised this error, or that met it at its end."""
    break_cycles(error)
    match error:
        case LeaseLost():
            return Lost()
        case Snooze():
            if running.cancelled():
                return Cancelled(CANCELLED, CANCELLED)
            return (
                not_repeated("its handler raised Snooze") if running.declaration.at_most_once else Snoozed(error.delay)
            )
        case Discard():
            return Cancelled(DISCARDED, error.reason)
        case _:
            return ended_by(running, error)


def _released(running: JobRun, why: str) -> Released | Errored:
    """Return the outcome of a run that was cut short through no fault of its own."""
    return not_repeated(why) if running.declaration.at_most_once else Released()


def ended_by(running: JobRun, error: BaseException) -> Outcome:
    """Return the outcome of a run that raised this error; an interrupt from outside takes precedence."""
    rules = running.declaration.errors
    if running.interrupted_by is None:
        if _met_read_only_server(running, error):
            return _released(running, "the server accepted no writes")
        return rules.outcome(error)
    if running.interrupted_by is not TimedOut:
        if running.cancelled():
            return Cancelled(CANCELLED, CANCELLED)
        return _released(running, "the run was interrupted when its process stopped")
    took_s = time.monotonic() - running.started
    # Of a handler that caught it and went on, the error says so.
    went_on = f": {error}" if isinstance(error, TimedOut) and error.args else ""
    timed_out = TimedOut(f"timed out after {in_seconds(took_s)}{went_on}").with_traceback(error.__traceback__)
    timed_out.__cause__ = None if isinstance(error, TimedOut) else error
    return Errored(timed_out, delay=error.after) if isinstance(error, Retry) else rules.outcome(timed_out)


def _met_read_only_server(running: JobRun, error: BaseException) -> bool:
    """Return whether the run failed because its connection leads to a read-only server, as in a failover.

    A handler that begins READ ONLY transactions gets the same error by its own fault, so the server is asked.
    """
    if not failed_read_only(error) or running.connection.in_atomic_block:
        return False
    try:
        return refuses_writes(running.connection)
    except Error:
        return True  # it is gone in the meantime


@contextmanager
def lease_lost(running: JobRun) -> Generator[None]:
    """Raise LeaseLost for the error of a statement that found the lease lost."""
    try:
        yield
    except DatabaseError as error:
        if getattr(error.__cause__, "sqlstate", None) == LEASE_LOST:
            raise LeaseLost(f"job {running.id} is no longer leased to this run") from error
        raise


def call_handler(arguments: dict[str, Any], running: JobRun) -> None:
    """Call the handler. Raises TaskInvalid if it returned an awaitable, since nothing has run then."""
    task = running.declaration
    try:
        result = task.function(**arguments)
    except BaseException as error:
        end_copy(error)
        raise
    end_copy()
    if task.is_async:
        result = run_coroutine(result)
    elif result is not None and inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TaskInvalid(f"task {task.name!r} returned something to await; declare its handler with async def")
    if not running.finished:  # otherwise it returns its result too late
        running.returned(result)


@contextmanager
def store_transaction(running: JobRun, *, clears: bool = False) -> Generator[StoreJobContext | None]:
    """Open a transaction as the job's store. Raises Discard if the store's row is gone."""
    connection, store_id = running.connection, running.store_id
    assert store_id is not None  # noqa: S101 - decode refused a store task without one
    model = conf.store_model
    # Whether the store's row is visible.
    exists = "true" if model is None else f"{_store_look_up(model)}'{store_id}')"
    if StoreJobContext.fits(connection):
        with StoreJobContext(connection, store_id, exists, clears=clears, resets=running.resets_session) as own:
            # Nothing guarantees that the one statement set the store before it looked the store up, so a store that
            # seems to be gone is looked up again.
            if not own.answer:
                _refuse_unseen_store(running, exists)
            yield own
        return
    with tenant_context(store_id, using=connection.alias):
        _refuse_unseen_store(running, exists)
        yield None


def refuse_vanished_store(running: JobRun, *, clears: bool = False) -> None:
    """Raise Discard if the store's row is gone; ``clears`` a store that was set on the session by hand."""
    with store_transaction(running, clears=clears) as own:
        if own is not None:
            own.commit_after("SELECT")


def _refuse_unseen_store(running: JobRun, exists: str) -> None:
    if in_one_trip(running.connection, f"SELECT {exists}").get_value(0, 0) != b"t":
        raise Discard("the store no longer exists")


@cache
def _store_look_up(store_model: str) -> str:
    """Return the SQL that asks for a store, up to its id."""
    meta = apps.get_model(store_model)._meta
    table, key = compose.Identifier(meta.db_table), compose.Identifier(meta.pk.column)
    return compose.SQL("EXISTS (SELECT FROM {} WHERE {} = ").format(table, key).as_string(None)
