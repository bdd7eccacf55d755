"""Interruption of runs whose time is up or whose cancellation was requested."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from salon_jobs.core import events
from salon_jobs.core.errors import Interrupted, TimedOut
from salon_jobs.core.events import log_event
from salon_jobs.core.records import ClaimedJob, JobState
from salon_jobs.jobs import queries
from salon_jobs.jobs.current import RunningJob
from salon_jobs.jobs.statistics import ended_runs
from salon_jobs.worker.buffer import JobBuffer
from salon_jobs.worker.executor import identify

if TYPE_CHECKING:
    from salon_jobs.worker.runner import Runner


# Retry after this when an interrupt met no handler (the run is just about to begin or to end).
_AGAIN_S = 0.05

Interrupt = Callable[[RunningJob, type[Interrupted]], bool]


@dataclass(slots=True)
class _Watched:
    running: RunningJob
    interrupt: Interrupt
    not_before: float = float("-inf")

    def due(self) -> float:
        """Return when to check the run; never, once it was interrupted."""
        when = self.running.interrupt_due
        return float("inf") if when is None else max(when[0], self.not_before)


class DeadlineWatcher:
    """Thread that interrupts runs at their deadline. ``on_timeout`` is called for every run that timed out."""

    def __init__(self, on_timeout: Callable[[], None] = lambda: None) -> None:
        self._on_timeout = on_timeout
        self._changed = threading.Condition()
        self._watched: dict[tuple[int, int], _Watched] = {}
        self._nearest = float("inf")
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="salon-jobs-timekeeper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it to end. Idempotent."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def watch(self, running: RunningJob, interrupt: Interrupt) -> None:
        """Interrupt this run when it is due, until ``forget``; call this again when its deadline moves closer."""
        with self._changed:
            watched = self._watched[running.id, running.claimed.lease] = _Watched(running, interrupt)
            if watched.due() < self._nearest:
                self._changed.notify()

    def forget(self, running: RunningJob) -> None:
        """Stop watching a run."""
        with self._changed:
            self._watched.pop((running.id, running.claimed.lease), None)

    def _run(self) -> None:
        while (due := self._wait()) is not None:
            for watched in due:
                # Cancelling a query talks to the database, which may not answer: one thread each, so that no run waits
                # for another.
                threading.Thread(target=self._interrupt, args=(watched,), name="salon-jobs-strike", daemon=True).start()

    def _wait(self) -> list[_Watched] | None:
        """Wait until some runs are due and return them; None once stopped."""
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                due = [watched for watched in self._watched.values() if watched.due() <= now]
                for watched in due:
                    watched.not_before = now + _AGAIN_S
                if due:
                    return due
                self._nearest = min((watched.due() for watched in self._watched.values()), default=float("inf"))
                self._changed.wait(min(self._nearest - now, threading.TIMEOUT_MAX))
            return None

    def _interrupt(self, watched: _Watched) -> None:
        running, when = watched.running, watched.running.interrupt_due
        # It may have been extended in the meantime.
        if when is None or when[0] > time.monotonic() or not watched.interrupt(running, when[1]):
            return
        if when[1] is TimedOut:
            limit_s = round(when[0] - running.started, 3)
            log_event(logging.WARNING, events.JOB_TIMED_OUT, **identify(running), timeout_s=limit_s, code=TimedOut.code)
            self._on_timeout()


LOOK_EVERY_S = 1.0


class Cancellations:
    """Poller for cancellation requests for jobs leased to this process: every second, and at once when notified.

    A job waiting in the local queue ends before it starts. A running handler can see the request, and is interrupted
    after the grace.
    """

    def __init__(self, process_id: int, jobs: JobBuffer, runners: Sequence[Runner]) -> None:
        self._process_id = process_id
        self._jobs = jobs
        self._runners = runners
        self._looked = float("-inf")
        self._told = False

    def tell(self) -> None:
        """Poll at the next opportunity. Thread-safe."""
        self._told = True

    def look(self) -> None:
        """Poll if it is time to. Raises database errors."""
        now = time.monotonic()
        if not self._told and now - self._looked < LOOK_EVERY_S:
            return
        self._told, self._looked = False, now
        if not self._jobs.known():
            return
        requested = queries.cancel_requests(self._process_id)
        if not requested:
            return
        for job_id, lease in requested:
            for runner in self._runners:
                runner.ask_to_end(job_id, lease)
        self._end(self._jobs.withdraw(requested))

    def _end(self, jobs: Sequence[ClaimedJob]) -> None:
        """End jobs that had not started: giving back a job whose cancellation was requested cancels it."""
        ends = queries.requeue([(job.id, job.lease) for job in jobs], self._process_id)
        for job in jobs:
            end = ends.get(job.id)
            # A rescue may have taken it from us, or an operator's retry withdrawn the request.
            if end is None or end.state is not JobState.CANCELLED:
                continue
            ended_runs.count_untimed(events.JOB_CANCELLED, job.task, job.queue)
            log_event(
                logging.INFO if end.reason == "cancelled" else logging.WARNING,
                events.JOB_CANCELLED,
                task_name=job.task,
                job_id=job.id,
                store_id=job.store_id,
                attempt=job.attempt,
                queue=job.queue,
                reason=end.reason,
            )
