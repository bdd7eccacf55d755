"""Export and erasure of everything salon_jobs holds about one store."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TextIO
from uuid import UUID

from django.db.models import Model, QuerySet

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.events import log_event
from salon_jobs.core.records import JobState, MessageStatus
from salon_jobs.core.redaction import redacted
from salon_jobs.db import statements
from salon_jobs.inbox.queries import shown_text
from salon_jobs.jobs.control import cancel_jobs
from salon_jobs.models import BlockedAggregate, InboxMessage, Job, JobError, Limit, Message
from salon_jobs.outbox.control import skip_messages

# Rows read at a time, including those of other stores if no index covers the store.
PAGE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Holding:
    """A table with a store's rows, and its JSON columns that may hold secrets."""

    name: str
    model: type[Model]
    by_index: bool
    secret: tuple[str, ...] = ()


HOLDINGS: Final = (
    Holding("jobs", Job, True, secret=("payload",)),
    Holding("errors", JobError, False),
    Holding("messages", Message, False, secret=("payload", "headers")),
    Holding("blocked_aggregates", BlockedAggregate, True),
    Holding("inbox", InboxMessage, False),
)


def pages(holding: Holding, store_id: UUID, *, using: str) -> Iterator[QuerySet[Any]]:
    """Yield the store's rows page by page, by ascending id. If no index covers the store, this reads every row.

    Excludes rows written in the meantime behind the last page. A page can be empty.
    """
    manager: Any = holding.model._default_manager  # pyright: ignore[reportPrivateUsage]
    rows = manager.using(using).order_by("pk")
    own = rows.filter(store_id=store_id)
    looked_at = own if holding.by_index else rows
    after = 0
    while True:
        ends = list(looked_at.filter(pk__gt=after).values_list("pk", flat=True)[PAGE - 1 : PAGE])
        page = own.filter(pk__gt=after)
        if not ends:
            yield page
            return
        yield page.filter(pk__lte=ends[0])
        after = ends[0]


BATCH = 1000


@dataclass(frozen=True, slots=True)
class StoreState:
    """What is live in a store: running and waiting jobs, and unsent messages."""

    running: int
    waiting: int
    unsent: tuple[int, ...]


def look_at_store(store_id: UUID, *, using: str) -> StoreState:
    """Return what is live. Reads every message. Role: operator, worker."""
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
    """Cancel the store's waiting jobs, and ask processes to end the running ones. Role: operator, worker."""
    live = Job.objects.using(using).filter(store_id=store_id, state__in=[JobState.QUEUED, JobState.RUNNING])
    cancel_jobs(live.order_by("pk").values_list("pk", flat=True), using=using)


def erase_store(
    store_id: UUID, unsent: tuple[int, ...], *, progress: Callable[[str, int], None], using: str
) -> dict[str, int]:
    """Delete the store's jobs, errors, messages, inbox rows and limits; return how many of each. Role: operator.

    Skips the ``unsent`` messages first, so that no relay is sending them; leaves messages written since, and running
    jobs. Each batch is a transaction: what was erased before an error stays erased, and the call can be repeated. Logs
    ``store_erased`` with the counts. Raises database errors.
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
    log_event(logging.WARNING, events.STORE_ERASED, **fields)
    return counts


def _erase_jobs(store_id: UUID, using: str) -> tuple[int, int]:
    [(jobs, errors)] = statements.rows("erase_jobs", {"store_id": store_id}, using=using)
    return jobs, errors


def export_store(
    store_id: UUID, out: TextIO, *, unredacted: bool = False, progress: Callable[[str, int], None], using: str
) -> dict[str, int]:
    """Write a line for each row of the store: its columns, and ``table``; return how many of each. Role: operator.

    Reads page by page, each in its own statement: a row is written as it is when its page is read. What ``REDACT``
    names is removed from payloads and headers unless ``unredacted``. Raises OSError and database errors.
    """
    counts: dict[str, int] = {}
    for holding in HOLDINGS:
        counts[holding.name] = 0
        for page in pages(holding, store_id, using=using):
            for row in page.values().iterator(chunk_size=500):
                out.write(_line(holding, row, unredacted))
                counts[holding.name] += 1
            progress(holding.name, counts[holding.name])
    return counts


def _line(holding: Holding, row: dict[str, Any], unredacted: bool) -> str:
    if not unredacted:
        row |= {column: redacted(row[column], conf.redact) for column in holding.secret}
        if holding.model is InboxMessage:
            row["raw"] = shown_text(row["raw"])
    # In ASCII: text written by SQL can hold lone surrogates, which no UTF-8 file can.
    return json.dumps({"table": holding.name, **row}, default=str) + "\n"
