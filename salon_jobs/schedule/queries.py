"""Statements for cron entries and ticks. A tick fires at most once, in the transaction of its job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Value
from django.db.models.functions import Greatest

from salon_jobs.conf import settings as conf
from salon_jobs.db import statements
from salon_jobs.jobs.results import JobHandle
from salon_jobs.models import CronEntryState, CronTick, Job


def register(names: Iterable[str]) -> None:
    """Record new entries as first seen now, by the database's clock; existing ones do not change."""
    rows = [CronEntryState(name=name) for name in names]
    CronEntryState.objects.using(conf.database).bulk_create(rows, ignore_conflicts=True)


def settled_until() -> tuple[datetime, dict[str, datetime]]:
    """Return the database's time, and when each recorded entry last fired, or else was first seen."""
    rows = statements.rows("cron_states")
    return rows[0][0], {name: after for _, name, after in rows if name is not None}


def fire(entry: str, tick: datetime, add_job: Callable[[], JobHandle], *, advance: bool = True) -> JobHandle | None:
    """Insert the tick and add its job in one transaction; return None if another scheduler was first.

    ``advance`` moves the entry's last tick, forwards only: when a clock steps back, nothing fires again.
    """
    with transaction.atomic(using=conf.database):
        fired = statements.rows("cron_tick", {"entry": entry, "tick_at": tick})
        if not fired:
            return None
        handle = add_job()
        CronTick.objects.using(conf.database).filter(pk=fired[0][0]).update(job_id=handle.id)
        if advance:
            skip(entry, tick)
        return handle


def skip(entry: str, until: datetime) -> None:
    """Skip the entry's ticks up to ``until``; never moves backwards."""
    entries = CronEntryState.objects.using(conf.database).filter(pk=entry)
    entries.update(last_tick_at=Greatest("last_tick_at", Value(until)))


def tick_of(job: Job, *, using: str) -> CronTick | None:
    """Return the tick that added this job or found it waiting; None for other jobs, and once the tick is pruned."""
    row: Any = job  # only mypy knows the types of Django's fields
    if row.tick is None:
        return None
    # Also filter by name, although the tick alone would do: the index begins with the entry.
    entries = list(CronEntryState.objects.using(using).values_list("name", flat=True))
    return CronTick.objects.using(using).filter(entry__in=entries, tick_at=row.tick, job_id=job.pk).first()
