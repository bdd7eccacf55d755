"""Filters lists of messages by the few indexes that writing messages can afford."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar
from uuid import UUID

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest

from salon_jobs.admin.filters import NameFilter
from salon_jobs.admin.reader import reader, sees_all_stores
from salon_jobs.core.messages import MessageStatus
from salon_jobs.models import DestinationState, Message
from salon_jobs.outbox.find import oldest_looked_at
from salon_jobs.tenancy.block import current_store_id

_RARE = (MessageStatus.FAILED, MessageStatus.SKIPPED)
_LOOKED_AT_FOR_CHOICES = 1000


def bounded(request: HttpRequest, found: QuerySet[Message]) -> QuerySet[Message]:
    """Leave out what lies below the newest ids, unless an index finds the failed or skipped ones."""
    if request.GET.get("status__exact") in _RARE:
        return found
    return found.filter(pk__gt=oldest_looked_at(using=reader(request)))


def known_destinations(request: HttpRequest) -> list[str]:
    """Return the destinations that relays or operators have met, by their own small table.

    Which those are is no store's business: a limited user is offered those of the store's newest messages.
    """
    if not sees_all_stores(request):
        return sorted(set(_newest(request, "aggregate_type")))
    rows = DestinationState.objects.using(reader(request)).order_by("aggregate_type")
    return list(rows.values_list("aggregate_type", flat=True)[:100])


def _newest(request: HttpRequest, field: str) -> QuerySet[Message, Any]:
    """Return a column of the newest messages; of a store that has few, among the newest ids."""
    using = reader(request)
    rows = Message.objects.using(using).filter(pk__gt=oldest_looked_at(using=using)).order_by("-pk")
    return rows.values_list(field, flat=True)[:_LOOKED_AT_FOR_CHOICES]


class _Filter(NameFilter):
    field: ClassVar[str]

    def names(self, request: HttpRequest) -> Iterable[str]:
        """Return what the newest messages have."""
        return sorted({str(value) for value in _newest(request, self.field) if value is not None})[:50]

    def has_output(self) -> bool:
        """Show the filter also when there is one choice."""
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Message]) -> QuerySet[Message]:
        """Filter by the field."""
        return bounded(request, queryset.filter(**{self.field: self.value()})) if self.value() else queryset


class DestinationFilter(_Filter):
    """Offers the destinations."""

    title = "destination"
    parameter_name = "destination"
    field = "aggregate_type"

    def names(self, request: HttpRequest) -> Iterable[str]:
        """Return the known destinations."""
        return known_destinations(request)


class EventFilter(_Filter):
    """Offers the events of the newest messages."""

    title = "event"
    parameter_name = "event"
    field = "event"


class MessageStoreFilter(_Filter):
    """Offers the stores of the newest messages."""

    title = "store"
    parameter_name = "store"
    field = "store_id"

    def names(self, request: HttpRequest) -> Iterable[str]:
        """Return the stores; a limited user has one."""
        return super().names(request) if sees_all_stores(request) else [str(current_store_id())]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Message]) -> QuerySet[Message]:
        """Filter by store; a malformed id shows nothing and says so."""
        try:
            UUID(self.value() or "0" * 32)
        except ValueError:
            messages.error(request, f"{self.value()!r} is no store id")
            return queryset.none()
        return super().queryset(request, queryset)
