"""Admin pages for outgoing messages, with blocked aggregates and replays, and for incoming ones."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext, gettext_noop, ngettext
from django.utils.translation import gettext_lazy as _

from salon_jobs.admin import filters
from salon_jobs.admin.actions import (
    Action,
    ActionAdmin,
    ActionForm,
    actions_of,
    log_changed,
    not_done,
    say_changed,
    user_name,
)
from salon_jobs.admin.base import OrderedList, ReadOnlyAdmin, id_or_other
from salon_jobs.admin.cells import age_of, badge, below, count_of, is_whole, json_of, large, now_of, time_of
from salon_jobs.admin.reader import reader, sees_all_stores
from salon_jobs.conf import settings as conf
from salon_jobs.core.records import MessageStatus
from salon_jobs.core.units import counted
from salon_jobs.dashboard.relays import COUNTED, OPEN, message_page
from salon_jobs.inbox.queries import shown_text
from salon_jobs.models import BlockedAggregate, DestinationState, InboxMessage, Message, Process, RelayPartition, Replay
from salon_jobs.outbox.control import MOST, MessageCriteria, Replayed
from salon_jobs.tenancy.active import current_store_id
from salon_jobs.words import ago, pause_of, who_paused

_BADGES = {"pending": "waiting", "published": "good", "failed": "bad", "skipped": "quiet"}
_SEARCHED = 1000


class ReplayAction(Action):
    """Action that writes the selected messages again as new ones, after a dry run, with a recorded reason."""

    def preview(self, request: HttpRequest, queryset: QuerySet[Message], form: ActionForm) -> tuple[list[str], bool]:
        """Return the result of a dry run."""
        replay = self._replay(request, queryset, dry_run=True)
        said = ngettext(
            "%(messages)s message will be sent again under new IDs, in the original order.",
            "%(messages)s messages will be sent again under new IDs, in the original order.",
            replay.messages,
        )
        lines = [said % {"messages": f"{replay.messages:,}"}]
        if replay.messages > 1:
            said = gettext("The first is message %(first)s, the last is message %(last)s.")
            lines.append(said % {"first": replay.first, "last": replay.last})
        said = gettext("Message %(id)s will not be sent again: %(why)s.")
        lines += [said % {"id": each.id, "why": each.detail} for each in replay.refused[:5]]
        return lines, replay.messages > 0

    def run(self, model_admin: Any, request: HttpRequest, queryset: QuerySet[Message], form: ActionForm) -> None:
        using, done = reader(request), self.verb.done
        by, reason = user_name(request), form.cleaned_data["reason"]
        replayed = self._replay(request, queryset, requested_by=by, reason=reason)
        log_changed(request, list(Replay.objects.using(using).filter(pk__in=[replayed.replay_id or 0])), done)
        said = gettext(done)
        reasons = [not_done(Message, each.id, said, each.detail) for each in replayed.refused]
        more = max(len(reasons) - 5, 0)
        say_changed(request, Message, changed=replayed.messages, reasons=reasons[:5], done=said, more=more)

    def _replay(self, request: HttpRequest, queryset: QuerySet[Message], **how: Any) -> Replayed:
        ids = tuple(queryset.order_by("pk").values_list("pk", flat=True)[: MOST + 1])
        replayed: Replayed = self.verb.call(ids, MessageCriteria(ids=ids), using=reader(request), **how)
        return replayed


class DestinationLinkAdmin(ActionAdmin):
    """Base of admins whose rows link to their destination."""

    @admin.display(description=_("destination"))
    def destination(self, row: Message | BlockedAggregate) -> SafeString | str:
        """Link to the destination, which staff of one store may not see."""
        if not _is_for_operators(row):
            return row.aggregate_type
        return self.link_to_list(DestinationState, row.aggregate_type, q=row.aggregate_type)


def _is_for_operators(row: Model) -> bool:
    """Return whether the row's reader sees all stores."""
    return row._state.db == conf.reader_database and current_store_id() is None


def retries(count: int) -> str:
    """Format the number of failed attempts to send a message; "" if none."""
    said = ngettext("%(count)s failed attempt", "%(count)s failed attempts", count)
    return said % {"count": f"{count:,}"} if count else ""


class MessageAdmin(DestinationLinkAdmin):
    """Admin of messages by status, destination, event and store; a message's page shows everything known about it."""

    part = "outbox"
    empty_hint = _("Messages are written by emit().")
    related = (Replay, RelayPartition)
    has_rows_of_stores = True
    list_display = ("id", "progress", "to", "store", "age", "row_actions")
    list_filter = ("status", filters.DestinationFilter, filters.EventFilter, filters.MessageStoreFilter)
    search_fields = ("id__exact", "message_id__exact", "aggregate_id__exact")
    search_help_text = _("The full number or UUID of a message, or an aggregate ID")
    actions = actions_of(Message, replay=ReplayAction)
    fieldsets = (
        (None, {"fields": ("state", "delivery", "last_error", "event", "destination", "aggregate_id", "store")}),
        (None, {"fields": ("shown_payload", "shown_headers")}),
        (_("Times"), {"fields": ("written", "sent", "ended", "attempts", "retry")}),
        (_("Details"), {"fields": ("message_id", "producer", "replay_of", "partition"), "classes": ("collapse",)}),
    )
    help_texts: ClassVar = {
        "message_id": _("Set when the message is written; identifies it to brokers and consumers"),
        "aggregate_id": _("Messages with the same aggregate ID are delivered in order"),
        "replay_of": _("The original message that this one re-sends"),
    }
    deferred = ("payload", "headers")
    shown_payload = json_of("payload", _("payload"))
    shown_headers = json_of("headers", _("headers"), hides_empty=True)
    written = time_of("created_at", _("written"))
    sent = time_of("sent_at", _("published"))
    ended = time_of("ended_at", _("failed or skipped"))
    attempts = count_of("retry_count", _("failed attempts"))
    retry = time_of("retry_at", _("next attempt"))

    def described(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        """Mark messages that block others, and pending ones that are blocked or whose destination takes none."""
        using = reader(request)
        pending = [row for row in rows if row.status == MessageStatus.PENDING]
        heads = BlockedAggregate.objects.using(using).in_bulk([row.pk for row in pending], field_name="head_id")
        destinations = {row.aggregate_type for row in pending} if sees_all_stores(request) else ()
        states = DestinationState.objects.using(using).in_bulk(destinations) if destinations else {}
        ordered = {row.aggregate_id for row in pending if row.aggregate_id}
        types = {row.aggregate_type for row in pending}
        # As the unique index has it.
        blocking = BlockedAggregate.objects.using(using).exclude(aggregate_id="")
        blocked = blocking.filter(aggregate_type__in=types, aggregate_id__in=ordered)
        holders = {(each.aggregate_type, each.aggregate_id): each for each in blocked} if ordered else {}
        for row in pending:
            row.head = heads.get(row.pk)
            state = states.get(row.aggregate_type)
            if state is not None and (state.paused or state.outage_since is not None):
                row.held = gettext("destination paused") if state.paused else gettext("destination down")
            holder = holders.get((row.aggregate_type, row.aggregate_id))
            if holder is not None and holder.head_id != row.pk:
                parked = holder.status == str(BlockedAggregate.Status.PARKED)
                said = gettext("behind #%(id)s, parked") if parked else gettext("behind #%(id)s, which is tried again")
                row.held = said % {"id": holder.head_id}
        return super().described(rows, request)

    def matches(self, request: HttpRequest, term: str) -> Q:
        """Match the number, UUID or aggregate ID, whichever is possible."""
        # Messages of an aggregate: open ones by their index, others among the newest ids.
        rows = Message.objects.using(reader(request)).filter(aggregate_id=term).order_by("-pk")
        is_open = rows.filter(aggregate_type__in=filters.known_destinations(request), status__in=OPEN)
        newest = [
            found.values_list("pk", flat=True)[:_SEARCHED] for found in (is_open, filters.newest_only(request, rows))
        ]
        return Q(pk__in=[*newest[0], *newest[1]]) | id_or_other(term, "message_id")

    def state_of(self, row: Any) -> str:
        """Return the status; "blocked" if a pending message waits for a retry."""
        return "blocked" if getattr(row, "head", None) is not None else str(row.status)

    def line(self, row: Message) -> str:
        return f"{row} · {gettext(row.status)} · {row.aggregate_type} {row.aggregate_id}".rstrip()

    @admin.display(description=_("status"))
    def state(self, message: Message) -> SafeString:
        """Show the status as a badge."""
        return badge(message.status, _BADGES[message.status])

    @admin.display(description=_("status"))
    def progress(self, message: Any) -> SafeString:
        """Show the status, and below its retries, its error, and why its destination takes none."""
        head = getattr(message, "head", None)
        error = (head.error if head else message.last_error) if message.status in OPEN else ""
        held = getattr(message, "held", "")
        return below(self.state(message), retries(message.retry_count), Truncator(error).chars(120), held)

    @admin.display(description=_("destination"))
    def to(self, message: Message) -> SafeString:
        """Name the destination, and below the event and the aggregate."""
        return below(message.aggregate_type, message.event, message.aggregate_id)

    @admin.display(description=_("written"))
    def age(self, message: Message) -> SafeString:
        """Show when the message was written, and below when it was sent."""
        now = now_of(message)
        sent = format_html(gettext("sent {}"), ago(message.sent_at, now)) if message.sent_at else ""
        return format_html("{}<small>{}</small>", ago(message.created_at, now), sent)

    @admin.display(description=_("delivery"))
    def delivery(self, message: Message) -> SafeString | str:
        """Show whether the message can be sent; link to the message that blocks it."""
        using, sees_all = message._state.db or conf.reader_database, _is_for_operators(message)
        page = message_page(message, using=using, sees_all=sees_all)
        return page.delivery if page.blocked_by is None else self.link(Message, page.blocked_by, page.delivery)


class BlockedAggregateAdmin(DestinationLinkAdmin):
    """Admin of blocked aggregates, last blocked first, with the message that blocks each."""

    part = "outbox"
    empty_hint = _("An aggregate is blocked while its next message cannot be published.")
    has_rows_of_stores = True
    list_display = ("to", "state", "code", "head", "blocked", "attempt")
    list_display_links = ("to",)
    list_filter = ("status",)
    search_fields = ("aggregate_id__exact", "head_id__exact")
    search_help_text = _("The full ID of an aggregate, or the number of the message that blocks it")
    fields = ("state", "head", "code", "error", "destination", "aggregate_id", "store", "start", "attempts", "retry")
    start = time_of("since", _("since"))
    blocked = age_of("since", _("since"))
    attempts = count_of("retry_count", _("failed attempts"))
    retry = time_of("retry_at", _("next attempt"))
    actions = actions_of(BlockedAggregate)

    @admin.display(description=_("status"))
    def state(self, row: Any) -> SafeString:
        """Show the status as a badge."""
        return badge(row.get_status_display(), "bad" if row.status == str(BlockedAggregate.Status.PARKED) else "warn")

    @admin.display(description=_("destination"))
    def to(self, row: BlockedAggregate) -> SafeString:
        """Name the destination, and below the aggregate."""
        return below(row.aggregate_type, row.aggregate_id)

    @admin.display(description=_("retry"))
    def attempt(self, row: BlockedAggregate) -> SafeString:
        """Show when the message is retried, and below how often it was."""
        at = "-" if row.retry_at is None else ago(row.retry_at, now_of(row))
        return below(at, retries(row.retry_count))

    @admin.display(description=_("blocked by"))
    def head(self, row: BlockedAggregate) -> SafeString:
        return self.link(Message, row.head_id, gettext("message %(id)s") % {"id": row.head_id})


class DestinationAdmin(ActionAdmin):
    """Admin of destinations, with their current outages."""

    part = "outbox"
    empty_hint = _("A destination appears with the first message that is sent there.")
    list_display = ("aggregate_type", "progress", "since", "why", "row_actions")
    fields = ("aggregate_type", "state", "pause", "start", "outage_code", "outage", "sent_there")
    sortable_by = ()
    start = time_of("outage_since", _("down since"))
    since = age_of("outage_since", _("down since"))
    list_filter = (filters.DestinationStateFilter,)
    search_fields = ("aggregate_type__exact",)
    ordering = ("aggregate_type",)
    actions = actions_of(DestinationState)

    def state_of(self, row: DestinationState) -> str:
        return "paused" if row.paused else "sending"

    @admin.display(description=_("state"))
    def state(self, row: DestinationState) -> SafeString:
        """Show whether messages are sent."""
        if row.paused:
            return badge("paused", "warn")
        if row.outage_since is None:
            return badge(gettext_noop("no outage"), "good")
        return badge(gettext_noop("down"), "bad")

    @admin.display(description=_("state"))
    def progress(self, row: DestinationState) -> SafeString:
        """Show whether messages are sent, and below who paused the destination."""
        return below(self.state(row), who_paused(row) if row.paused else "")

    @admin.display(description=_("outage"))
    def why(self, row: DestinationState) -> SafeString | str:
        """Show why nothing arrives, and below in words."""
        return below(row.outage_code, row.outage) if row.outage_since else "-"

    @admin.display(description=_("messages"))
    def sent_there(self, row: DestinationState) -> SafeString:
        """Link to the messages that wait for the destination."""
        pending = MessageStatus.PENDING.value
        found = Message.objects.using(row._state.db).filter(aggregate_type=row.pk, status=pending).order_by()
        shown = gettext("Pending messages (%(count)s)") % {"count": counted(found[:COUNTED].count(), COUNTED)}
        return self.link_to_list(Message, shown, destination=row.pk, status__exact=pending)

    @admin.display(description=_("paused"))
    def pause(self, row: DestinationState) -> str:
        """Show who paused the destination, and when."""
        return capfirst(pause_of(row)) if row.paused else "-"


class ReplayAdmin(ReadOnlyAdmin):
    """Admin of replays, newest first."""

    part = "outbox"
    is_internal = True
    empty_hint = _("A replay sends messages again: select messages, and choose the action that sends them again.")
    list_display = ("id", "requested", "requested_by", "reason", "messages")
    fields = ("requested", "requested_by", "reason", "messages", "criteria")
    sortable_by = ()
    requested = time_of("requested_at", _("requested"))


class PartitionAdmin(ReadOnlyAdmin):
    """Admin of the partitions and their owners."""

    part = "outbox"
    is_internal = True
    empty_hint = _("The first relay creates them: python manage.py relay_outbox.")
    list_display = ("partition", "owned_by")
    fields = list_display
    list_display_links = None
    ordering = ("partition",)
    sortable_by = ()

    @admin.display(description=_("owned by"))
    def owned_by(self, row: RelayPartition) -> SafeString | str:
        """Link to the relay that publishes the partition's messages."""
        if row.owner is None:
            return badge(gettext_noop("no relay"), "bad")
        return self.link(Process, row.owner, gettext("relay #%(id)s") % {"id": row.owner})


_INBOX_BADGES = {"enqueued": "good", "rejected": "bad", "retry": "warn", "dismissed": "quiet"}


class InboxList(OrderedList):
    """List with a filter in its links to all messages: without one, it opens on the rejected messages."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.full_result_count = self.result_count
        self.clear_all_filters_qs = InboxAdmin.everything
        if not self.query and self.params == {"status__exact": InboxMessage.Status.REJECTED}:
            self.nothing = gettext("No message is rejected.")
        self.has_active_filters = request.GET.get("status__exact") != "all"


class InboxAdmin(ActionAdmin):
    """Admin of incoming messages, newest first; a message's page shows its raw content and why it was rejected."""

    part = "inbox"
    everything = "?status__exact=all"
    empty_hint = _("Consumers write them: python manage.py consume_queue.")
    list_class = InboxList
    list_display = ("id", "state", "why", "kind", "store", "received", "job_link")
    list_filter = (filters.InboxStatusFilter,)
    search_fields = ("message_id__exact",)
    search_help_text = _("The full ID of a message")
    actions = actions_of(InboxMessage)
    fieldsets = (
        (None, {"fields": ("state", "code", "reason", "job_link", "consumer", "event", "producer", "store")}),
        (None, {"fields": ("shown_raw",)}),
        (_("Times"), {"fields": ("received_at_time", "dismissed", "deliveries")}),
        (_("Details"), {"fields": ("message_id",), "classes": ("collapse",)}),
    )
    help_texts: ClassVar = {"code": _("Why it was rejected")}
    deferred = ("raw",)
    received = age_of("received_at", _("received"))
    received_at_time = time_of("received_at", _("received"))
    dismissed = time_of("ended_at", _("dismissed"))

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Open on the rejected messages, which need an operator."""
        if request.method == "GET" and not request.GET and self.has_view_permission(request):
            return HttpResponseRedirect(f"{request.path}?status__exact={InboxMessage.Status.REJECTED}")
        return super().changelist_view(request, extra_context)

    def state_of(self, row: InboxMessage) -> str:
        return str(row.status)

    @admin.display(description=_("status"))
    def state(self, message: Any) -> SafeString:
        """Show the status as a badge."""
        return badge(message.get_status_display(), _INBOX_BADGES[message.status])

    @admin.display(description=_("why"))
    def why(self, message: InboxMessage) -> SafeString | str:
        """Show the code of the reason for the rejection, and below its text."""
        reason = Truncator(message.reason).chars(120)
        return below(message.code, reason) if message.code or reason else "-"

    @admin.display(description=_("event"))
    def kind(self, message: InboxMessage) -> SafeString:
        """Show the event, and below the consumer that read it."""
        return below(message.event or "-", message.consumer)

    @admin.display(description=_("raw message"))
    def shown_raw(self, message: InboxMessage) -> SafeString | str:
        """Show the message as received; only rejected ones are kept."""
        return large(shown_text(message.raw), whole=is_whole(message)) if message.raw else "-"
