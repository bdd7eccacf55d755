"""``current_job()``: what a handler can find out and do about the job it runs."""

from __future__ import annotations

from salon_jobs.core.errors import NoCurrentJob
from salon_jobs.jobs.run import JobRun, current_run


def current_job() -> JobRun:
    """Return the job this handler is running. Raises NoCurrentJob outside a handler, and in one that takes chunks."""
    if (current := current_run.get()) is None:
        raise NoCurrentJob("current_job() works only inside a task's handler")
    if current.declaration.chunk is not None:
        raise NoCurrentJob(f"task {current.task!r} runs several jobs at once, so it has no current job")
    return current
