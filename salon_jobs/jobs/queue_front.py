"""Looks at the queues: what is due, how late, and what waits behind. Each look reads a bounded number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from django.db import connections

from salon_jobs import sql
from salon_jobs.conf import settings as conf
from salon_jobs.core import metrics
from salon_jobs.core.metrics import Sample
from salon_jobs.jobs import registry


@dataclass(frozen=True, slots=True)
class QueueFront:
    """Says how late the oldest due job is, in seconds, and which due tasks are registered nowhere here.

    ``due`` counts the first 10,000 due jobs by queue; ``late_s`` tells how late the oldest of each queue is among them.
    """

    lag_s: float = 0.0
    unknown_tasks: tuple[str, ...] = ()
    due: Mapping[str, int] = field(default_factory=dict[str, int])
    late_s: Mapping[str, float] = field(default_factory=dict[str, float])

    def samples(self) -> list[Sample]:
        """Return what metrics show of it."""
        return [
            Sample(metrics.UNKNOWN_TASKS, len(self.unknown_tasks)),
            *(Sample(metrics.QUEUE_DEPTH, count, (queue, "due")) for queue, count in self.due.items()),
            *(Sample(metrics.OLDEST_DUE, late_s, (queue,)) for queue, late_s in self.late_s.items()),
        ]


def look_at_queue(*, using: str | None = None) -> QueueFront:
    """Look at the front of the queue. Raises database errors. Role: worker, operator; others see too few jobs.

    ``using`` None is the alias of the job tables.
    """
    with connections[using or conf.database].cursor() as cursor:
        cursor.execute(sql.load("queue_front"), {"tasks": registry.task_names()})
        lag_s, unknown, queues, due, late_s = cursor.fetchone()
    return QueueFront(
        lag_s or 0.0, tuple(unknown or ()), dict(zip(queues, due, strict=True)),
        {queue: late for queue, late in zip(queues, late_s, strict=True) if late is not None},
    )  # fmt: skip


def count_rest() -> dict[tuple[str, str], int]:
    """Count scheduled and failed jobs by queue and state, as far as sql/queue_rest.sql goes. Raises database errors."""
    with connections[conf.database].cursor() as cursor:
        cursor.execute(sql.load("queue_rest"))
        return {(queue, state): count for queue, state, count in cursor.fetchall()}
