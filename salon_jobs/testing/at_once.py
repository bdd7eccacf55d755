"""Jobs that run before the enqueue returns, for tests that expect it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from salon_jobs.jobs import enqueue
from salon_jobs.testing.drain import DrainedJob, drain_jobs, is_draining


@contextmanager
def run_at_once(
    *, raise_errors: bool = True, limit: int = 1000, using: str | None = None
) -> Generator[list[DrainedJob]]:
    """Run due jobs, and those they enqueue, before each enqueue inside the block returns; yield the list of all runs.

    On the caller's connection and in its transaction, committed or not, but outside its store, language and time zone,
    as in a worker. Jobs that a job enqueues run after it. The arguments are those of ``drain_jobs``, whose
    AssertionError the enqueue raises. Applies to the whole process. Also a decorator, but not of coroutines.
    """
    runs: list[DrainedJob] = []

    def drain() -> None:
        if not is_draining():  # else a job enqueued this one, which the drain runs next
            runs.extend(drain_jobs(raise_errors=raise_errors, limit=limit, using=using))

    enqueue.at_once.append(drain)
    try:
        yield runs
    finally:
        enqueue.at_once.remove(drain)
