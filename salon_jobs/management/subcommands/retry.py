"""Queues ended jobs again: ``salon_jobs retry``."""

from __future__ import annotations

from salon_jobs.core.records import JobState
from salon_jobs.jobs.operate import retry_jobs
from salon_jobs.management.subcommands.on_jobs import OnJobs


class Retry(OnJobs):
    """Queues failed and cancelled jobs again by id, or all that failed of a task, a store or a queue."""

    name = "retry"
    help = "Queue failed and cancelled jobs again, due now; those whose attempts are spent get one more."
    states = (JobState.FAILED,)
    done = "queued again"
    not_done = "nothing was queued"
    operate = staticmethod(retry_jobs)
