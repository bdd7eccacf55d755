"""Cancellation requests for jobs that this process has claimed."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Protocol

from salon_jobs.jobs.leases import Leases
from salon_jobs.worker.buffer import JobBuffer
from salon_jobs.worker.ends import report_given_back


class RunsJobs(Protocol):
    """Thread or coroutine runner, which runs jobs."""

    def cancel(self, job_id: int, lease: int) -> None:
        """Show the cancellation to the handler of this job if it runs here, and interrupt it after the grace."""


POLL_EVERY_S = 1.0


class Cancellations:
    """Poller for cancellation requests for this process's jobs: every second, and at once when notified.

    A job waiting in the buffer ends before it starts. A running handler can see the request, and is interrupted after
    the grace.
    """

    def __init__(self, leases: Leases, buffer: JobBuffer, runners: Sequence[RunsJobs]) -> None:
        self._leases = leases
        self._buffer = buffer
        self._runners = runners
        self._poll_at = float("-inf")

    def notify(self) -> None:
        """Poll at the next opportunity. Thread-safe."""
        self._poll_at = float("-inf")

    def poll(self) -> None:
        """Poll if it is due. Raises database errors."""
        now = time.monotonic()
        if now < self._poll_at:
            return
        self._poll_at = now + POLL_EVERY_S
        requested = self._leases.cancel_requests() if self._buffer.leases() else None
        if not requested:
            return
        for job_id, lease in requested:
            for runner in self._runners:
                runner.cancel(job_id, lease)
        # Giving back an unstarted job with a cancellation request cancels it.
        jobs = self._buffer.withdraw(requested)
        given_back = self._leases.give_back([(job.id, job.lease) for job in jobs])
        report_given_back(given_back, "cancellation withdrawn", level=logging.INFO)
