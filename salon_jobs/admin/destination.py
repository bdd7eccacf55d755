"""Shows destinations, and pauses and resumes them."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from salon_jobs.admin.actions import log_changed, tell
from salon_jobs.admin.base import ReadOnlyAdmin, may_everywhere
from salon_jobs.conf import settings as conf
from salon_jobs.models import DestinationState
from salon_jobs.outbox.pause import pause_destination, resume_destination


@admin.register(DestinationState)
class DestinationAdmin(ReadOnlyAdmin):
    """Lists destinations with the outage that relays meet there."""

    list_display = ("aggregate_type", "paused", "outage_since", "outage_code", "outage")
    list_filter = ("paused",)
    search_fields = ("aggregate_type__exact",)
    ordering = ("aggregate_type",)
    actions = ("pause", "resume")

    def has_pause_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may pause and resume destinations."""
        return may_everywhere(request, "salon_jobs.pause_destinationstate")

    @admin.action(description="Pause selected destinations", permissions=["pause"])
    def pause(self, request: HttpRequest, queryset: QuerySet[DestinationState]) -> None:
        """Send nothing there; messages are still written, and wait."""
        self._set(request, queryset, pause_destination, "paused")

    @admin.action(description="Resume selected destinations", permissions=["pause"])
    def resume(self, request: HttpRequest, queryset: QuerySet[DestinationState]) -> None:
        """Send there again what waits, in order."""
        self._set(request, queryset, resume_destination, "resumed")

    def _set(
        self, request: HttpRequest, queryset: QuerySet[DestinationState], change: Callable[..., None], done: str
    ) -> None:
        rows = list(queryset)
        for row in rows:
            change(row.aggregate_type, using=conf.reader_database)
        log_changed(request, rows, done)
        tell(request, changed=len(rows), refused=[], done=done, noun="destination")
