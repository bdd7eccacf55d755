"""Holds the jobs a process has claimed but not ended, between the claimer and the runner threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from salon_jobs.core.records import ClaimedJob

_PREFETCH_S = 0.2
_MOST_PREFETCHED = 500
OVERDUE_S = 1.0


class LocalQueue:
    """Keeps waiting and running jobs of this process; bounded by time (about 200 ms of measured work) and count."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._changed = threading.Condition()
        self._waiting: deque[tuple[ClaimedJob, float]] = deque()
        self._running: dict[tuple[int, int], float] = {}
        self._leases: dict[int, int] = {}
        self._closed = False
        self._mean_s: float | None = None

    def room(self) -> int:
        """Return how many jobs to claim now: zero while more than half the prefetch still waits."""
        with self._changed:
            return self._room()

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait until there is room, the queue is closed, or the time is over; tells whether there is room."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._room() > 0, timeout_s)
            return self._room() > 0

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing waits and nothing runs; False when the time is over first."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._leases, timeout_s)

    def put(self, jobs: Sequence[ClaimedJob]) -> None:
        """Add claimed jobs in claim order."""
        with self._changed:
            now = time.monotonic()
            for job in jobs:
                self._waiting.append((job, now))
                self._leases[job.id] = job.lease
            self._changed.notify_all()

    def take(self) -> ClaimedJob | None:
        """Wait for the next job; None once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            job, _ = self._waiting.popleft()
            self._running[job.id, job.lease] = time.monotonic()
            return job

    def done(self, job: ClaimedJob) -> None:
        """Forget a job that ended, and learn from how long it took."""
        with self._changed:
            # An id can be here anew: queued again by its end and claimed again before we came to say "done".
            took = time.monotonic() - self._running.pop((job.id, job.lease))
            if self._leases.get(job.id) == job.lease:
                del self._leases[job.id]
            self._mean_s = took if self._mean_s is None else 0.9 * self._mean_s + 0.1 * took
            self._changed.notify_all()

    def close(self) -> list[tuple[int, int]]:
        """Take no more jobs out; returns (id, lease) of those that had not started. Idempotent."""
        with self._changed:
            self._closed = True
            unstarted = self._hand_back(float("inf"))
            self._changed.notify_all()
            return unstarted

    def overdue(self) -> list[tuple[int, int]]:
        """Take out the jobs that waited here for more than a second behind longer ones; returns their (id, lease).

        They were prefetched on the measure of shorter jobs; another process may be idle.
        """
        with self._changed:
            return self._hand_back(time.monotonic() - OVERDUE_S)

    def has_waiting(self) -> bool:
        """Tell whether claimed jobs wait for a thread."""
        with self._changed:
            return bool(self._waiting)

    def known(self) -> list[int]:
        """Return the ids of all jobs that wait or run here."""
        with self._changed:
            return list(self._leases)

    def running_count(self) -> int:
        """Return how many jobs run now."""
        with self._changed:
            return len(self._running)

    def _hand_back(self, waiting_since: float) -> list[tuple[int, int]]:
        handed: list[tuple[int, int]] = []
        while self._waiting and self._waiting[0][1] < waiting_since:
            job, _ = self._waiting.popleft()
            self._leases.pop(job.id, None)
            handed.append((job.id, job.lease))
        return handed

    def _room(self) -> int:
        if self._closed:
            return 0
        prefetch = 0
        if self._mean_s is not None:
            # Threads inside a long job are not counted on: what waits behind them is better off elsewhere.
            slow_since = time.monotonic() - OVERDUE_S
            quick = self._concurrency - sum(since < slow_since for since in self._running.values())
            prefetch = min(_MOST_PREFETCHED, int(_PREFETCH_S / max(self._mean_s, 1e-6) * quick))
        idle = self._concurrency - len(self._running) - len(self._waiting)
        if idle <= 0 and len(self._waiting) > prefetch // 2:
            return 0
        return max(0, idle + prefetch)
