"""Export and erasure of all rows of one store."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TextIO, TypeVar

from django.db.models import Model, QuerySet

from salon_jobs import models
from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.events import log_event
from salon_jobs.core.records import JobState, MessageStatus, StoreId
from salon_jobs.core.redaction import redacted
from salon_jobs.db import statements
from salon_jobs.db.internals import delete_rows
from salon_jobs.inbox.queries import shown_text
from salon_jobs.jobs import registry
from salon_jobs.jobs.control import cancel_jobs
from salon_jobs.jobs.held import ChangedRows, Patience
from salon_jobs.outbox.control import skip_messages

T = TypeVar("T")
# Rows read at a time, including those of other stores if no index covers the store.
PAGE: Final = 10_000
# Rows deleted in one transaction.
BATCH: Final = 1000


class ErasedTable(NamedTuple):
    """A table with rows of stores, and its JSON columns that may hold secrets."""

    name: str
    model: type[Model]
    by_index: bool
    secret: tuple[str, ...] = ()


# Erased before the jobs: schedules add others of the store, and the deletion of jobs would enqueue or start them.
_BEFORE_JOBS: Final = (
    ErasedTable("schedules", models.Schedule, True, secret=("payload",)),
    ErasedTable("follow_ups", models.FollowUp, False, secret=("payload",)),
    ErasedTable("flow_members", models.FlowMember, False),
    ErasedTable("flow_edges", models.FlowEdge, False),
    ErasedTable("flows", models.FlowRecord, False),
    ErasedTable("ordered_jobs", models.OrderedJob, False),
    ErasedTable("ordered_keys", models.OrderedKey, False),
)
MESSAGES: Final = ErasedTable("messages", models.Message, False, secret=("payload", "headers"))
STORE_TABLES: Final = (
    ErasedTable("jobs", models.Job, True, secret=("payload",)),
    ErasedTable("errors", models.JobError, False),
    ErasedTable("results", models.JobResult, False, secret=("payload", "value")),
    ErasedTable("progress", models.JobProgress, False),
    ErasedTable("steps", models.JobStep, False, secret=("value",)),
    *_BEFORE_JOBS,
    ErasedTable("schedule_ticks", models.ScheduleTick, False),
    MESSAGES,
    ErasedTable("blocked_aggregates", models.BlockedAggregate, True),
    ErasedTable("inbox", models.InboxMessage, False),
)


def _rows(table: ErasedTable, using: str) -> Any:
    return table.model._default_manager.using(using)  # pyright: ignore[reportPrivateUsage]


def pages(table: ErasedTable, store_id: StoreId, *, using: str) -> Iterator[QuerySet[Any]]:
    """Yield the store's rows in pages of ascending ids. If no index covers the store, this reads every row.

    Leaves out rows written later in pages already read. A page can be empty.
    """
    rows = _rows(table, using).order_by("pk")
    own = rows.filter(store_id=store_id)
    paged = own if table.by_index else rows
    after = 0
    while ends := list(paged.filter(pk__gt=after).values_list("pk", flat=True)[PAGE - 1 : PAGE]):
        yield own.filter(pk__gt=after, pk__lte=ends[0])
        after = ends[0]
    yield own.filter(pk__gt=after)


class StoreState(NamedTuple):
    """Live work of a store: its numbers of running and waiting jobs, and the ids of unsent messages."""

    running: int
    waiting: int
    unsent: tuple[int, ...]


def store_state(store_id: StoreId, *, using: str) -> StoreState:
    """Return the live work. Reads every message. Role: operator, worker."""
    unsent: list[int] = []
    for page in pages(MESSAGES, store_id, using=using):
        unsent += page.filter(status__in=[MessageStatus.PENDING, MessageStatus.FAILED]).values_list("pk", flat=True)
    waiting = models.Job.objects.using(using).filter(store_id=store_id, state=JobState.QUEUED).count()
    return StoreState(running_jobs(store_id, using=using), waiting, tuple(unsent))


def running_jobs(store_id: StoreId, *, using: str) -> int:
    """Count the store's running jobs. Role: operator, worker."""
    return models.Job.objects.using(using).filter(store_id=store_id, state=JobState.RUNNING).count()


def cancel_store(store_id: StoreId, *, using: str) -> None:
    """Cancel the store's waiting jobs, and ask processes to end the running ones. Role: operator, worker."""
    live = models.Job.objects.using(using).filter(store_id=store_id, state__in=[JobState.QUEUED, JobState.RUNNING])
    cancel_jobs(live.order_by("pk").values_list("pk", flat=True), using=using)


def erase_store(
    store_id: StoreId, unsent: tuple[int, ...], *, progress: Callable[[str, int], None], using: str
) -> dict[str, int]:
    """Delete the store's jobs, errors, messages, inbox rows and limits; return the counts. Role: operator.

    Skips the ``unsent`` messages first, so that no relay sends them; leaves running jobs, and messages written since.
    Each batch is a transaction: rows erased before an error stay erased, and the call can be repeated. Logs
    ``store_erased`` with the counts. Raises database errors; HeldUp if another transaction holds a row.
    """
    patience = Patience()

    def attempt(change: Callable[[], T], model: type[Model], ids: Sequence[int] = ()) -> T:
        rows = ChangedRows(model, f'"{model._meta.pk.column}"', ids, (model,))
        return patience.attempt(change, rows, using=using)

    for start in range(0, len(unsent), BATCH):
        ids = unsent[start : start + BATCH]
        attempt(partial(skip_messages, ids, using=using), models.Message, ids)
    counts = {table.name: 0 for table in STORE_TABLES}

    def erase(table: ErasedTable) -> None:
        for page in pages(table, store_id, using=using):
            sent = {"status__in": [MessageStatus.PUBLISHED, MessageStatus.SKIPPED]} if table is MESSAGES else {}
            ids = list(page.filter(**sent).values_list("pk", flat=True))
            for start in range(0, len(ids), BATCH):
                batch = ids[start : start + BATCH]
                rows = _rows(table, using).filter(pk__in=batch)
                counts[table.name] += attempt(partial(delete_rows, rows, using=using), table.model, batch)
            progress(table.name, counts[table.name])

    # A flow of the store can have members of no store, which would wait forever.
    members = models.FlowMember.objects.using(using).filter(store_id=store_id, outcome=None).values("pk")
    waiting = models.Job.objects.using(using).filter(pk__in=members, state=JobState.QUEUED)
    # In one transaction, so that none of them starts because another is cancelled.
    jobs_of_none = list(waiting.order_by("pk").values_list("pk", flat=True))
    attempt(partial(cancel_jobs, jobs_of_none, using=using), models.Job, jobs_of_none)
    for table in _BEFORE_JOBS:
        erase(table)
    jobs = BATCH
    while jobs == BATCH:
        erase_jobs = partial(statements.rows, "erase_jobs", {"store_id": store_id}, using=using)
        [(jobs, errors)] = attempt(erase_jobs, models.Job)
        counts["jobs"] += jobs
        counts["errors"] += errors
        progress("jobs", counts["jobs"])
    for table in STORE_TABLES[1:]:
        if table not in _BEFORE_JOBS:
            erase(table)
    limits = models.Limit.objects.using(using).filter(kind=models.Limit.Kind.STORE, name=str(store_id))
    counts["limits"], _ = attempt(limits.delete, models.Limit)
    fields: dict[str, Any] = {"store_id": str(store_id), **counts}
    log_event(logging.WARNING, events.STORE_ERASED, **fields)
    return counts


def export_store(
    store_id: StoreId, out: TextIO, *, unredacted: bool = False, progress: Callable[[str, int], None], using: str
) -> dict[str, int]:
    """Write one JSON line per row of the store, its columns and ``table``; return the counts. Role: operator.

    Each page is read by its own statement, so a row is as it was when its page was read. Without ``unredacted``, the
    values that ``REDACT`` names are hidden in payloads and headers. Raises OSError and database errors.
    """
    counts: dict[str, int] = {}
    for table in STORE_TABLES:
        counts[table.name] = 0
        for page in pages(table, store_id, using=using):
            for row in page.values().iterator(chunk_size=500):
                if not unredacted:
                    for column in table.secret:
                        if column == "payload" and "task" in row:
                            row[column] = registry.visible(row["task"], row[column])
                        else:
                            row[column] = redacted(row[column], conf.redact)
                    if table.model is models.InboxMessage:
                        row["raw"] = shown_text(row["raw"])
                # In ASCII: text written by SQL can hold lone surrogates, which a UTF-8 file cannot.
                out.write(json.dumps({"table": table.name, **row}, default=str) + "\n")
                counts[table.name] += 1
            progress(table.name, counts[table.name])
    return counts
