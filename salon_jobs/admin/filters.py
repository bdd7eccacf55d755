"""List filters for jobs, ticks and messages that use an index and never read a whole table."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final

from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from salon_jobs.admin.reader import reader, sees_all_stores
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.records import JobState
from salon_jobs.core.units import error_name
from salon_jobs.db import clock
from salon_jobs.jobs import registry
from salon_jobs.jobs.search import error_classes, failure_kinds, in_every_state, of_no_store, retrying, with_key
from salon_jobs.models import CronEntryState, DestinationState, FlowMember, InboxMessage, Job, Message
from salon_jobs.models.fields import created
from salon_jobs.outbox.queries import RARE, oldest_searched
from salon_jobs.tenancy.active import current_store_id
from salon_jobs.tenancy.names import store_name


class NameFilter(admin.SimpleListFilter):
    """Filter by name that always offers the current choice: without choices, Django ignores it and lists everything."""

    def names(self, request: HttpRequest) -> Iterable[str]:
        """Return the choices in addition to the current one."""
        return ()

    def label(self, request: HttpRequest, name: str) -> str:
        """Return the label of a choice."""
        return name

    def matching(self, request: HttpRequest, queryset: QuerySet[Any], name: str) -> QuerySet[Any]:
        """Return the rows of a choice. Raises ValueError for an invalid name."""
        return queryset.filter(**{str(self.parameter_name): name})

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            (name, self.label(request, name)) for name in sorted({*self.names(request), *filter(None, [self.value()])})
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows of the current choice; for a malformed one show none and a message."""
        name = self.value()
        try:
            return self.matching(request, queryset, name) if name else queryset
        except ValueError:
            said = gettext("%(value)s is not a valid %(filter)s")
            messages.error(request, said % {"value": repr(name), "filter": self.title})
            return queryset.none()


def named(request: HttpRequest, store: str) -> str:
    """Return the name of a store, whose ID may come from the URL; a limited user gets only the ID of other stores."""
    if not sees_all_stores(request) and store != str(current_store_id()):
        return store
    try:
        return store_name(store_key().parse(store))
    except ValueError:
        return store


class TaskFilter(NameFilter):
    """Filter by task, offering those registered in this process."""

    title = _("task")
    parameter_name = "task"

    def names(self, request: HttpRequest) -> Iterable[str]:
        return registry.task_names()

    def matching(self, request: HttpRequest, queryset: QuerySet[Job], name: str) -> QuerySet[Job]:
        return queryset.filter(in_every_state(Q(task=name)))


class QueueFilter(NameFilter):
    """Filter by queue, offering those of tasks, and those of the newest thousand jobs."""

    title = _("queue")
    parameter_name = "queue"

    def names(self, request: HttpRequest) -> Iterable[str]:
        rows = Job.objects.using(reader(request)).order_by("-id")
        if not sees_all_stores(request):
            rows = rows.filter(store_id=current_store_id())
        return {*registry.queue_names(), *rows.values_list("queue", flat=True)[:1000]}

    def matching(self, request: HttpRequest, queryset: QuerySet[Job], name: str) -> QuerySet[Job]:
        return queryset.filter(in_every_state(Q(queue=name)))


class StoreFilter(NameFilter):
    """Filter by store, offering up to 50 stores of the newest 500 failed jobs; a limited user has only one store."""

    title = _("store")
    parameter_name = "store"

    def names(self, request: HttpRequest) -> Iterable[str]:
        if not sees_all_stores(request):
            return [str(current_store_id())]
        failed = Job.objects.using(reader(request)).filter(state=JobState.FAILED).order_by("-finished_at")
        newest = dict.fromkeys(str(store) for store in failed.values_list("store_id", flat=True)[:500] if store)
        return ["none", *list(newest)[:50]]

    def label(self, request: HttpRequest, name: str) -> str:
        return gettext("no store (system)") if name == "none" else named(request, name)

    def matching(self, request: HttpRequest, queryset: QuerySet[Job], name: str) -> QuerySet[Job]:
        return queryset.filter(of_no_store() if name == "none" else Q(store_id=store_key().parse(name)))


class InboxStatusFilter(admin.SimpleListFilter):
    """Filter by status, with "all" for every status, since the list opens on the rejected messages."""

    title = _("status")
    parameter_name = "status__exact"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("all", gettext("All")), *((str(value), str(label)) for value, label in InboxMessage.Status.choices)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the messages of the chosen status."""
        status = self.value()
        return queryset if status in (None, "all") else queryset.filter(status=status)

    def choices(self, changelist: Any) -> Any:
        """Return the choices without Django's own "All", whose address has no filter."""
        return list(super().choices(changelist))[1:]


class DestinationStateFilter(admin.SimpleListFilter):
    """Filter by the state on a destination's badge."""

    title = _("state")
    parameter_name = "state"
    _states: Final = {
        "down": Q(paused=False, outage_since__isnull=False),
        "paused": Q(paused=True),
        "no outage": Q(paused=False, outage_since=None),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, gettext(name)) for name in self._states]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the destinations in the chosen state."""
        return queryset.filter(self._states.get(self.value() or "", Q()))


class EntryFilter(NameFilter):
    """Filter by the cron entries that a scheduler has seen."""

    title = _("entry")
    parameter_name = "entry"

    def names(self, request: HttpRequest) -> Iterable[str]:
        return CronEntryState.objects.using(reader(request)).values_list("name", flat=True)


class EnqueuedFilter(admin.SimpleListFilter):
    """Filter by the age of a job since it was enqueued."""

    title = _("time enqueued")
    parameter_name = "enqueued"
    _ages: Final = {
        "15m": (_("in the last 15 minutes"), timedelta(minutes=15)),
        "1h": (_("in the last hour"), timedelta(hours=1)),
        "1d": (_("in the last day"), timedelta(days=1)),
        "7d": (_("in the last week"), timedelta(days=7)),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(value, str(label)) for value, (label, _) in self._ages.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        chosen = self._ages.get(self.value() or "")
        return queryset if chosen is None else self.since(queryset, clock.now(queryset.db) - chosen[1])

    def since(self, queryset: QuerySet[Job], at: datetime) -> QuerySet[Job]:
        """Filter by the ids allocated since then."""
        return created(queryset, since=at)


class EndedFilter(EnqueuedFilter):
    """Filter by the time since a job failed, was cancelled, or succeeded if such jobs are kept."""

    title = _("time ended")
    parameter_name = "ended"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(value, gettext("ended %(when)s") % {"when": label}) for value, (label, _) in self._ages.items()]

    def since(self, queryset: QuerySet[Job], at: datetime) -> QuerySet[Job]:
        """Filter by the index of jobs that have ended."""
        return queryset.filter(state__in=_ENDED, finished_at__gte=at)


def classes_of_failures(request: HttpRequest) -> Iterable[str]:
    """Return up to 50 error classes of failed jobs.

    For a limited user those of the grouped errors: the index by class holds every store's failed jobs, and a store may
    have none among a million.
    """
    using = reader(request)
    if sees_all_stores(request):
        return error_classes(using=using)
    return {kind.error_class for kind in failure_kinds(using=using)}


class ErrorClassFilter(NameFilter):
    """Filter by the error class of failed jobs, offering up to 50."""

    title = _("error")
    parameter_name = "error_class"

    def names(self, request: HttpRequest) -> Iterable[str]:
        return classes_of_failures(request)

    def label(self, request: HttpRequest, name: str) -> str:
        """Return the class, with line breaks allowed at the dots of its name."""
        return format_html_join(SafeString(".<wbr>"), "{}", ((part,) for part in error_name(name).split(".")))

    def matching(self, request: HttpRequest, queryset: QuerySet[Job], name: str) -> QuerySet[Job]:
        return queryset.filter(state=JobState.FAILED, error_class=name)


class ErrorGroupFilter(NameFilter):
    """Filter by group of errors, shown when the page of grouped errors linked here."""

    title = _("error group")
    parameter_name = "fingerprint"

    def matching(self, request: HttpRequest, queryset: QuerySet[Job], name: str) -> QuerySet[Job]:
        return queryset.filter(state=JobState.FAILED, fingerprint=int(name))


class RetryingFilter(NameFilter):
    """Filter by whether a job has failed and is tried again, among those of the newest errors."""

    title = _("retrying")
    parameter_name = "retrying"

    def matching(self, request: HttpRequest, queryset: QuerySet[Job], name: str) -> QuerySet[Job]:
        """Return the jobs. Raises ValueError for anything but 1."""
        if name != "1":
            raise ValueError(name)
        return queryset.filter(retrying(using=reader(request)))


class KeyFilter(NameFilter):
    """Filter by job key, or with a task by its concurrency key as well, shown when the page of a job linked here."""

    title = _("key")
    parameter_name = "key"

    def matching(self, request: HttpRequest, queryset: QuerySet[Job], name: str) -> QuerySet[Job]:
        """Return the jobs; no index has the concurrency key alone, and that of the task finds few enough rows."""
        wanted = with_key(name)
        return queryset.filter(wanted | in_every_state(Q(concurrency_key=name)) if request.GET.get("task") else wanted)


class FlowFilter(NameFilter):
    """Filter by flow, shown when the picture of a flow linked here."""

    title = _("flow")
    parameter_name = "flow"

    def matching(self, request: HttpRequest, queryset: QuerySet[Job], name: str) -> QuerySet[Job]:
        members = FlowMember.objects.using(reader(request)).filter(flow_id=int(name))
        return queryset.filter(pk__in=members.values("job_id"))


_ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
_LOOKED_AT_FOR_CHOICES = 1000


def newest_only(request: HttpRequest, found: QuerySet[Message]) -> QuerySet[Message]:
    """Leave out rows below the newest ids, unless an index finds them, as for failed and skipped ones."""
    if request.GET.get("status__exact") in RARE:
        return found
    return found.filter(pk__gt=oldest_searched(using=reader(request)))


def known_destinations(request: HttpRequest) -> list[str]:
    """Return the destinations that relays or operators have used, from their own small table.

    The whole list belongs to no store, so a limited user is offered those of the store's newest messages.
    """
    if not sees_all_stores(request):
        return sorted(set(_newest(request, "aggregate_type")))
    rows = DestinationState.objects.using(reader(request)).order_by("aggregate_type")
    return list(rows.values_list("aggregate_type", flat=True)[:100])


def _newest(request: HttpRequest, field: str) -> QuerySet[Message, Any]:
    """Return a column of the newest messages, among the newest ids."""
    using = reader(request)
    rows = Message.objects.using(using).filter(pk__gt=oldest_searched(using=using)).order_by("-pk")
    return rows.values_list(field, flat=True)[:_LOOKED_AT_FOR_CHOICES]


class MessageFilter(NameFilter):
    """Base of the filters by one field of messages, offering its values among the newest ones."""

    field: ClassVar[str]

    def names(self, request: HttpRequest) -> Iterable[str]:
        return sorted({str(value) for value in _newest(request, self.field) if value is not None})[:50]

    def has_output(self) -> bool:
        """Show the filter even with a single choice."""
        return True

    def matching(self, request: HttpRequest, queryset: QuerySet[Message], name: str) -> QuerySet[Message]:
        return newest_only(request, queryset.filter(**{self.field: name}))


class DestinationFilter(MessageFilter):
    """Filter by destination."""

    title = _("destination")
    parameter_name = "destination"
    field = "aggregate_type"

    def names(self, request: HttpRequest) -> Iterable[str]:
        return known_destinations(request)


class EventFilter(MessageFilter):
    """Filter by event."""

    title = _("event")
    parameter_name = "event"
    field = "event"


class MessageStoreFilter(MessageFilter):
    """Filter by store; a limited user has one."""

    title = _("store")
    parameter_name = "store"
    field = "store_id"

    def names(self, request: HttpRequest) -> Iterable[str]:
        return super().names(request) if sees_all_stores(request) else [str(current_store_id())]

    def label(self, request: HttpRequest, name: str) -> str:
        return named(request, name)

    def matching(self, request: HttpRequest, queryset: QuerySet[Message], name: str) -> QuerySet[Message]:
        return super().matching(request, queryset, str(store_key().parse(name)))
