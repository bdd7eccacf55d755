"""Interruption of runs at their deadline or after a cancellation request."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from salon_jobs.core import events
from salon_jobs.core.errors import Interrupted, TimedOut
from salon_jobs.core.events import log_event
from salon_jobs.jobs.run import JobRun
from salon_jobs.process.loop import Loop
from salon_jobs.worker.ends import identify
from salon_jobs.worker.in_flight import NEVER, InFlightTable

# How long a cancel request may take to reach the server.
CANCEL_S = 2.0
# How long a cancelled handler may take to end by itself, and a run that timed out before its process is killed.
CANCEL_GRACE_S = 5.0
_KILL_GRACE_S = 10.0
# Retry after this when an interrupt met no handler (the run is just about to begin or to end).
_AGAIN_S = 0.05

Interrupt = Callable[[JobRun, type[Interrupted]], bool]


@dataclass(slots=True)
class _Watched:
    running: JobRun
    interrupt: Interrupt
    not_before: float = float("-inf")

    def due(self) -> float:
        """Return when to check the run; infinity after its interruption."""
        interrupt_due = self.running.interrupt_due
        return float("inf") if interrupt_due is None else max(interrupt_due[0], self.not_before)


class DeadlineWatcher(Loop):
    """Loop that interrupts runs at their deadline. ``on_timeout`` is called for every run that timed out."""

    def __init__(self, on_timeout: Callable[[], None] = lambda: None, *, using: str) -> None:
        super().__init__("deadlines", using=using)
        self._on_timeout = on_timeout
        self._lock = threading.Lock()
        self._watched: dict[tuple[int, int], _Watched] = {}
        self._nearest = float("inf")

    def watch(self, running: JobRun, interrupt: Interrupt) -> None:
        """Interrupt this run when it is due, until ``forget``; call this again when its deadline becomes earlier."""
        with self._lock:
            watched = self._watched[running.id, running.job.lease] = _Watched(running, interrupt)
            is_nearest = watched.due() < self._nearest
        if is_nearest:
            self.wake()

    def begin(self, running: JobRun, interrupt: Interrupt, in_flight: InFlightTable, slot: int) -> None:
        """Publish that a run begins, and watch its timeout; its process is killed after the timeout and the grace."""
        timeouts, kill_at = running.declaration.timeouts, NEVER
        if timeouts is not None and (run_s := timeouts.run_s(running.waited_s)) is not None:
            running.times_out_at = running.started + run_s
            running.on_extended = lambda at: in_flight.move(slot, at + _KILL_GRACE_S)
            kill_at = running.times_out_at + _KILL_GRACE_S
            self.watch(running, interrupt)
        in_flight.show(slot, running.id, running.job.lease, kill_at=kill_at)

    def forget(self, running: JobRun) -> None:
        with self._lock:
            self._watched.pop((running.id, running.job.lease), None)

    def poll(self) -> float:
        now = time.monotonic()
        with self._lock:
            due = [watched for watched in self._watched.values() if watched.due() <= now]
            for watched in due:
                watched.not_before = now + _AGAIN_S
            self._nearest = min((watched.due() for watched in self._watched.values()), default=float("inf"))
        for watched in due:
            # Cancelling a query talks to the database, which may not answer: use a thread for each, so that runs do not
            # wait for one another.
            threading.Thread(target=self._interrupt, args=(watched,), name="salon-jobs-interrupt", daemon=True).start()
        return self._nearest - now

    def _interrupt(self, watched: _Watched) -> None:
        running, interrupt_due = watched.running, watched.running.interrupt_due
        # It may have been extended in the meantime.
        if interrupt_due is None or interrupt_due[0] > time.monotonic():
            return
        at, kind = interrupt_due
        if watched.interrupt(running, kind) and kind is TimedOut:
            limit_s = round(at - running.started, 3)
            log_event(logging.WARNING, events.JOB_TIMED_OUT, **identify(running.job), timeout_s=limit_s, code=kind.code)
            self._on_timeout()
