"""Counts of the ends of runs, by task and queue: kept in memory, added to the database every few seconds.

The supervisor also gets them each second for its metrics, even if the database does not respond: ``take_report``.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from salon_jobs.core import events
from salon_jobs.core.metrics import BUCKETS, bucket_of, percentile
from salon_jobs.db import clock, statements
from salon_jobs.jobs.run import JobRun

FLUSH_EVERY_S: Final = 5.0
# Log event that ends a run, and the outcome it counts as; in the order of the columns.
_OUTCOMES: Final[Mapping[str, str]] = {
    events.JOB_SUCCEEDED: "succeeded",
    events.JOB_RETRIED: "retried",
    events.JOB_FAILED: "failed",
    events.JOB_CANCELLED: "cancelled",
    events.JOB_SNOOZED: "snoozed",
    events.JOB_RELEASED: "released",
    events.JOB_RESCUED: "rescued",
    events.JOB_EXPIRED: "expired",
    events.JOB_OUTCOME_UNKNOWN: "unknown",
}
OUTCOMES: Final = tuple(_OUTCOMES.values())
# The table has no column for expired jobs, which it counts as cancelled, nor for unknown outcomes.
STORED_OUTCOMES: Final = tuple(outcome for outcome in OUTCOMES if outcome not in ("expired", "unknown"))
_TASK_AND_QUEUE: Final = attrgetter("job.task", "job.queue")
_INDEX: Final = {event: number for number, event in enumerate(_OUTCOMES)}


@dataclass(slots=True)
class RunCounts:
    """Counts of runs, such as those of one task on one queue."""

    outcomes: list[int] = field(default_factory=lambda: [0] * len(OUTCOMES))
    duration_s: float = 0.0
    durations: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    wait_s: float = 0.0
    waits: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    duration_max_s: float = 0.0
    wait_max_s: float = 0.0

    def time(self, durations_s: Sequence[float], waits_s: Sequence[float]) -> None:
        """Count how long runs took, and how long their jobs had waited."""
        self.duration_s += sum(durations_s)
        self.wait_s += sum(waits_s)
        self.duration_max_s = max(self.duration_max_s, *durations_s)
        self.wait_max_s = max(self.wait_max_s, *waits_s)
        for buckets, seconds in ((self.durations, durations_s), (self.waits, waits_s)):
            for bucket, count in Counter(map(bucket_of, seconds)).items():
                buckets[bucket] += count

    def add(self, other: RunCounts) -> None:
        """Add another object's counts to this one."""
        for name in ("outcomes", "durations", "waits"):
            setattr(self, name, [a + b for a, b in zip(getattr(self, name), getattr(other, name), strict=True)])
        self.duration_s += other.duration_s
        self.wait_s += other.wait_s
        self.duration_max_s = max(self.duration_max_s, other.duration_max_s)
        self.wait_max_s = max(self.wait_max_s, other.wait_max_s)


class TaskStatistics:
    """Thread-safe counts in memory. A killed process loses those of the last seconds; see ``flush_when_due``.

    A flush whose reply is lost may count those seconds twice.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Counts not yet added to the two below.
        self._counts: dict[tuple[str, str], RunCounts] = {}
        self._unwritten: dict[tuple[str, str], RunCounts] = {}
        self._unreported: dict[tuple[str, str], RunCounts] = {}
        self._flushed = time.monotonic()

    def count(self, event: str, runs: Iterable[JobRun]) -> None:
        """Count runs that ended with this log event; ignore events that do not end a run.

        Duration and wait are counted only for runs that ended by themselves, not for released, expired or unknown ones.
        Consecutive runs of one task are counted at once. Measured: 0.9 µs a run in a batch.
        """
        index = _INDEX.get(event)
        if index is None:
            return
        timed = event not in (events.JOB_RELEASED, events.JOB_EXPIRED, events.JOB_OUTCOME_UNKNOWN)
        with self._lock:
            for (task, queue), of_one in groupby(runs, _TASK_AND_QUEUE):
                counts, ended = self._of(task, queue), list(of_one)
                counts.outcomes[index] += len(ended)
                if timed:
                    counts.time([run.duration_s for run in ended], [run.waited_s for run in ended])

    def count_untimed(self, event: str, task: str, queue: str) -> None:
        """Count an end without a known duration: the process died, or the job had not started."""
        with self._lock:
            self._of(task, queue).outcomes[_INDEX[event]] += 1

    def flush_when_due(self, *, using: str) -> None:
        """Flush if the last flush was five seconds ago. Raises database errors, but keeps the counts."""
        if time.monotonic() - self._flushed >= FLUSH_EVERY_S:
            self.flush(using=using)

    def flush(self, *, using: str) -> None:
        """Add the counts to the database: one statement, rows ordered by key. Worker role, autocommit.

        Raises database errors, but keeps the counts for the next flush.
        """
        with self._lock:
            self._distribute()
            counted, self._unwritten = self._unwritten, {}
            self._flushed = time.monotonic()
        if not counted:
            return
        try:
            rows = json.dumps(list(map(_stored, counted.items())))
            statements.execute("add_statistics", {"rows": rows}, using=using)
        except BaseException:
            with self._lock:
                _add(counted, to=self._unwritten)
            raise

    def take_report(self) -> list[dict[str, Any]]:
        """Return the counts since the last report, as rows that can be sent as JSON."""
        with self._lock:
            self._distribute()
            reported, self._unreported = self._unreported, {}
        return list(map(_row, reported.items()))

    def _distribute(self) -> None:
        _add(self._counts, to=self._unwritten)
        _add(self._counts, to=self._unreported)
        self._counts = {}

    def _of(self, task: str, queue: str) -> RunCounts:
        counts = self._counts.get((task, queue))
        if counts is None:
            counts = self._counts[task, queue] = RunCounts()
        return counts


def _add(counted: Mapping[tuple[str, str], RunCounts], *, to: dict[tuple[str, str], RunCounts]) -> None:
    for key, counts in counted.items():
        to.setdefault(key, RunCounts()).add(counts)


def _row(counted: tuple[tuple[str, str], RunCounts]) -> dict[str, Any]:
    (task, queue), row = counted[0], asdict(counted[1])
    return {"task": task, "queue": queue, **dict(zip(OUTCOMES, row.pop("outcomes"), strict=True)), **row}


def _stored(counted: tuple[tuple[str, str], RunCounts]) -> dict[str, Any]:
    row = _row(counted)
    row["cancelled"] += row.pop("expired")
    del row["unknown"]
    return row


# The counts of this process.
ended_runs: Final = TaskStatistics()


@dataclass(frozen=True, slots=True)
class TaskTotals:
    """Totals of one task's runs. Times are in seconds, None when no run ended by itself."""

    task: str
    outcomes: Mapping[str, int]
    duration_s: float
    durations: tuple[int, ...]
    wait_s: float
    waits: tuple[int, ...]
    duration_max_s: float | None
    wait_max_s: float | None

    @property
    def runs(self) -> int:
        """Number of runs that ended by themselves."""
        return sum(self.durations)

    @property
    def mean_duration_s(self) -> float | None:
        """Mean duration of a run."""
        return self.duration_s / self.runs if self.runs else None

    @property
    def mean_wait_s(self) -> float | None:
        """Mean time from when a job became due until its run started."""
        return self.wait_s / self.runs if self.runs else None

    def duration(self, share: float) -> float | None:
        """Return the duration that this share (0 to 1) of the runs did not exceed, accurate to half a doubling."""
        return percentile(self.durations, share, self.duration_max_s)

    def wait(self, share: float) -> float | None:
        """Return the wait that this share (0 to 1) of the runs did not exceed, accurate to half a doubling."""
        return percentile(self.waits, share, self.wait_max_s)


def counted_until(*, using: str) -> datetime:
    """Return the time up to which connected workers have added their runs."""
    return clock.now(using) - timedelta(seconds=FLUSH_EVERY_S)


def totals(last: timedelta, *, using: str, task: str | None = None, queue: str | None = None) -> list[TaskTotals]:
    """Return the totals by task since ``last`` ago, without the latest seconds. Role: worker, operator.

    With ``queue`` those of its runs; with ``task`` those of its runs, by queue.
    """
    values = {"last": last, "task": task, "queue": queue}
    return [_totals(*row) for row in statements.rows("task_totals", values, using=using)]


def _totals(task: str, *values: Any) -> TaskTotals:
    outcomes = dict(zip(STORED_OUTCOMES, map(int, values), strict=False))
    duration_s, durations, wait_s, waits, *longest = values[len(STORED_OUTCOMES) :]
    return TaskTotals(task, outcomes, duration_s, tuple(map(int, durations)), wait_s, tuple(map(int, waits)), *longest)
