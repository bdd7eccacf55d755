"""Admin pages for the outbox: messages, blocked aggregates, destinations, replays and partitions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from salon_jobs.admin.actions import ask_first, asked_about, confirmed, counted, log_changed, operate, tell
from salon_jobs.admin.base import ReadOnlyAdmin, as_json, instant, may_everywhere, reader
from salon_jobs.admin.filters import DestinationFilter, EventFilter, MessageStoreFilter, bounded, known_destinations
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.core.records import ActionResult, MessageStatus
from salon_jobs.models import BlockedAggregate, DestinationState, Message, RelayPartition, Replay
from salon_jobs.outbox.control import pause_destination, resume_destination, retry_heads, retry_messages, skip_messages
from salon_jobs.outbox.replay import MOST, MessageCriteria, replay_messages

_FOUND = 1000
_OPEN = (MessageStatus.PENDING, MessageStatus.FAILED)


@admin.register(Message)
class MessageAdmin(ReadOnlyAdmin):
    """Admin of messages by status, destination, event and store; a message's page shows everything known about it."""

    has_rows_of_stores = True
    list_display = (
        "id",
        "status",
        "event",
        "aggregate_type",
        "aggregate_id",
        "store_id",
        "retry_count",
        "created_at",
        "sent_at",
        "ended_at",
    )
    list_filter = ("status", DestinationFilter, EventFilter, MessageStoreFilter)
    search_fields = ("id__exact", "message_id__exact", "aggregate_id__exact")
    search_help_text = "A message's number, its uuid, or its aggregate's id, in full"
    ordering = ("-id",)
    sortable_by = ("id",)  # sorting by any other column would read every row
    list_per_page = 50
    actions = ("retry", "skip", "replay")
    fieldsets = (
        (None, {"fields": ("message_id", "status", "where_it_stands", "event", "aggregate_type", "aggregate_id")}),
        ("Content", {"fields": ("shown_payload", "shown_headers", "producer", "store_id", "replay_of")}),
        ("Tries", {"fields": ("retry_count", "retry_at", "last_error")}),
        ("Times", {"fields": ("created_at", "sent_at", "ended_at", "partition")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        """Defer large columns to a message's own page."""
        return super().get_queryset(request).defer("payload", "headers")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Message], search_term: str
    ) -> tuple[Any, bool]:
        """Search for exact matches of the number, uuid or aggregate id, whichever the term can be."""
        term = search_term.strip()
        if not term:
            return queryset, False
        found = Q(pk__in=_of_aggregate(request, term))
        if len(term) < 20 and term.isdecimal() and int(term) < 2**63:
            found |= Q(pk=int(term))
        with suppress(ValueError):  # not a uuid
            found |= Q(message_id=UUID(term))
        return queryset.filter(found), False

    @admin.display(description="payload")
    def shown_payload(self, message: Message) -> SafeString:
        """Show the payload as indented JSON."""
        return as_json(message.payload)

    @admin.display(description="headers")
    def shown_headers(self, message: Message) -> SafeString:
        """Show the headers as indented JSON."""
        return as_json(message.headers)

    @admin.display(description="where it stands")
    def where_it_stands(self, message: Message) -> SafeString | str:
        """Show what blocks the message."""
        if message.status not in _OPEN:
            return "it was sent" if message.status == MessageStatus.PUBLISHED else "it is not sent any more"
        rows = BlockedAggregate.objects.using(message._state.db)
        one = {"aggregate_type": message.aggregate_type, "aggregate_id": message.aggregate_id}
        holder = (rows.filter(**one) if message.aggregate_id else rows.filter(head_id=message.pk)).first()
        if holder is None:
            waits = message.status == MessageStatus.PENDING
            return "nothing holds it back" if waits else "it failed, and holds nothing back"
        if holder.status == str(BlockedAggregate.Status.PARKED) or holder.retry_at is None:
            until = f"it is parked since {instant(holder.since)}"
        else:
            until = f"the next try is due at {instant(holder.retry_at)}"
        if holder.head_id == message.pk:
            return f"it holds its aggregate back: {until}" if message.aggregate_id else until
        url = self.address_of(Message, holder.head_id)
        return format_html('behind <a href="{}">message {}</a>: {}', url, holder.head_id, until)

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may retry messages."""
        return may_everywhere(request, "salon_jobs.retry_message")

    def has_skip_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may skip messages."""
        return may_everywhere(request, "salon_jobs.skip_message")

    def has_replay_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may replay messages."""
        return may_everywhere(request, "salon_jobs.replay_message")

    @admin.action(description="Retry selected messages", permissions=["retry"])
    def retry(self, request: HttpRequest, queryset: QuerySet[Message]) -> None:
        """Retry the selected messages: failed ones with all their attempts, waiting ones at once."""
        self._operate(request, queryset, retry_messages, "retried")

    @admin.action(description="Skip selected messages", permissions=["skip"])
    def skip(self, request: HttpRequest, queryset: QuerySet[Message]) -> TemplateResponse | None:
        """Skip the selected messages for good, after confirmation."""
        if not confirmed(request):
            count = queryset.order_by()[: MOST + 1].count()
            what = f"{counted(count, 'message')} will never be sent. What they hold back goes on."
            return ask_first(request, self, queryset, action="skip", title="Skip messages", lines=[what])
        self._operate(request, queryset, skip_messages, "skipped")
        return None

    @admin.action(description="Send selected messages again (replay)", permissions=["replay"])
    def replay(self, request: HttpRequest, queryset: QuerySet[Message]) -> TemplateResponse | None:
        """Write the selected messages again as new ones, after a dry run, with a reason that is recorded."""
        ids = tuple(asked_about(request, queryset).order_by("pk").values_list("pk", flat=True)[: MOST + 1])
        criteria = MessageCriteria(ids=ids)
        user: Any = request.user
        reason = request.POST.get("reason", "").strip()
        try:
            if not confirmed(request) or not reason:
                found = replay_messages(criteria, dry_run=True, using=conf.reader_database)
                lines = [
                    f"{counted(found.messages, 'message')} will be sent again under new ids, in the order of the old."
                ]
                if found.messages:
                    lines.append(f"The first is message {found.first}, the last is message {found.last}.")
                lines += [f"Message {each.id} will not: {each.detail}." for each in found.refused[:5]]
                return ask_first(
                    request,
                    self,
                    queryset,
                    action="replay",
                    title="Send messages again",
                    lines=lines,
                    wants_reason=True,
                    can_go_on=found.messages > 0,
                )
            done = replay_messages(
                criteria, requested_by=user.get_username(), reason=reason, using=conf.reader_database
            )
        except OptionInvalid as error:
            tell(request, changed=0, refused=[str(error)], done="sent again", noun="message")
            return None
        log_changed(
            request, list(Replay.objects.using(conf.reader_database).filter(pk__in=[done.replay_id or 0])), "sent again"
        )
        texts = [f"Message {each.id} was not sent again: {each.detail}." for each in done.refused]
        tell(request, changed=done.messages, refused=texts, done="sent again", noun="message")
        return None

    def _operate(
        self,
        request: HttpRequest,
        queryset: QuerySet[Message],
        change: Callable[..., list[ActionResult[int]]],
        done: str,
    ) -> None:
        # Oldest first: messages that block others come before them.
        change = partial(change, using=conf.reader_database)
        operate(request, queryset.only("event"), change, done=done, noun="message", oldest_first=True)


def _of_aggregate(request: HttpRequest, aggregate_id: str) -> list[int]:
    """Return the newest messages of an aggregate: the open ones by their index, others among the newest ids."""
    rows = Message.objects.using(reader(request)).filter(aggregate_id=aggregate_id).order_by("-pk")
    by_index = rows.filter(aggregate_type__in=known_destinations(request), status__in=_OPEN)
    return [
        message_id
        for found in (by_index, bounded(request, rows))
        for message_id in found.values_list("pk", flat=True)[:_FOUND]
    ]


@admin.register(BlockedAggregate)
class BlockedAggregateAdmin(ReadOnlyAdmin):
    """Admin of blocked aggregates, last blocked first, with the message that blocks each."""

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
        """Link to the message that blocks the others."""
        return format_html('<a href="{}">message {}</a>', self.address_of(Message, row.head_id), row.head_id)

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may retry messages."""
        return may_everywhere(request, "salon_jobs.retry_message")

    @admin.action(description="Try selected aggregates again (unpark)", permissions=["retry"])
    def unpark(self, request: HttpRequest, queryset: QuerySet[BlockedAggregate]) -> None:
        """Retry at once the messages that block the selected aggregates."""
        change = partial(retry_heads, using=conf.reader_database)
        operate(
            request, queryset, change, done="unparked", noun="aggregate", oldest_first=True, id_of=attrgetter("head_id")
        )


@admin.register(DestinationState)
class DestinationAdmin(ReadOnlyAdmin):
    """Admin of destinations, with their current outages."""

    list_display = ("aggregate_type", "paused", "outage_since", "outage_code", "outage")
    list_filter = ("paused",)
    search_fields = ("aggregate_type__exact",)
    ordering = ("aggregate_type",)
    actions = ("pause", "resume")

    def has_pause_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may pause and resume destinations."""
        return may_everywhere(request, "salon_jobs.pause_destinationstate")

    @admin.action(description="Pause selected destinations", permissions=["pause"])
    def pause(self, request: HttpRequest, queryset: QuerySet[DestinationState]) -> None:
        """Stop sending to the destinations; messages are still written, and wait."""
        self._set(request, queryset, pause_destination, "paused")

    @admin.action(description="Resume selected destinations", permissions=["pause"])
    def resume(self, request: HttpRequest, queryset: QuerySet[DestinationState]) -> None:
        """Resume sending the waiting messages, in order."""
        self._set(request, queryset, resume_destination, "resumed")

    def _set(
        self, request: HttpRequest, queryset: QuerySet[DestinationState], change: Callable[..., None], done: str
    ) -> None:
        rows = list(queryset)
        for row in rows:
            change(row.aggregate_type, using=conf.reader_database)
        log_changed(request, rows, done)
        tell(request, changed=len(rows), refused=[], done=done, noun="destination")


@admin.register(Replay)
class ReplayAdmin(ReadOnlyAdmin):
    """Admin of replays, newest first."""

    list_display = ("id", "requested_at", "requested_by", "reason", "messages")
    ordering = ("-id",)
    sortable_by = ("id",)


@admin.register(RelayPartition)
class PartitionAdmin(ReadOnlyAdmin):
    """Admin of the partitions and their owners."""

    list_display = ("partition", "owner", "epoch", "beat")
    ordering = ("partition",)
