"""Execution of a run on the thread that has claimed it."""

from __future__ import annotations

import inspect
from typing import Any

from salon_jobs.core.errors import TaskInvalid
from salon_jobs.core.outcomes import Outcome
from salon_jobs.jobs.run import JobRun, refuse_open_transaction
from salon_jobs.worker.async_handlers import run_coroutine
from salon_jobs.worker.forks import end_copy
from salon_jobs.worker.lifecycle import SUCCEEDED, begin, enter, is_atomic, keep_result, leave, outcome_of, start
from salon_jobs.worker.store_transaction import store_transaction


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
            with store_transaction(run) as own:
                keep_result(run, _call_handler(arguments, run))
                own.finish()
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


def _call_handler(arguments: dict[str, Any], run: JobRun) -> Any:
    """Call the handler. Raises TaskInvalid if it returned an awaitable, since nothing has run then."""
    task = run.declaration
    try:
        result = task.function(**arguments)
    except BaseException as error:
        end_copy(error)
        raise
    end_copy()
    if task.is_async:
        return run_coroutine(result)
    if result is not None and inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TaskInvalid(f"task {task.name!r} returned something to await; declare its handler with async def")
    return result
