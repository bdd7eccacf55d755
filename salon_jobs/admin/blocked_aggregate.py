"""Shows the aggregates that wait or are parked, and tries them again."""

from __future__ import annotations

from functools import partial
from operator import attrgetter

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from salon_jobs.admin.actions import operate
from salon_jobs.admin.base import ReadOnlyAdmin, may_everywhere
from salon_jobs.conf import settings as conf
from salon_jobs.models import BlockedAggregate, Message
from salon_jobs.outbox.operate import retry_heads


@admin.register(BlockedAggregate)
class BlockedAggregateAdmin(ReadOnlyAdmin):
    """Lists what is blocked, what was blocked last first, with the message that holds it back."""

    has_rows_of_stores = True
    list_display = (
        "id",
        "status",
        "aggregate_id",
        "code",
        "head",
        "aggregate_type",
        "since",
        "retry_count",
        "retry_at",
    )
    list_filter = ("status",)
    search_fields = ("aggregate_id__exact", "head_id__exact")
    search_help_text = "An aggregate's id, or the number of the message that holds it back, in full"
    readonly_fields = ("head",)
    ordering = ("-id",)
    sortable_by = ("id",)
    list_per_page = 50
    actions = ("unpark",)

    @admin.display(description="held back by")
    def head(self, row: BlockedAggregate) -> SafeString:
        """Link to the message that holds the others."""
        return format_html('<a href="{}">message {}</a>', self.address_of(Message, row.head_id), row.head_id)

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may retry messages."""
        return may_everywhere(request, "salon_jobs.retry_message")

    @admin.action(description="Try selected aggregates again (unpark)", permissions=["retry"])
    def unpark(self, request: HttpRequest, queryset: QuerySet[BlockedAggregate]) -> None:
        """Try the messages again at once that hold the selected aggregates back."""
        change = partial(retry_heads, using=conf.reader_database)
        operate(
            request, queryset, change, done="unparked", noun="aggregate", oldest_first=True,
            id_of=attrgetter("head_id"),
        )  # fmt: skip
