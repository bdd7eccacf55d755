"""Tells of one store what its newest jobs do, as the web role, which sees no other store's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from salon_jobs.overview.rows import rows

LOOKED_AT: Final = 10_000


@dataclass(frozen=True, slots=True)
class TaskOfStore:
    """Counts the newest jobs of one task; ``oldest_due_s`` is how long the oldest due one of them has been due."""

    task: str
    waiting: int
    due: int
    running: int
    failed: int
    cancelled: int
    jobs: int
    oldest_due_s: float | None


def tasks_of(store: UUID, *, using: str) -> tuple[TaskOfStore, ...]:
    """Count the newest 10,000 jobs of the current store. Call it inside ``tenant_context``. Role: web."""
    return tuple(TaskOfStore(*row) for row in rows("store_at_work", using=using, store=store, most=LOOKED_AT))
