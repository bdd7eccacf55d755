"""Messages on their way out and in: partitions, the gate, destinations, and messages that wait for an operator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Final

from django.db.models import Q, Subquery
from django.db.models.functions import Coalesce
from django.utils.text import capfirst
from django.utils.translation import gettext

from salon_jobs.core.records import PARTITIONS, MessageStatus, StoreId
from salon_jobs.db import statements
from salon_jobs.models import BlockedAggregate, DestinationState, Message, RelayPartition
from salon_jobs.outbox.queries import GateState, gate_state
from salon_jobs.words import instant, pause_of

OPEN: Final = (MessageStatus.PENDING, MessageStatus.FAILED)
# Counts of messages that wait for an operator stop here.
COUNTED: Final = 10_001


@dataclass(frozen=True, slots=True)
class DestinationAtWork:
    """One destination: its waiting messages, up to 1,001, the age of the oldest, and the current outage."""

    aggregate_type: str
    paused: bool
    paused_by: str
    paused_at: datetime | None
    outage_since: datetime | None
    outage_code: str
    outage: str
    waiting: int
    oldest_s: float | None

    @property
    def pause(self) -> str:
        return pause_of(self)


@dataclass(frozen=True, slots=True)
class ParkedAggregate:
    """One aggregate that waits for an operator."""

    aggregate_type: str
    aggregate_id: str
    head_id: int
    store: StoreId | None
    since: datetime
    code: str

    @property
    def name(self) -> str:
        """Its ID, or its message if it has none."""
        return self.aggregate_id or gettext("message %(id)s") % {"id": self.head_id}


@dataclass(frozen=True, slots=True)
class Relaying:
    """Relays: partitions by owning process, partitions without an owner, the gate and the destinations."""

    partitions: dict[int, tuple[int, ...]]
    unowned: tuple[int, ...]
    gate: GateState
    destinations: tuple[DestinationAtWork, ...]


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of what waits for an operator, each up to 10,001, and since when the oldest of these does."""

    failed: int
    rejected: int
    rejected_since: datetime | None
    parked: int
    parked_since: datetime | None


def relaying(*, using: str) -> Relaying:
    """Read the relays in five queries. Role: operator, worker."""
    partitions: dict[int, tuple[int, ...]] = {}
    unowned: list[int] = []
    owners = RelayPartition.objects.using(using).order_by("partition").values_list("partition", "owner")
    for partition, owner in owners:
        if owner is None:
            unowned.append(partition)
        else:
            partitions[owner] = (*partitions.get(owner, ()), partition)
    destinations = statements.rows("destinations_at_work", {"partitions": PARTITIONS}, using=using)
    return Relaying(
        partitions, tuple(unowned), gate_state(using=using), tuple(DestinationAtWork(*row) for row in destinations)
    )


def why_not_sent(destinations: Iterable[str], *, using: str) -> dict[str, str]:
    """Return why nothing is sent to a destination, for those that are paused or down. Role: operator, worker."""
    rows = DestinationState.objects.using(using).filter(pk__in=set(destinations))
    reasons: dict[str, str] = {}
    for state in rows.filter(Q(paused=True) | Q(outage_since__isnull=False)):
        parts: list[str] = []
        if state.paused:
            parts.append(gettext("destination is %(paused)s") % {"paused": pause_of(state)})
        if state.outage_since is not None:
            since = {"time": instant(state.outage_since), "code": state.outage_code}
            parts.append(gettext("destination has been down since %(time)s: %(code)s") % since)
        reasons[state.pk] = " · ".join(parts)
    return reasons


@dataclass(frozen=True)
class MessagePage:
    """Facts of a message that are not in its row. ``holder`` blocks its aggregate, or itself if it belongs to none.

    Readers of one store (not ``sees_all``) do not learn what keeps a destination from taking messages.
    """

    message: Message
    holder: BlockedAggregate | None
    sees_all: bool

    @cached_property
    def waiting(self) -> str:
        """Why the destination of a pending message takes none now; one query, at the first use."""
        name, is_pending = self.message.aggregate_type, self.message.status == MessageStatus.PENDING
        found = why_not_sent([name], using=str(self.message._state.db)) if is_pending and self.sees_all else {}
        return found.get(name, "")

    @property
    def blocked_by(self) -> int | None:
        """The number of another message that blocks it."""
        return None if self.holder is None or self.holder.head_id == self.message.pk else self.holder.head_id

    @property
    def delivery(self) -> str:
        """Whether the message can be sent, or why not."""
        message, holder = self.message, self.holder
        if message.status not in OPEN:
            return gettext("Sent") if message.status == MessageStatus.PUBLISHED else gettext("Will not be sent")
        if holder is None:
            if message.status != MessageStatus.PENDING:
                return gettext("Failed; blocks no other message")
            return str(capfirst(self.waiting or gettext("ready to send")))
        if holder.status == str(BlockedAggregate.Status.PARKED) or holder.retry_at is None:
            until = gettext("parked since %(time)s") % {"time": instant(holder.since)}
        else:
            until = gettext("next attempt at %(time)s") % {"time": instant(holder.retry_at)}
        if holder.head_id != message.pk:
            return gettext("Blocked by message %(id)s, %(until)s") % {"id": holder.head_id, "until": until}
        said = gettext("Blocks later messages of its aggregate; %(until)s")
        return said % {"until": until} if message.aggregate_id else str(capfirst(until))


def message_page(message: Message, *, using: str, sees_all: bool = True) -> MessagePage:
    """Read the facts of a message. Role: operator, worker; web for its store."""
    of, id_ = message.aggregate_type, message.aggregate_id
    rows = BlockedAggregate.objects.using(using)
    blocking = rows.filter(aggregate_type=of, aggregate_id=id_) if id_ else rows.filter(head_id=message.pk)
    return MessagePage(message, blocking.first() if message.status in OPEN else None, sees_all)


def parked(*, using: str) -> tuple[ParkedAggregate, ...]:
    """List the ten aggregates parked last, among the newest 10,000 blocked ones.

    Role: operator, worker; web: its current store's.
    """
    rows = BlockedAggregate.objects.using(using)
    oldest = Coalesce(Subquery(rows.order_by("-pk").values("pk")[9_999:10_000]), 0)
    parked = rows.filter(pk__gte=oldest, status=BlockedAggregate.Status.PARKED).order_by("-pk")
    columns = ("aggregate_type", "aggregate_id", "head_id", "store_id", "since", "code")
    return tuple(ParkedAggregate(*row) for row in parked.values_list(*columns)[:10])


def totals(*, using: str) -> Totals:
    """Count the messages that wait for an operator. One query. Role: operator, worker."""
    [row] = statements.rows("bounded_totals", {"most": COUNTED}, using=using)
    return Totals(*row)
