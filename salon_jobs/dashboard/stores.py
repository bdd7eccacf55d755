"""What the tables know of one store: its jobs by task, and how long they had been due."""

from __future__ import annotations

from dataclasses import dataclass

from salon_jobs.core.metrics import BUCKETS, bucket_of
from salon_jobs.core.records import StoreId
from salon_jobs.dashboard.queues import HOUR, LOOKED_AT, TaskOfStore, tasks_of
from salon_jobs.db.statements import rows


@dataclass(frozen=True, slots=True)
class JobsOfStore:
    """The newest jobs of a store, up to ``LOOKED_AT``, by task.

    ``waits`` counts those begun in the last hour by how long they had been due, in the buckets of the statistics;
    ``longest_wait_s`` is the longest of these. Jobs that were deleted since are not among them.
    """

    tasks: tuple[TaskOfStore, ...]
    waits: list[int]
    longest_wait_s: float | None

    @property
    def queued(self) -> int:
        return sum(task.waiting for task in self.tasks)

    @property
    def running(self) -> int:
        return sum(task.running for task in self.tasks)

    @property
    def failed(self) -> int:
        return sum(task.failed for task in self.tasks)

    @property
    def oldest_due_s(self) -> float | None:
        """How long the oldest due job has been due, in seconds; None if none is."""
        return max((each.oldest_due_s for each in self.tasks if each.oldest_due_s is not None), default=None)

    @property
    def is_whole(self) -> bool:
        """Whether these are all jobs of the store."""
        return sum(task.jobs for task in self.tasks) < LOOKED_AT


def store_at_work(store: StoreId, *, using: str) -> JobsOfStore:
    """Read the newest jobs of a store, in two queries. Role: operator, worker; web, inside its ``tenant_context``."""
    found = rows("store_waits", {"store": store, "most": LOOKED_AT, "last": HOUR}, using=using)
    times = [seconds for (seconds,) in found]
    waits = [0] * BUCKETS
    for seconds in times:
        waits[bucket_of(seconds)] += 1
    return JobsOfStore(tasks_of(store, using=using), waits, max(times, default=None))
