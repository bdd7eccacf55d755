"""Execution of a run on the thread that has claimed it."""

from __future__ import annotations

import inspect
from typing import Any, cast

from salon_jobs.core.errors import TaskInvalid
from salon_jobs.core.outcomes import Outcome
from salon_jobs.jobs.run import JobRun
from salon_jobs.worker.async_handlers import run_coroutine
from salon_jobs.worker.forks import end_copy
from salon_jobs.worker.lifecycle import lifecycle


def execute(run: JobRun) -> Outcome:
    """Drive a run on this thread; return how it ended.

    Raises only an interrupt, which can arrive between any two bytecodes.
    """
    life = lifecycle(run)
    try:
        step = next(life)
        while True:
            try:
                came = _call_handler(step, run) if isinstance(step, dict) else step()
            except BaseException as error:  # it belongs to the run
                step = life.throw(error)
            else:
                step = life.send(came)
    except StopIteration as ended:
        # Not by a name here: the frame of a handler that raised leads to this one, and the outcome to that frame.
        return cast("Outcome", ended.value)
    except BaseException:  # an interrupt between two steps
        life.close()
        raise


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
