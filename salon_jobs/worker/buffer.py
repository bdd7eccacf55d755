"""Jobs that a process has claimed and not yet ended, shared by the claimer, the runner threads and the finisher."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from itertools import repeat
from operator import itemgetter

from salon_jobs.core.records import ClaimedJob

_PREFETCH_S = 0.2
# About 40 ms of the smallest jobs, as long as a claim of so many takes. As many again run during the claim: with one
# batch alone, the threads wait for each claim's answer.
_MOST_AT_ONCE = 2000
_MOST_PREFETCHED = 2 * _MOST_AT_ONCE
# A batch of successes that waits for the disk must not hold up the next claim.
_MOST_UNENDED = 8000
# The next claim begins once this many jobs, or a quarter of the prefetch, are gone: almost at once with the smallest
# jobs, since a claim takes longer than they do.
_LEAST_REFILL = 125
OVERDUE_S = 1.0
_ID_AND_LEASE = itemgetter(ClaimedJob._fields.index("id"), ClaimedJob._fields.index("lease"))


class JobBuffer:
    """Jobs of this process until their end is written: waiting, then running, then ended.

    Bounded by time (about 200 ms of measured work) and by count. A thread takes the next job without the lock, which
    costs as much as a small job: it pops the deque, so that no two threads get the same job. Other callers that remove
    waiting jobs hold the lock, and pop them too.
    """

    def __init__(self, concurrency: int, on_ended: Callable[[], None] = lambda: None) -> None:
        """Create the buffer; ``on_ended`` is called, by the reporting thread, when a job ran or its end is written."""
        self._concurrency = concurrency
        self._on_ended = on_ended
        self._lock = threading.Lock()
        self._emptied = threading.Condition(self._lock)
        # Threads that wait for a job, and the lock of each. The last one is woken first: its code is still in the
        # processor's cache and its connection open; the others may not be needed.
        self._sleeping: list[int] = []
        self._alarms = [threading.Lock() for _ in range(concurrency)]
        for alarm in self._alarms:
            alarm.acquire()
        # Each with the instant at which it was put.
        self._waiting: deque[tuple[ClaimedJob, float]] = deque()
        # When each thread took its current job; None while it runs none.
        self._since: list[float | None] = [None] * concurrency
        self._leases: set[tuple[int, int]] = set()
        self._closed = False
        self._mean_s: float | None = None
        self._refill_at = 0
        self._claimer_waits = False

    def room(self) -> int:
        """Return how many jobs to claim now: zero while most of the prefetch is still waiting."""
        with self._lock:
            return self._room()

    @property
    def is_full(self) -> bool:
        """Whether no more jobs should begin: too many ends are unwritten, or the buffer is closed. Approximate."""
        return self._closed or len(self._leases) >= _MOST_UNENDED

    @property
    def is_low(self) -> bool:
        """Whether so few jobs wait that there may be room for more. Approximate."""
        return len(self._waiting) <= self._refill_at

    def more_than(self, count: int) -> bool:
        """Return whether more than ``count`` jobs are held. Approximate."""
        return len(self._leases) > count

    def wait_for_room(self, timeout_s: float) -> None:
        """Wait until there is room, the buffer is closed, or the time is up."""
        with self._emptied:
            # In this order: a thread whose job ends makes room before it looks at the flag.
            self._claimer_waits = True
            self._emptied.wait_for(lambda: self._closed or self._room() > 0, timeout_s)
            self._claimer_waits = False

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Wait until no job of the process waits, runs, or has an unwritten end; return False if time is up first."""
        with self._emptied:
            return self._emptied.wait_for(lambda: not self._leases, timeout_s)

    def put(self, jobs: Sequence[ClaimedJob]) -> bool:
        """Add claimed jobs in claim order; return False, having done nothing, once the buffer is closed."""
        now = time.monotonic()
        with self._lock:
            if self._closed:
                return False
            self._leases.update(map(_ID_AND_LEASE, jobs))
            self._waiting.extend(zip(jobs, repeat(now)))
            self._wake(len(jobs))
            return True

    def add_running(self, jobs: Iterable[ClaimedJob]) -> None:
        """Record claimed jobs that run without waiting here: coroutines, and jobs in the chunk of another job."""
        with self._lock:
            self._leases.update(map(_ID_AND_LEASE, jobs))

    def take(self, thread: int) -> ClaimedJob | None:
        """Return the next job for the thread with this number, waiting for one; None once the buffer is closed."""
        while not self._closed:
            try:
                job, _ = self._waiting.popleft()
            except IndexError:
                self._sleep(thread)
            else:
                self._since[thread] = time.monotonic()
                return job
        return None

    def take_matching(self, matches: Callable[[ClaimedJob], bool], most: int) -> list[ClaimedJob]:
        """Take up to ``most`` waiting jobs, from anywhere in the queue, to run in one chunk."""
        with self._emptied:
            taken = self._remove(matches, most)
            if self._claimer_waits and len(self._waiting) <= self._refill_at:
                self._emptied.notify_all()
        return taken

    def ran(self, thread: int, *, jobs: int = 1) -> None:
        """Free a thread whose job ran, and record the duration; ``jobs`` is the number of jobs in the chunk.

        Their end is still to be written.
        """
        since, self._since[thread] = self._since[thread], None
        if since is not None:
            took_s, kept = (time.monotonic() - since) / jobs, 0.9**jobs
            # Another thread's update at the same moment may be lost; a mean can bear that.
            self._mean_s = took_s if self._mean_s is None else kept * self._mean_s + (1 - kept) * took_s
        if self._claimer_waits and len(self._waiting) <= self._refill_at:
            with self._emptied:
                self._emptied.notify_all()
        self._on_ended()

    def forget(self, jobs: Iterable[ClaimedJob]) -> None:
        """Remove jobs whose end is written."""
        with self._emptied:
            # The same job may be back under another lease: requeued by its end, and claimed again before this call.
            self._end_leases(jobs)
        self._on_ended()

    def close(self) -> list[tuple[int, int]]:
        """Hand out no more jobs; return (id, lease) of those that had not started. Idempotent."""
        with self._lock:
            self._closed = True
            unstarted = self._remove(lambda _: True)
            self._end_leases(unstarted)
            self._wake(self._concurrency)
            self._emptied.notify_all()
        return list(map(_ID_AND_LEASE, unstarted))

    def overdue(self) -> list[tuple[int, int]]:
        """Remove the jobs that have waited here for over a second behind longer ones; return their (id, lease).

        They were prefetched because shorter jobs were expected; another process may be idle.
        """
        since = time.monotonic() - OVERDUE_S
        overdue: list[ClaimedJob] = []
        with self._lock:
            with suppress(IndexError):  # a thread took the last one
                while self._waiting[0][1] < since:
                    overdue.append(self._waiting.popleft()[0])
            self._end_leases(overdue)
        return list(map(_ID_AND_LEASE, overdue))

    def withdraw(self, leases: Set[tuple[int, int]]) -> list[ClaimedJob]:
        """Remove and return the waiting jobs with these (id, lease); the caller must end them."""
        with self._emptied:
            withdrawn = self._remove(lambda job: (job.id, job.lease) in leases)
            self._end_leases(withdrawn)
        return withdrawn

    @property
    def is_idle(self) -> bool:
        """Whether no job waits here or runs on a thread. Approximate: read without the lock."""
        return not self._waiting and self._since.count(None) == self._concurrency

    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def leases(self) -> list[tuple[int, int]]:
        """Return (id, lease) of all jobs whose end is not written yet."""
        with self._lock:
            return list(self._leases)

    def running_count(self) -> int:
        return self._concurrency - self._since.count(None)

    def _sleep(self, thread: int) -> None:
        """Wait for a job, or for the end."""
        with self._lock:
            if self._waiting or self._closed:
                return
            self._sleeping.append(thread)
        self._alarms[thread].acquire()

    def _wake(self, most: int) -> None:
        """Wake up to ``most`` threads. The caller holds the lock."""
        for _ in range(min(most, len(self._sleeping))):
            self._alarms[self._sleeping.pop()].release()

    def _remove(self, is_wanted: Callable[[ClaimedJob], bool], most: int | None = None) -> list[ClaimedJob]:
        """Remove waiting jobs, with the lock held; the others keep their order, and threads that look now wait."""
        removed: list[ClaimedJob] = []
        others: deque[tuple[ClaimedJob, float]] = deque()
        with suppress(IndexError):  # the deque is empty
            while len(removed) != most:
                entry = self._waiting.popleft()
                if is_wanted(entry[0]):
                    removed.append(entry[0])
                else:
                    others.append(entry)
        self._waiting.extendleft(reversed(others))
        return removed

    def _end_leases(self, jobs: Iterable[ClaimedJob]) -> None:
        self._leases.difference_update(map(_ID_AND_LEASE, jobs))
        if not self._leases:
            self._emptied.notify_all()

    def _room(self) -> int:
        if self._closed or len(self._leases) >= _MOST_UNENDED:
            return 0
        prefetch, waiting = 0, len(self._waiting)
        if self._mean_s is not None:
            # Do not count threads inside a long job: jobs waiting behind them are better off elsewhere.
            slow_since = time.monotonic() - OVERDUE_S
            quick = sum(since is None or since >= slow_since for since in self._since)
            prefetch = min(_MOST_PREFETCHED, int(_PREFETCH_S / max(self._mean_s, 1e-6) * quick))
        self._refill_at = prefetch - min(-(-prefetch // 4), _LEAST_REFILL)
        idle = self._since.count(None) - waiting
        if idle <= 0 and waiting > self._refill_at:
            return 0
        return min(max(0, idle + prefetch), _MOST_AT_ONCE)
