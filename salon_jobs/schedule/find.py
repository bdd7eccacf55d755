"""Finds the cron tick that enqueued a job."""

from __future__ import annotations

from typing import Any

from salon_jobs.models import CronEntryState, CronTick, Job


def tick_of(job: Job, *, using: str) -> CronTick | None:
    """Return the tick whose firing added this job, or met it; None for others, and when the tick is pruned."""
    row: Any = job  # the types of Django's fields are known to mypy alone
    if row.tick is None:
        return None
    # By name, though the tick alone would do: the index begins with the entry.
    entries = list(CronEntryState.objects.using(using).values_list("name", flat=True))
    return CronTick.objects.using(using).filter(entry__in=entries, tick_at=row.tick, job_id=job.pk).first()
