"""Notices which of a process's jobs somebody wants cancelled, and sees to it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from salon_jobs.core import log_events
from salon_jobs.core.log_events import log_event
from salon_jobs.core.records import ClaimedJob, JobState
from salon_jobs.jobs import store
from salon_jobs.jobs.local_queue import LocalQueue
from salon_jobs.jobs.runner import Runner
from salon_jobs.jobs.statistics import ended_runs

LOOK_EVERY_S = 1.0


class Cancellations:
    """Looks every second, and at once when told, for requests to cancel jobs that are leased to this process.

    A job that waits in the local queue ends before it starts. A handler that runs is told, and struck after the grace.
    """

    def __init__(self, process_id: int, jobs: LocalQueue, runners: Sequence[Runner]) -> None:
        self._process_id = process_id
        self._jobs = jobs
        self._runners = runners
        self._looked = float("-inf")
        self._told = False

    def tell(self) -> None:
        """Look at the next chance; safe from any thread."""
        self._told = True

    def look(self) -> None:
        """Look, when it is time to. Raises database errors."""
        now = time.monotonic()
        if not self._told and now - self._looked < LOOK_EVERY_S:
            return
        self._told, self._looked = False, now
        if not self._jobs.known():
            return
        requested = store.cancel_requests(self._process_id)
        if not requested:
            return
        for job_id, lease in requested:
            for runner in self._runners:
                runner.ask_to_end(job_id, lease)
        self._end(self._jobs.withdraw(requested))

    def _end(self, jobs: Sequence[ClaimedJob]) -> None:
        """End jobs that had not started: a requested one that is given back is cancelled."""
        ends = store.requeue([(job.id, job.lease) for job in jobs], self._process_id)
        for job in jobs:
            end = ends.get(job.id)
            # A rescuer may have taken it from us, or an operator's retry taken the request back.
            if end is None or end.state is not JobState.CANCELLED:
                continue
            ended_runs.count_untimed(log_events.JOB_CANCELLED, job.task, job.queue)
            log_event(
                logging.INFO if end.reason == "cancelled" else logging.WARNING, log_events.JOB_CANCELLED,
                task_name=job.task, job_id=job.id, store_id=job.store_id, attempt=job.attempt, queue=job.queue,
                reason=end.reason,
            )  # fmt: skip
