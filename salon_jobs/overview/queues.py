"""Tells of each queue what waits, what comes in and goes out, and what fails; and of which stores that is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from salon_jobs.jobs.depths import Depth, depths, with_declared
from salon_jobs.models import Limit
from salon_jobs.overview.rows import rows

HOUR: Final = timedelta(hours=1)
_RATE_MINUTES: Final = 5


@dataclass(frozen=True, slots=True)
class QueueAtWork:
    """Is one queue. Rates are jobs a minute over the last five; None: not known. Failures are of the last hour."""

    name: str
    depth: Depth
    in_a_minute: float | None
    out_a_minute: float
    failed: int
    retried: int
    paused: bool


@dataclass(frozen=True, slots=True)
class StoreAtWork:
    """Is one of the stores with the most jobs waiting."""

    store: str
    depth: Depth
    paused: bool


@dataclass(frozen=True, slots=True)
class FailingStore:
    """Is one of the stores with the most failed attempts in the last hour."""

    store: UUID
    attempts: int
    jobs: int
    error_class: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Holds the queues and stores; not exact, their depths are estimates. ``paused``: every rule that pauses."""

    queues: tuple[QueueAtWork, ...]
    stores: tuple[StoreAtWork, ...]
    exact: bool
    stores_exact: bool
    paused: tuple[str, ...]

    @property
    def waiting(self) -> int:
        """Return how many jobs wait in all."""
        return sum(queue.depth.waiting for queue in self.queues)

    @property
    def due(self) -> int:
        """Return how many are due."""
        return sum(queue.depth.due for queue in self.queues)

    @property
    def oldest_due_s(self) -> float | None:
        """Return how long the oldest due job has been due."""
        return max(
            (each.depth.oldest_due_s for each in self.queues if each.depth.oldest_due_s is not None), default=None
        )


def waiting(*, using: str) -> Waiting:
    """Look at the queues: three queries, or four when more waits than is counted. Role: operator, worker."""
    found = depths(using=using)
    rates = {row[0]: row[1:] for row in rows("queue_rates", using=using, last=HOUR)}
    pauses: Any = Limit.objects.using(using).filter(paused=True).order_by("kind", "name").values_list("kind", "name")
    paused = set(pauses[:200])
    queues = with_declared({**{name: Depth(0, 0, None) for name in rates}, **found.queues})
    return Waiting(
        queues=tuple(
            _queue(name, depth, rates.get(name, (0, None, 0, 0)), paused=("queue", name) in paused)
            for name, depth in queues.items()
        ),
        stores=tuple(
            StoreAtWork(name, depth, ("store", name) in paused)
            for name, depth in sorted(found.stores.items(), key=lambda each: -each[1].waiting)
        ),
        exact=found.exact,
        stores_exact=found.stores_exact,
        paused=tuple(f"{kind} {name}" for kind, name in sorted(paused)),
    )


def failing_stores(*, using: str) -> tuple[FailingStore, ...]:
    """Return the stores with the most failed attempts in the last hour. Role: operator, worker."""
    return tuple(FailingStore(*row) for row in rows("failing_stores", using=using, last=HOUR))


def _queue(name: str, depth: Depth, rate: tuple[Any, ...], *, paused: bool) -> QueueAtWork:
    ended, growth, failed, retried = rate
    # What came in is what went out and what is left more than before.
    came = None if growth is None else max(0, ended + growth) / _RATE_MINUTES
    return QueueAtWork(name, depth, came, ended / _RATE_MINUTES, failed, retried, paused)
