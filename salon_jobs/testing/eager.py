"""Jobs that run in the process that enqueues them, for development without a worker, by ``EAGER``."""

from __future__ import annotations

import threading

from django.db import connections

from salon_jobs.conf import settings as conf
from salon_jobs.core.events import logging_errors
from salon_jobs.testing.drain import drain_jobs, is_draining


def run_due_jobs(*, using: str) -> None:
    """Run due jobs, and those they enqueue, and wait for their end; failures are logged and retried later.

    After ``EAGER_LIMIT`` runs the rest is left to the next commit, and the next task is logged: a job that enqueues
    itself would hold the caller forever.

    They run on their own thread and connection, so neither the caller's store nor its settings reach them.
    """
    if is_draining():
        return  # a job enqueued this one, which its thread runs next
    thread = threading.Thread(target=_drain, args=(using,), name="salon-jobs-eager")
    thread.start()
    thread.join()


def _drain(using: str) -> None:
    try:
        with logging_errors("the jobs that are due did not all run; the next commit, or a worker, runs them"):
            drain_jobs(raise_errors=False, limit=conf.eager_limit, using=using)
    finally:
        connections.close_all()
