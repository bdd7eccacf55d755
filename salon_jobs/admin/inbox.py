"""Shows what came in by ``consume_queue``, and lets operators decide about what was set aside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from salon_jobs.admin.base import ReadOnlyAdmin, may
from salon_jobs.admin.values import text
from salon_jobs.conf import settings as conf
from salon_jobs.models import InboxMessage
from salon_jobs.outbox.inbox import dismiss_messages, retry_messages, shown_text


@admin.register(InboxMessage)
class InboxAdmin(ReadOnlyAdmin):
    """Lists messages by status, the newest first; a message's own page shows why it was set aside, and what came."""

    list_display = ("id", "consumer", "event", "status", "code", "store_id", "deliveries", "received_at", "job_id")
    list_filter = ("status",)
    search_fields = ("message_id__exact",)
    search_help_text = "A message's id, in full"
    ordering = ("-id",)
    sortable_by = ("id",)  # sorting by any other column would read every row
    list_per_page = 50
    actions = ("retry", "dismiss")
    fieldsets = (
        (None, {"fields": ("consumer", "message_id", "event", "producer", "store_id", "status", "job_id")}),
        ("Set aside", {"fields": ("code", "reason", "shown_raw")}),
        ("Times", {"fields": ("received_at", "deliveries")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[InboxMessage]:
        """Leave what came, which can be large, until a message's own page asks for it."""
        return super().get_queryset(request).defer("raw")

    @admin.display(description="what came")
    def shown_raw(self, message: InboxMessage) -> SafeString:
        """Show what is kept."""
        return text(shown_text(message.raw))

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may have messages tried again."""
        return may(request, "salon_jobs.retry_inboxmessage")

    def has_dismiss_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may dismiss messages."""
        return may(request, "salon_jobs.dismiss_inboxmessage")

    @admin.action(description="Retry selected messages", permissions=["retry"])
    def retry(self, request: HttpRequest, queryset: QuerySet[InboxMessage]) -> None:
        """Have consume_queue try the selected messages again at its next look, those that are set aside."""
        self._decide(request, queryset, retry_messages, "to be tried again")

    @admin.action(description="Dismiss selected messages", permissions=["dismiss"])
    def dismiss(self, request: HttpRequest, queryset: QuerySet[InboxMessage]) -> None:
        """Decide that nothing is done about the selected messages."""
        self._decide(request, queryset, dismiss_messages, "dismissed")

    def _decide(
        self, request: HttpRequest, queryset: QuerySet[InboxMessage], change: Callable[..., int], done: str
    ) -> None:
        selected = changed = 0
        user: Any = request.user
        after = None
        while chosen := _page(queryset, after):
            # One by one, so that the log names those that changed and no other.
            of_them = [each for each in chosen if change([each.pk], using=conf.reader_database)]
            LogEntry.objects.log_actions(
                user_id=user.pk, queryset=of_them, action_flag=CHANGE, change_message=done
            )  # fmt: skip
            selected, changed, after = selected + len(chosen), changed + len(of_them), chosen[-1].pk
        level = messages.SUCCESS if changed == selected else messages.WARNING
        others = "" if changed == selected else f"; the other {selected - changed:,} were not set aside"
        self.message_user(request, f"{changed:,} of {selected:,} messages {done}{others}.", level)


def _page(queryset: QuerySet[InboxMessage], after: int | None) -> list[InboxMessage]:
    """Return a thousand of the selected messages, by descending id."""
    rest = queryset if after is None else queryset.filter(pk__lt=after)
    return list(rest.order_by("-pk").only("consumer", "message_id")[:1000])
