"""Search for messages, using the few indexes that the write path can afford."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from django.db.models import Max, QuerySet

from salon_jobs.core.records import PARTITIONS, MessageStatus
from salon_jobs.db import statements
from salon_jobs.models import DestinationState, Message
from salon_jobs.models.fields import MARGIN, first_id_at

# How many of the newest IDs are searched when no index serves a filter.
NEWEST: Final = 100_000
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
    """Return the messages that match all filters, newest first, and whether every message was searched.

    Failed and skipped messages are found by their index, as are the pending ones of an aggregate; anything else only
    among the newest ``NEWEST`` IDs.
    """
    wanted = {
        "status": status,
        "aggregate_type": aggregate_type,
        "aggregate_id": aggregate_id,
        "event": event,
        "store_id": store_id,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    found = Message.objects.using(using).filter(**given).order_by("-pk")
    if since is not None:
        found = found.filter(pk__gte=first_id_at(since - MARGIN, Message.objects.using(using)), created_at__gte=since)
    one_aggregate = status == MessageStatus.PENDING and bool(aggregate_type and aggregate_id)
    everything = status in _RARE or one_aggregate or not (given or since)
    return (found, True) if everything else (found.filter(pk__gt=oldest_looked_at(using=using)), False)


def oldest_messages(*, using: str) -> dict[str, float]:
    """Return, by destination, the age in seconds of the oldest message still to be relayed."""
    types = list(DestinationState.objects.using(using).values_list("aggregate_type", flat=True))
    return dict(statements.rows("oldest_message", {"types": types, "partitions": PARTITIONS}, using=using))


def oldest_looked_at(*, using: str) -> int:
    """Return the ID below which messages are not searched without an index."""
    newest = Message.objects.using(using).aggregate(high=Max("pk"))["high"] or 0
    return max(0, newest - NEWEST)
