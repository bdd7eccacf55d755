"""Strikes the runs whose time is over, from one thread a process; it sleeps while no run has a deadline."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from salon_jobs.core import log_events
from salon_jobs.core.errors import Interrupted, TimedOut
from salon_jobs.core.log_events import log_event
from salon_jobs.jobs.current import RunningJob
from salon_jobs.jobs.executor import identify

# A strike that met no handler (the run is just about to begin, or to end) is tried again after this.
_AGAIN_S = 0.05

Strike = Callable[[RunningJob, type[Interrupted]], bool]


@dataclass(slots=True)
class _Watched:
    running: RunningJob
    strike: Strike
    not_before: float = float("-inf")

    def due(self) -> float:
        """Return when to look at it; never, once it was struck."""
        when = self.running.strike_due
        return float("inf") if when is None else max(when[0], self.not_before)


class Timekeeper:
    """Watches the runs that have a deadline. ``on_timeout`` is told of every service timeout that struck."""

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
        """End the thread; returns when it ended. Idempotent."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def watch(self, running: RunningJob, strike: Strike) -> None:
        """Strike this run when it is due, until ``forget``; call it again when that has come nearer."""
        with self._changed:
            watched = self._watched[running.id, running.claimed.lease] = _Watched(running, strike)
            if watched.due() < self._nearest:
                self._changed.notify()

    def forget(self, running: RunningJob) -> None:
        """Watch a run no more."""
        with self._changed:
            self._watched.pop((running.id, running.claimed.lease), None)

    def _run(self) -> None:
        while (due := self._wait()) is not None:
            for watched in due:
                # Cancelling a query talks to the database, which may not answer: no run waits for another's.
                threading.Thread(target=self._strike, args=(watched,), name="salon-jobs-strike", daemon=True).start()

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

    def _strike(self, watched: _Watched) -> None:
        running, when = watched.running, watched.running.strike_due
        # It can have been extended meanwhile.
        if when is None or when[0] > time.monotonic() or not watched.strike(running, when[1]):
            return
        if when[1] is TimedOut:
            limit_s = round(when[0] - running.started, 3)
            log_event(
                logging.WARNING, log_events.JOB_TIMED_OUT, **identify(running), timeout_s=limit_s, code=TimedOut.code
            )
            self._on_timeout()
