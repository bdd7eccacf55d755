"""Erases everything that is held of one store, in small batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connections

from salon_jobs import sql
from salon_jobs.core import log_events
from salon_jobs.core.log_events import log_event
from salon_jobs.core.messages import MessageStatus
from salon_jobs.core.records import JobState
from salon_jobs.jobs.operate import cancel_jobs
from salon_jobs.models import Job, Limit, Message
from salon_jobs.offboarding.holdings import HOLDINGS, pages
from salon_jobs.outbox.operate import skip_messages

BATCH = 1000


@dataclass(frozen=True, slots=True)
class StoreState:
    """Counts what is live of a store: jobs that run or wait, messages that are not sent."""

    running: int
    waiting: int
    unsent: tuple[int, ...]


def look_at_store(store_id: UUID, *, using: str) -> StoreState:
    """Return what is live. Looks at every message. Role: operator, worker."""
    unsent: list[int] = []
    messages = next(holding for holding in HOLDINGS if holding.model is Message)
    for page in pages(messages, store_id, using=using):
        unsent += page.filter(status__in=[MessageStatus.PENDING, MessageStatus.FAILED]).values_list("pk", flat=True)
    waiting = Job.objects.using(using).filter(store_id=store_id, state=JobState.QUEUED).count()
    return StoreState(running_jobs(store_id, using=using), waiting, tuple(unsent))


def running_jobs(store_id: UUID, *, using: str) -> int:
    """Count the store's running jobs. Role: operator, worker."""
    return Job.objects.using(using).filter(store_id=store_id, state=JobState.RUNNING).count()


def cancel_store(store_id: UUID, *, using: str) -> None:
    """Cancel the store's waiting jobs, and have the running ones ended by their processes. Role: operator, worker."""
    live = Job.objects.using(using).filter(store_id=store_id, state__in=[JobState.QUEUED, JobState.RUNNING])
    cancel_jobs(live.order_by("pk").values_list("pk", flat=True), using=using)


def erase_store(
    store_id: UUID, unsent: tuple[int, ...], *, progress: Callable[[str, int], None], using: str
) -> dict[str, int]:
    """Delete the store's jobs, errors, messages, inbox rows and rules; returns how many of each. Role: operator.

    ``unsent`` messages are skipped first, so that no relay is sending them; what was written since is left, and so are
    jobs that run. Each batch is a transaction: what was erased before an error stays erased, and the call can be made
    again. Logs ``store_erased`` with the counts. Raises database errors.
    """
    skip_messages(unsent, using=using)
    counts = {holding.name: 0 for holding in HOLDINGS}
    jobs = BATCH
    while jobs == BATCH:
        jobs, errors = _erase_jobs(store_id, using)
        counts["jobs"] += jobs
        counts["errors"] += errors
        progress("jobs", counts["jobs"])
    for holding in HOLDINGS[1:]:
        for page in pages(holding, store_id, using=using):
            is_message = holding.model is Message
            own = page.filter(status__in=[MessageStatus.PUBLISHED, MessageStatus.SKIPPED]) if is_message else page
            ids = list(own.values_list("pk", flat=True))
            for start in range(0, len(ids), BATCH):
                rows = holding.model._default_manager.using(using)  # pyright: ignore[reportPrivateUsage]
                counts[holding.name] += rows.filter(pk__in=ids[start : start + BATCH])._raw_delete(using)
            progress(holding.name, counts[holding.name])
    counts["rules"], _ = Limit.objects.using(using).filter(kind=Limit.Kind.STORE, name=str(store_id)).delete()
    fields: dict[str, Any] = {"store_id": str(store_id), **counts}
    log_event(logging.WARNING, log_events.STORE_ERASED, **fields)
    return counts


def _erase_jobs(store_id: UUID, using: str) -> tuple[int, int]:
    with connections[using].cursor() as cursor:
        cursor.execute(sql.load("erase_jobs"), {"store_id": store_id})
        jobs, errors = cursor.fetchone()
    return jobs, errors
