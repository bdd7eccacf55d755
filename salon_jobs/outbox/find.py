"""Finds messages for people, by the few indexes that writing messages can afford."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db.models import Max, Min, QuerySet

from salon_jobs.core.messages import MessageStatus
from salon_jobs.models import Message

# So many of the newest ids are looked at where no index serves a filter.
NEWEST: Final = 100_000
# Ids are given in the order of time, but for statements that write messages for longer than a moment.
MARGIN: Final = timedelta(minutes=10)
_RARE: Final = (MessageStatus.FAILED, MessageStatus.SKIPPED)


def find_messages(
    *,
    status: str | None = None,
    aggregate_type: str | None = None,
    aggregate_id: str | None = None,
    event: str | None = None,
    store_id: UUID | None = None,
    since: datetime | None = None,
    using: str,
) -> tuple[QuerySet[Message], bool]:
    """Return what matches all of these, the newest first, and whether every message was looked at.

    Failed and skipped messages are found by their index, and the pending ones of an aggregate by theirs; anything else
    among the newest ``NEWEST`` ids.
    """
    wanted = {
        "status": status, "aggregate_type": aggregate_type, "aggregate_id": aggregate_id, "event": event,
        "store_id": store_id,
    }  # fmt: skip
    given = {name: value for name, value in wanted.items() if value is not None}
    found = Message.objects.using(using).filter(**given).order_by("-pk")
    if since is not None:
        found = found.filter(pk__gte=first_id_at(since - MARGIN, using=using), created_at__gte=since)
    one_aggregate = status == MessageStatus.PENDING and bool(aggregate_type and aggregate_id)
    everything = status in _RARE or one_aggregate or not (given or since)
    return (found, True) if everything else (found.filter(pk__gt=oldest_looked_at(using=using)), False)


def first_id_at(instant: datetime, *, using: str) -> int:
    """Return the id from which messages were written at this instant or later, by bisection: there is no index on it.

    Exact to the time that one statement took to write messages; ask for ``MARGIN`` earlier, and compare the times.
    """
    rows = Message.objects.using(using)
    ends = rows.aggregate(low=Min("pk"), high=Max("pk"))
    low, high = ends["low"] or 0, (ends["high"] or 0) + 1
    while low < high:
        middle = (low + high) // 2
        row = rows.filter(pk__gte=middle).order_by("pk").values_list("pk", "created_at").first()
        if row is None or row[1] >= instant:
            high = middle
        else:
            low = row[0] + 1
    return low


def oldest_looked_at(*, using: str) -> int:
    """Return the id below which nothing is looked at without an index."""
    newest = Message.objects.using(using).aggregate(high=Max("pk"))["high"] or 0
    return max(0, newest - NEWEST)
