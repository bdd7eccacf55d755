"""List filters for jobs, ticks and messages that use an index and never read a whole table."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, ClassVar, Final
from uuid import UUID

from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from salon_jobs.admin.base import reader, sees_all_stores
from salon_jobs.core.records import JobState, MessageStatus
from salon_jobs.jobs import registry
from salon_jobs.jobs.search import enqueued, error_classes, failure_kinds, in_every_state
from salon_jobs.models import CronEntryState, CronTick, DestinationState, Job, Message
from salon_jobs.outbox.search import oldest_looked_at
from salon_jobs.tenancy.active import current_store_id


class NameFilter(admin.SimpleListFilter):
    """Filter by name that always offers the current choice.

    A filter without choices would be left out, and the page would list everything.
    """

    def names(self, request: HttpRequest) -> Iterable[str]:
        """Return the choices in addition to the current one."""
        return ()

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the names in order."""
        return [(name, name) for name in sorted({*self.names(request), *filter(None, [self.value()])})]


class TaskFilter(NameFilter):
    """Filter by registered task."""

    title = "task"
    parameter_name = "task"

    def names(self, request: HttpRequest) -> Iterable[str]:
        """Return the task names of this process."""
        return registry.task_names()

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Filter by task."""
        return queryset.filter(in_every_state(Q(task=self.value()))) if self.value() else queryset


class QueueFilter(NameFilter):
    """Filter by queue: those of tasks, and those of the newest jobs."""

    title = "queue"
    parameter_name = "queue"

    def names(self, request: HttpRequest) -> Iterable[str]:
        """Return the known queues; queues given per job appear if among the newest thousand jobs."""
        rows = Job.objects.using(reader(request)).order_by("-id")
        if not sees_all_stores(request):
            rows = rows.filter(store_id=current_store_id())
        return {*registry.queue_names(), *rows.values_list("queue", flat=True)[:1000]}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Filter by queue."""
        return queryset.filter(in_every_state(Q(queue=self.value()))) if self.value() else queryset


class StoreFilter(admin.SimpleListFilter):
    """Filter by store, offering the stores of the newest failures, which operators look for."""

    title = "store"
    parameter_name = "store"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return up to 50 stores, those of the newest 500 failed jobs, and always the current choice.

        A limited user has only one store.
        """
        if not sees_all_stores(request):
            return [(store, store) for store in sorted({str(current_store_id()), *filter(None, [self.value()])})]
        failed = Job.objects.using(reader(request)).filter(state=JobState.FAILED).order_by("-finished_at")
        newest = dict.fromkeys(str(store) for store in failed.values_list("store_id", flat=True)[:500] if store)
        stores = set(list(newest)[:50])
        if (chosen := self.value()) and chosen != "none":
            stores.add(chosen)
        return [("none", "no store (system)"), *((store, store) for store in sorted(stores))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Filter by store; a malformed id shows nothing and says so."""
        chosen = self.value()
        if not chosen:
            return queryset
        if chosen == "none":
            return queryset.filter(store_id__isnull=True)
        try:
            return queryset.filter(store_id=UUID(chosen))
        except ValueError:
            messages.error(request, f"{chosen!r} is no store id")
            return queryset.none()


class EntryFilter(NameFilter):
    """Filter by the cron entries that a scheduler has seen."""

    title = "entry"
    parameter_name = "entry"

    def names(self, request: HttpRequest) -> Iterable[str]:
        """Return the entries from their own small table."""
        return CronEntryState.objects.using(reader(request)).values_list("name", flat=True)

    def queryset(self, request: HttpRequest, queryset: QuerySet[CronTick]) -> QuerySet[CronTick]:
        """Filter by entry."""
        return queryset.filter(entry=self.value()) if self.value() else queryset


class EnqueuedFilter(admin.SimpleListFilter):
    """Filter by the age of a job since it was enqueued."""

    title = "enqueued"
    parameter_name = "enqueued"
    _ages: Final = {
        "15m": ("in the last 15 minutes", timedelta(minutes=15)),
        "1h": ("in the last hour", timedelta(hours=1)),
        "1d": ("in the last day", timedelta(days=1)),
        "7d": ("in the last week", timedelta(days=7)),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the ages."""
        return [(value, label) for value, (label, _) in self._ages.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Filter by the ids allocated since then."""
        chosen = self._ages.get(self.value() or "")
        return queryset if chosen is None else enqueued(queryset, since=timezone.now() - chosen[1])


class ErrorClassFilter(admin.SimpleListFilter):
    """Filter by the error class of failed jobs."""

    title = "error"
    parameter_name = "error_class"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return up to 50 classes, and always the current choice; for a limited user those of the grouped failures.

        The index by class holds every store's failed jobs, and a store may have none among a million.
        """
        using = reader(request)
        if sees_all_stores(request):
            classes = set(error_classes(using=using))
        else:
            classes = {kind.error_class for kind in failure_kinds(using=using)}
        if chosen := self.value():
            classes.add(chosen)
        return [(name, name.removeprefix("builtins.")) for name in sorted(classes)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Filter the failed jobs by class."""
        return queryset.filter(state=JobState.FAILED, error_class=self.value()) if self.value() else queryset


class FailureKindFilter(NameFilter):
    """Filter by kind of failure, shown when the page of grouped failures linked here."""

    title = "kind of failure"
    parameter_name = "fingerprint"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Filter the failed jobs by fingerprint; a malformed one shows nothing."""
        chosen = self.value()
        if not chosen:
            return queryset
        try:
            return queryset.filter(state=JobState.FAILED, fingerprint=int(chosen))
        except ValueError:
            return queryset.none()


_RARE = (MessageStatus.FAILED, MessageStatus.SKIPPED)
_LOOKED_AT_FOR_CHOICES = 1000


def bounded(request: HttpRequest, found: QuerySet[Message]) -> QuerySet[Message]:
    """Leave out rows below the newest ids, unless an index finds the failed or skipped ones."""
    if request.GET.get("status__exact") in _RARE:
        return found
    return found.filter(pk__gt=oldest_looked_at(using=reader(request)))


def known_destinations(request: HttpRequest) -> list[str]:
    """Return the destinations that relays or operators have used, from their own small table.

    The whole list is no store's business: a limited user is offered those of the store's newest messages.
    """
    if not sees_all_stores(request):
        return sorted(set(_newest(request, "aggregate_type")))
    rows = DestinationState.objects.using(reader(request)).order_by("aggregate_type")
    return list(rows.values_list("aggregate_type", flat=True)[:100])


def _newest(request: HttpRequest, field: str) -> QuerySet[Message, Any]:
    """Return a column of the newest messages; of a store with few, among the newest ids."""
    using = reader(request)
    rows = Message.objects.using(using).filter(pk__gt=oldest_looked_at(using=using)).order_by("-pk")
    return rows.values_list(field, flat=True)[:_LOOKED_AT_FOR_CHOICES]


class _Filter(NameFilter):
    field: ClassVar[str]

    def names(self, request: HttpRequest) -> Iterable[str]:
        """Return the values of the newest messages."""
        return sorted({str(value) for value in _newest(request, self.field) if value is not None})[:50]

    def has_output(self) -> bool:
        """Show the filter even with a single choice."""
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Message]) -> QuerySet[Message]:
        """Filter by the field."""
        return bounded(request, queryset.filter(**{self.field: self.value()})) if self.value() else queryset


class DestinationFilter(_Filter):
    """Filter by destination."""

    title = "destination"
    parameter_name = "destination"
    field = "aggregate_type"

    def names(self, request: HttpRequest) -> Iterable[str]:
        """Return the known destinations."""
        return known_destinations(request)


class EventFilter(_Filter):
    """Filter by event, offering those of the newest messages."""

    title = "event"
    parameter_name = "event"
    field = "event"


class MessageStoreFilter(_Filter):
    """Filter by store, offering those of the newest messages."""

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
