"""Search for messages, using the few indexes that the write path can afford."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from django.db.models import Max, QuerySet

from salon_jobs.core.records import MessageStatus
from salon_jobs.models import DestinationState, Message
from salon_jobs.models.fields import MARGIN, first_id_at
from salon_jobs.outbox import queries

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
    exact = {"status": status, "aggregate_type": aggregate_type, "aggregate_id": aggregate_id, "event": event}
    filters = {name: value for name, value in {**exact, "store_id": store_id}.items() if value is not None}
    messages = Message.objects.using(using).filter(**filters).order_by("-pk")
    if since is not None:
        messages = messages.filter(
            pk__gte=first_id_at(since - MARGIN, Message.objects.using(using)), created_at__gte=since
        )
    one_aggregate = status == MessageStatus.PENDING and bool(aggregate_type and aggregate_id)
    if status in _RARE or one_aggregate or not (filters or since):
        return messages, True
    return messages.filter(pk__gt=oldest_searched(using=using)), False


def oldest_messages(*, using: str) -> dict[str, float]:
    """Return, by destination, the age in seconds of the oldest message still to be relayed."""
    types = list(DestinationState.objects.using(using).values_list("aggregate_type", flat=True))
    return queries.oldest_messages(types, using=using)


def oldest_searched(*, using: str) -> int:
    """Return the ID below which messages are not searched without an index."""
    newest = Message.objects.using(using).aggregate(high=Max("pk"))["high"] or 0
    return max(0, newest - NEWEST)
