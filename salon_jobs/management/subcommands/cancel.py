"""Cancels jobs: ``salon_jobs cancel``."""

from __future__ import annotations

from salon_jobs.core.records import JobState
from salon_jobs.jobs.operate import cancel_jobs
from salon_jobs.management.subcommands.on_jobs import OnJobs


class Cancel(OnJobs):
    """Cancels jobs by id, or all that wait or run of a task, a store or a queue."""

    name = "cancel"
    help = "Cancel jobs: queued and failed ones at once; the process of a running one is asked to end it."
    states = (JobState.QUEUED, JobState.RUNNING)
    done = "cancelled or asked to end"
    not_done = "nothing was cancelled"
    operate = staticmethod(cancel_jobs)
