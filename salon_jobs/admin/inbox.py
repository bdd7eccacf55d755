"""Admin pages for incoming messages of ``consume_queue``, where operators retry or dismiss rejected ones."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from salon_jobs.admin.actions import ActionAdmin, RowAction
from salon_jobs.admin.base import text
from salon_jobs.inbox.queries import dismiss_messages, retry_messages, shown_text
from salon_jobs.models import InboxMessage


class InboxAdmin(ActionAdmin):
    """Admin of incoming messages, newest first; a message's page shows its raw content and why it was rejected."""

    part = "inbox"
    list_display = ("id", "status", "code", "event", "consumer", "store", "deliveries", "received_at", "job_link")
    list_filter = ("status",)
    search_fields = ("message_id__exact",)
    search_help_text = "The full ID of a message"
    actions = (
        RowAction("retry", "Retry selected messages", ("retry_inboxmessage",), retry_messages, "marked for a retry"),
        RowAction(
            "dismiss",
            "Dismiss selected messages",
            ("dismiss_inboxmessage",),
            dismiss_messages,
            "dismissed",
            question="Rejected messages in this selection, and those waiting for a retry, will never become jobs.",
        ),
    )
    fieldsets = (
        (None, {"fields": ("consumer", "message_id", "event", "producer", "store", "status", "job_link")}),
        ("Rejection", {"fields": ("code", "reason", "shown_raw")}),
        ("Times", {"fields": ("received_at", "ended_at", "deliveries")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[InboxMessage]:
        """Defer the raw content, which can be large, to a message's own page."""
        return super().get_queryset(request).defer("raw")

    @admin.display(description="raw message")
    def shown_raw(self, message: InboxMessage) -> SafeString:
        return text(shown_text(message.raw))
