"""Admin pages for incoming messages of ``consume_queue``, where operators retry or dismiss rejected ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString

from salon_jobs.admin.actions import ask_first, confirmed, how_many, operate
from salon_jobs.admin.base import ReadOnlyAdmin, may, text
from salon_jobs.conf import settings as conf
from salon_jobs.core.records import ActionResult
from salon_jobs.inbox.queries import dismiss_messages, retry_messages, shown_text
from salon_jobs.models import InboxMessage


@admin.register(InboxMessage)
class InboxAdmin(ReadOnlyAdmin):
    """Admin of incoming messages, newest first; a message's page shows its raw content and why it was rejected."""

    list_display = ("id", "status", "code", "event", "consumer", "store_id", "deliveries", "received_at", "job_link")
    list_filter = ("status",)
    search_fields = ("message_id__exact",)
    search_help_text = "A message's id, in full"
    ordering = ("-id",)
    sortable_by = ("id",)  # sorting by any other column would read every row
    list_per_page = 50
    actions = ("retry", "dismiss")
    fieldsets = (
        (None, {"fields": ("consumer", "message_id", "event", "producer", "store_id", "status", "job_link")}),
        ("Set aside", {"fields": ("code", "reason", "shown_raw")}),
        ("Times", {"fields": ("received_at", "ended_at", "deliveries")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[InboxMessage]:
        """Defer the raw content, which can be large, to a message's own page."""
        return super().get_queryset(request).defer("raw")

    @admin.display(description="what came")
    def shown_raw(self, message: InboxMessage) -> SafeString:
        """Show the stored content."""
        return text(shown_text(message.raw))

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may retry messages."""
        return may(request, "salon_jobs.retry_inboxmessage")

    def has_dismiss_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may dismiss messages."""
        return may(request, "salon_jobs.dismiss_inboxmessage")

    @admin.action(description="Retry selected messages", permissions=["retry"])
    def retry(self, request: HttpRequest, queryset: QuerySet[InboxMessage]) -> None:
        """Have consume_queue retry the selected rejected messages at its next poll."""
        self._decide(request, queryset, retry_messages, "marked to be tried again")

    @admin.action(description="Dismiss selected messages", permissions=["dismiss"])
    def dismiss(self, request: HttpRequest, queryset: QuerySet[InboxMessage]) -> TemplateResponse | None:
        """Dismiss the selected messages without action, after confirmation."""
        if not confirmed(request):
            what = f"{how_many(queryset, 'message')} selected: those that wait will never become jobs."
            return ask_first(request, self, queryset, action="dismiss", title="Dismiss messages", lines=[what])
        self._decide(request, queryset, dismiss_messages, "dismissed")
        return None

    def _decide(
        self,
        request: HttpRequest,
        queryset: QuerySet[InboxMessage],
        change: Callable[..., list[ActionResult[int]]],
        done: str,
    ) -> None:
        rows = queryset.only("consumer", "message_id")
        operate(request, rows, partial(change, using=conf.reader_database), done=done, noun="message")
