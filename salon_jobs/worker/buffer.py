"""Jobs that a process has claimed but not ended, shared by the claimer, the runner threads and the finisher."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from itertools import repeat
from operator import itemgetter

from salon_jobs.core.records import ClaimedJob

_PREFETCH_S = 0.2
# About 40 ms of the smallest jobs. With fewer, the threads wait for each claim's answer (500: 0.65 of the rate).
_MOST_PREFETCHED = 2000
# A batch of successes that waits for the disk must not hold up the next claim.
_MOST_UNENDED = 8000
# The next claim begins once this many jobs, or a quarter of the prefetch, are gone: almost at once with the smallest
# jobs, since a claim takes longer than they do.
_LEAST_REFILL = 125
OVERDUE_S = 1.0
# A thread takes at most this much measured work at once, and at most this many jobs. A round of the lock costs as much
# as the smallest job.
_AT_ONCE_S = 0.001
_MOST_AT_ONCE = 32
# When a run lasts longer than this, the jobs that its thread has taken behind it go back to the others.
_LONG_S = 0.002
# Shorter jobs wait for nothing, so one thread runs them as fast as several, which would take turns of 5 ms at the
# interpreter's lock and keep the claimer and the finisher waiting for it.
_TINY_S = 0.00002
_ID_AND_LEASE = itemgetter(ClaimedJob._fields.index("id"), ClaimedJob._fields.index("lease"))


class Handful:
    """Jobs that one thread has taken at once, the first of which it runs. Other threads touch only the deque."""

    __slots__ = ("began", "ended", "since", "started", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[tuple[ClaimedJob, float]] = deque()
        self.began = self.since = 0.0
        self.started = self.ended = 0


class JobBuffer:
    """Jobs of this process until their end is written: first waiting, then running, then ran.

    Bounded by time (about 200 ms of measured work) and by count. One lock; each kind of waiter has its own condition
    and is woken only when there is something to do: with jobs of microseconds, waking costs more than the work. For the
    same reason a thread takes several of the smallest jobs at once; those it has not begun still count as waiting.
    """

    def __init__(self, concurrency: int, on_ended: Callable[[], None] = lambda: None) -> None:
        """Create the buffer; ``on_ended`` is called, by the reporting thread, when a job ran or its end is written."""
        self._concurrency = concurrency
        self._on_ended = on_ended
        lock = threading.Lock()
        self._filled = threading.Condition(lock)
        self._emptied = threading.Condition(lock)
        self._waiting: deque[tuple[ClaimedJob, float]] = deque()
        # In the order in which the threads took them.
        self._running: dict[Handful, None] = {}
        self._leases: set[tuple[int, int]] = set()
        self._closed = False
        self._mean_s: float | None = None
        self._refill_at = 0
        self._idle_threads = 0
        self._is_watched = False
        self._claimer_waits = False
        self._recall_at = float("-inf")

    def room(self) -> int:
        """Return how many jobs to claim now: zero while most of the prefetch is still waiting."""
        with self._filled:
            return self._room()

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait until there is room, the buffer is closed, or the time is up; return whether there is room."""
        with self._emptied:
            self._claimer_waits = True
            self._emptied.wait_for(lambda: self._closed or self._room() > 0, timeout_s)
            self._claimer_waits = False
            return self._room() > 0

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no job waits, runs, or has an end to be written; return False if the time is up first."""
        with self._emptied:
            return self._emptied.wait_for(lambda: not self._leases, timeout_s)

    def put(self, jobs: Sequence[ClaimedJob]) -> bool:
        """Add claimed jobs in claim order; return False, having done nothing, once the buffer is closed."""
        now = time.monotonic()
        with self._filled:
            if self._closed:
                return False
            self._leases.update(map(_ID_AND_LEASE, jobs))
            self._waiting.extend(zip(jobs, repeat(now)))
            if self._idle_threads:
                self._filled.notify(1 if self._is_tiny() else len(jobs))
            return True

    def lease(self, jobs: Iterable[ClaimedJob]) -> None:
        """Record claimed jobs that run at once, in the chunk of another."""
        with self._filled:
            self._leases.update(map(_ID_AND_LEASE, jobs))

    def take_alike(self, first: ClaimedJob, most: int, fits: Callable[[ClaimedJob], bool]) -> list[ClaimedJob]:
        """Take up to ``most`` waiting jobs of the store and claim group of ``first``, to run in its chunk.

        They need not be next to each other: each claim brings only a few of each store.
        """
        # Compared as numbers, since comparing two UUIDs is a call.
        group, store = first.claim_group, first.store_id and first.store_id.int
        taken: list[ClaimedJob] = []
        others: deque[tuple[ClaimedJob, float]] = deque()
        with self._emptied:
            self._recall()
            for entry in self._waiting:
                job = entry[0]
                if (
                    job.claim_group == group
                    and (job.store_id and job.store_id.int) == store
                    and len(taken) < most
                    and fits(job)
                ):
                    taken.append(job)
                else:
                    others.append(entry)
            if taken:
                self._waiting = others
                if self._claimer_waits and len(others) <= self._refill_at:
                    self._emptied.notify_all()
        return taken

    def take(self, handful: Handful) -> ClaimedJob | None:
        """Return the next job for the thread of this handful, waiting for one; None once the buffer is closed."""
        try:
            job, _ = handful.waiting.popleft()
        except IndexError:
            pass  # all of them ran, or other threads took them back
        else:
            handful.since = time.monotonic()
            handful.started += 1
            return job
        with self._filled:
            self._end(handful)
            while not (self._waiting and self._needs_thread()) and not self._closed:
                self._wait_idle()
            if self._closed:
                return None
            self._recall_from_long()
            job, _ = self._waiting.popleft()
            for _ in range(self._more_at_once()):
                handful.waiting.append(self._waiting.popleft())
            handful.began = handful.since = time.monotonic()
            handful.started, handful.ended = 1, 0
            self._running[handful] = None
            if self._idle_threads and self._is_thread_wanted(handful):
                self._filled.notify()
            return job

    def ran(self, handful: Handful, *, jobs: int = 1) -> None:
        """Free the thread of this handful if its last job ran, and record how long they took.

        ``jobs`` is how many ran in one chunk. Their end is still to be written.
        """
        handful.started += jobs - 1
        handful.ended = handful.started
        if handful.waiting:
            return
        with self._filled:
            self._end(handful)
        self._on_ended()

    def drop(self, handful: Handful, jobs: Sequence[ClaimedJob]) -> None:
        """Forget the jobs of a run that broke off, which a sweep gives back; free the thread if it has no others."""
        self.ran(handful, jobs=len(jobs))
        self.forget(jobs)

    def forget(self, jobs: Iterable[ClaimedJob]) -> None:
        """Remove jobs whose end is written."""
        with self._emptied:
            # The same job may be back under another lease: requeued by its end, and claimed again before this call.
            self._leases.difference_update(map(_ID_AND_LEASE, jobs))
            if not self._leases:
                self._emptied.notify_all()
        self._on_ended()

    def close(self) -> list[tuple[int, int]]:
        """Hand out no more jobs; return (id, lease) of those that had not started. Idempotent."""
        with self._filled:
            self._closed = True
            self._recall()
            unstarted = self._take_unstarted(float("inf"))
            self._filled.notify_all()
            self._emptied.notify_all()
            return unstarted

    def overdue(self) -> list[tuple[int, int]]:
        """Remove the jobs that waited here for over a second behind longer ones; return their (id, lease).

        They were prefetched in the expectation of shorter jobs; another process may be idle.
        """
        with self._filled:
            now = time.monotonic()
            self._recall(now - _LONG_S)
            return self._take_unstarted(now - OVERDUE_S)

    def withdraw(self, leases: Set[tuple[int, int]]) -> list[ClaimedJob]:
        """Remove and return those of these (id, lease) that wait here; the caller is responsible for ending them."""
        with self._emptied:
            self._recall()
            withdrawn = [job for job, _ in self._waiting if (job.id, job.lease) in leases]
            if withdrawn:
                self._waiting = deque(each for each in self._waiting if (each[0].id, each[0].lease) not in leases)
                self._leases.difference_update(map(_ID_AND_LEASE, withdrawn))
                if not self._leases:
                    self._emptied.notify_all()
            return withdrawn

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or runs. Approximate: read without the lock."""
        return not (self._running or self._waiting)

    def has_waiting(self) -> bool:
        with self._filled:
            return bool(self._waiting) or self._in_hand() > 0

    def leases(self) -> list[tuple[int, int]]:
        """Return (id, lease) of all jobs whose end is not written yet."""
        with self._filled:
            return list(self._leases)

    def running_count(self) -> int:
        with self._filled:
            return self._running_count()

    def _take_unstarted(self, waiting_since: float) -> list[tuple[int, int]]:
        leases: list[tuple[int, int]] = []
        while self._waiting and self._waiting[0][1] < waiting_since:
            job, _ = self._waiting.popleft()
            leases.append((job.id, job.lease))
        self._leases.difference_update(leases)
        return leases

    def _room(self) -> int:
        if self._closed or len(self._leases) >= _MOST_UNENDED:
            return 0
        prefetch = 0
        if self._mean_s is not None:
            # Do not count threads inside a long job: jobs waiting behind them are better off elsewhere.
            slow_since = time.monotonic() - OVERDUE_S
            quick = self._concurrency - sum(handful.since < slow_since for handful in self._running)
            prefetch = min(_MOST_PREFETCHED, int(_PREFETCH_S / max(self._mean_s, 1e-6) * quick))
        self._refill_at = prefetch - min(-(-prefetch // 4), _LEAST_REFILL)
        waiting = len(self._waiting) + self._in_hand()
        idle = self._concurrency - self._running_count() - waiting
        if idle <= 0 and waiting > self._refill_at:
            return 0
        return max(0, idle + prefetch)

    def _is_tiny(self) -> bool:
        return self._mean_s is not None and self._mean_s < _TINY_S

    def _needs_thread(self) -> bool:
        """Return whether waiting jobs need one more thread; tiny ones do if every busy thread has met a long one."""
        if not self._running or not self._is_tiny():
            return True
        long_since = time.monotonic() - _LONG_S
        return all(handful.since <= long_since for handful in self._running)

    def _is_thread_wanted(self, handful: Handful) -> bool:
        """Return whether to wake a thread, to run what waits or to watch what this thread has just taken."""
        if self._waiting and not self._is_tiny():
            return True
        return not self._is_watched and bool(self._waiting or handful.waiting)

    def _wait_idle(self) -> None:
        """Wait for jobs. One idle thread also watches the busy ones, which cannot report that they met a long job."""
        watches = not self._is_watched and bool(self._running) and (bool(self._waiting) or self._in_hand() > 0)
        self._is_watched |= watches
        self._idle_threads += 1
        self._filled.wait(_LONG_S if watches else None)
        self._idle_threads -= 1
        if watches:
            self._is_watched = False
            self._recall_from_long()

    def _more_at_once(self) -> int:
        """Return how many jobs a thread takes in addition to the next one: none unless they take microseconds."""
        if self._mean_s is None:
            return 0
        at_once = min(_MOST_AT_ONCE, int(_AT_ONCE_S / max(self._mean_s, 1e-6)))
        return min(at_once - 1, len(self._waiting) // self._concurrency)

    def _running_count(self) -> int:
        return sum([handful.started > handful.ended for handful in self._running])

    def _in_hand(self) -> int:
        """Return how many jobs threads have taken and not begun."""
        return sum([len(handful.waiting) for handful in self._running])

    def _recall_from_long(self) -> None:
        """Take back what waits in a thread behind a long run, if it is time to look."""
        now = time.monotonic()
        if now >= self._recall_at:
            self._recall_at = now + _LONG_S
            self._recall(now - _LONG_S)

    def _recall(self, since: float = float("inf")) -> None:
        """Take back what waits in a thread behind a run that began before ``since``."""
        for handful in self._running:
            while handful.waiting and handful.since <= since:
                try:
                    self._waiting.appendleft(handful.waiting.pop())
                except IndexError:  # its thread took the last one
                    break

    def _end(self, handful: Handful) -> None:
        """Free the thread of a handful, once, and update the mean from how long its jobs took."""
        if handful not in self._running:
            return
        del self._running[handful]
        took_s = (time.monotonic() - handful.began) / handful.started
        kept = 0.9**handful.started
        self._mean_s = took_s if self._mean_s is None else kept * self._mean_s + (1 - kept) * took_s
        if self._claimer_waits and len(self._waiting) <= self._refill_at:
            self._emptied.notify_all()
