"""Admin pages for incoming messages of ``consume_queue``, where operators retry or dismiss rejected ones."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponseRedirect
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from salon_jobs.admin.actions import ActionAdmin, actions_of
from salon_jobs.admin.base import OrderedList
from salon_jobs.admin.cells import age_of, badge, below, text, time_of
from salon_jobs.admin.filters import InboxStatusFilter
from salon_jobs.inbox.queries import shown_text
from salon_jobs.models import InboxMessage

_BADGES = {"enqueued": "good", "rejected": "bad", "retry": "warn", "dismissed": "quiet"}


class InboxList(OrderedList):
    """List whose links to all messages have a filter: without one, it opens on the rejected messages."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.full_result_count = self.result_count
        self.clear_all_filters_qs = InboxAdmin.everything
        if not self.query and self.params == {"status__exact": InboxMessage.Status.REJECTED}:
            self.nothing = "No message is rejected."
        self.has_active_filters = request.GET.get("status__exact") != "all"


class InboxAdmin(ActionAdmin):
    """Admin of incoming messages, newest first; a message's page shows its raw content and why it was rejected."""

    part = "inbox"
    everything = "?status__exact=all"
    empty_hint = "Consumers write them: python manage.py consume_queue."
    list_class = InboxList
    list_display = ("id", "state", "why", "kind", "store", "received", "job_link")
    list_filter = (InboxStatusFilter,)
    search_fields = ("message_id__exact",)
    search_help_text = "The full ID of a message"
    actions = actions_of(InboxMessage)
    fieldsets = (
        (None, {"fields": ("state", "code", "reason", "job_link", "consumer", "event", "producer", "store")}),
        (None, {"fields": ("shown_raw",)}),
        ("Times", {"fields": ("received_at_time", "dismissed", "deliveries")}),
        ("Details", {"fields": ("message_id",), "classes": ("collapse",)}),
    )
    deferred = ("raw",)
    received = age_of("received_at", "received")
    received_at_time = time_of("received_at", "received")
    dismissed = time_of("ended_at", "dismissed")

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Open on the rejected messages, which need an operator."""
        if request.method == "GET" and not request.GET and self.has_view_permission(request):
            return HttpResponseRedirect(f"{request.path}?status__exact={InboxMessage.Status.REJECTED}")
        return super().changelist_view(request, extra_context)

    def state_of(self, row: InboxMessage) -> str:
        return str(row.status)

    @admin.display(description="status")
    def state(self, message: Any) -> SafeString:
        """Show the status as a badge."""
        return badge(message.get_status_display(), _BADGES[message.status])

    @admin.display(description="why")
    def why(self, message: InboxMessage) -> SafeString | str:
        """Show the code of the reason why the message was rejected, and below its text."""
        reason = Truncator(message.reason).chars(120)
        return below(message.code, reason) if message.code or reason else "-"

    @admin.display(description="event")
    def kind(self, message: InboxMessage) -> SafeString:
        """Show the event, and below the consumer that read it."""
        return below(message.event or "-", message.consumer)

    @admin.display(description="raw message")
    def shown_raw(self, message: InboxMessage) -> SafeString | str:
        """Show the message as received; only rejected ones are kept."""
        return text(shown_text(message.raw)) if message.raw else "-"
