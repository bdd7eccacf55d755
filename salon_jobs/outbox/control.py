"""Operators' changes to messages and destinations: retry, skip, unblock, pause, resume."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from uuid import UUID

from django.db import connections, transaction
from django.db.models import Q
from django.db.models.functions import Now

from salon_jobs.conf import settings as conf
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.core.records import ActionResult, MessageStatus
from salon_jobs.models import BlockedAggregate, DestinationState, Message
from salon_jobs.outbox import emit

Key = tuple[str, str] | int


@dataclass(frozen=True, slots=True)
class LockedMessage:
    """What operators need to know about one locked message, whatever its status."""

    id: int
    aggregate_type: str
    aggregate_id: str
    partition: int
    store_id: UUID | None
    status: str

    @property
    def key(self) -> Key:
        """Unit of ordering: the aggregate, or the message itself if it has none."""
        return (self.aggregate_type, self.aggregate_id) if self.aggregate_id else self.id


@dataclass(frozen=True, slots=True)
class Holder:
    """Row that blocks one aggregate, or one message without an aggregate."""

    id: int
    head_id: int
    aggregate_type: str
    aggregate_id: str
    status: str

    @property
    def key(self) -> Key:
        """Unit of ordering that is blocked."""
        return (self.aggregate_type, self.aggregate_id) if self.aggregate_id else self.head_id


def lock_messages(ids: Sequence[int], using: str) -> list[LockedMessage]:
    """Lock and return messages by ID, lowest first, as they are once locked."""
    rows = Message.objects.using(using).select_for_update().filter(pk__in=ids).order_by("pk")
    fields = ("id", "aggregate_type", "aggregate_id", "partition", "store_id", "status")
    return [LockedMessage(*row) for row in rows.values_list(*fields)]


def lock_holders(messages: Sequence[LockedMessage], using: str) -> dict[Key, Holder]:
    """Lock and return the rows that block the messages' aggregates."""
    ordered = Q(
        aggregate_type__in={message.aggregate_type for message in messages},
        aggregate_id__in={message.aggregate_id for message in messages if message.aggregate_id},
    )
    by_itself = Q(head_id__in=[message.id for message in messages])
    rows = BlockedAggregate.objects.using(using).select_for_update().filter(ordered | by_itself).order_by("pk")
    fields = ("id", "head_id", "aggregate_type", "aggregate_id", "status")
    holders = [Holder(*row) for row in rows.values_list(*fields)]
    return {holder.key: holder for holder in holders}


def put_in_front(fronts: dict[Key, LockedMessage], holders: dict[Key, Holder], using: str) -> None:
    """Have the relay send each message next in its aggregate, since its cursor is already past them."""
    blocked = BlockedAggregate.objects.using(using)
    waiting = BlockedAggregate.Status.WAITING
    for key, message in fronts.items():
        holder = holders.get(key)
        if holder is not None and message.id <= holder.head_id:
            blocked.filter(pk=holder.id).update(head_id=message.id, status=waiting, retry_at=Now(), retry_count=0)
    blocked.bulk_create(
        [
            BlockedAggregate(
                aggregate_type=message.aggregate_type,
                aggregate_id=message.aggregate_id,
                partition=message.partition,
                head_id=message.id,
                store_id=message.store_id,
                status=waiting,
                retry_at=Now(),
            )
            for key, message in fronts.items()
            if key not in holders
        ],
        ignore_conflicts=True,  # a relay blocked the aggregate in the meantime
    )


BATCH: Final = 1000
_OPEN: Final = (MessageStatus.PENDING, MessageStatus.FAILED)
_T = TypeVar("_T")
_PARKED: Final[str] = BlockedAggregate.Status.PARKED.value
_GONE: Final = "there is no such message, or you may not see it"


def retry_messages(ids: Iterable[int], *, using: str | None = None) -> list[ActionResult[int]]:
    """Retry failed messages, and retry waiting messages now. Role: operator, worker.

    A failed message becomes pending with all its attempts restored and goes first in its aggregate; later messages
    follow it. A message whose aggregate is blocked by another message stays as it is, and its result names that
    message. ``using`` defaults to the alias of the job tables. Results are in the order of the IDs.
    """
    return _in_batches(_retry, ids, using)


def skip_messages(ids: Iterable[int], *, using: str | None = None) -> list[ActionResult[int]]:
    """Mark pending and failed messages as skipped: they are never sent and no longer block their aggregate.

    Role: operator, worker; web, inside ``tenant_context``, for messages of the current store. A message that a relay is
    sending at this moment may still arrive. ``using`` and results are as in ``retry_messages``.
    """
    return _in_batches(_skip, ids, using)


def unpark(
    aggregates: Iterable[tuple[str, str]] = (), *, aggregate_type: str | None = None, using: str | None = None
) -> list[ActionResult[tuple[str, str]]]:
    """Retry at once the message that blocks each aggregate; the others follow in order.

    ``aggregates`` are pairs of aggregate type and aggregate ID. Alternatively, ``aggregate_type`` selects every blocked
    aggregate of one destination, including messages without an aggregate. If the blocking message was pruned or has
    ended, the aggregate simply continues. Role: operator, worker. Raises OptionInvalid unless exactly one of the two is
    given.
    """
    named = list(dict.fromkeys(aggregates))
    if bool(named) == bool(aggregate_type):
        raise OptionInvalid("name the aggregates, or aggregate_type for all of a destination")
    alias = using or conf.database
    heads: dict[int, tuple[str, str]] = {}
    for batch in _batches(named):
        pairs = set(batch)
        types, wanted = {pair[0] for pair in pairs}, {pair[1] for pair in pairs if pair[1]}
        found = BlockedAggregate.objects.using(alias).filter(aggregate_type__in=types, aggregate_id__in=wanted)
        rows = found.values_list("head_id", "aggregate_type", "aggregate_id")
        heads |= {head: (kind, one) for head, kind, one in rows if (kind, one) in pairs}
    if aggregate_type:
        every = BlockedAggregate.objects.using(alias).filter(aggregate_type=aggregate_type).order_by("head_id")
        heads = {head: (aggregate_type, one) for head, one in every.values_list("head_id", "aggregate_id")}
    results = [ActionResult(heads[each.id], each.changed, each.detail) for each in retry_heads(heads, using=alias)]
    blocked = set(heads.values())
    return [*results, *(ActionResult(pair, False, "it is not blocked") for pair in named if pair not in blocked)]


def retry_heads(heads: Iterable[int], *, using: str | None = None) -> list[ActionResult[int]]:
    """Unpark aggregates, as ``unpark`` does, named by the messages that block them."""
    return _in_batches(_retry_or_let_go, heads, using)


def why_not(ids: Sequence[int], allowed: str, using: str) -> dict[int, str]:
    """Return for each message which status it has instead of ``allowed``."""
    statuses = dict(Message.objects.using(using).filter(pk__in=ids).values_list("pk", "status"))
    return {id_: f"it is {statuses[id_]}; {allowed}" if id_ in statuses else _GONE for id_ in ids}


def _in_batches(
    change: Callable[[Sequence[int], str], dict[int, str]], ids: Iterable[int], using: str | None
) -> list[ActionResult[int]]:
    """Change all messages, lowest IDs first, so that a blocking message precedes the rest of its aggregate."""
    alias, wanted = using or conf.database, list(ids)
    refused: dict[int, str] = {}
    for batch in _batches(sorted(set(wanted))):
        with transaction.atomic(using=alias):
            refusals = change(batch, alias)
            if len(refusals) < len(batch):
                emit.operator_changed(using=alias)
        refused |= refusals
    return [ActionResult(id_, id_ not in refused, refused.get(id_, "")) for id_ in wanted]


def _batches(everything: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (everything[start : start + BATCH] for start in range(0, len(everything), BATCH))


def _retry(ids: Sequence[int], using: str) -> dict[int, str]:
    """Retry one batch in the caller's transaction; return the reason for each message that was refused, by ID."""
    messages = lock_messages(ids, using)
    holders = lock_holders(messages, using)
    refused = _not_found(ids, messages)
    failed: list[int] = []
    at_once: list[int] = []
    fronts: dict[Key, LockedMessage] = {}
    for message in messages:
        holder = holders.get(message.key)
        is_head = holder is not None and holder.head_id == message.id
        if message.status == MessageStatus.FAILED:
            if holder and not is_head and holder.status == _PARKED and holder.head_id not in failed:
                refused[message.id] = f"message {holder.head_id} holds its aggregate back; retry or skip that one first"
                continue
            failed.append(message.id)
            fronts.setdefault(message.key, message)
        elif message.status != MessageStatus.PENDING:
            refused[message.id] = f"it is {message.status}; only failed and waiting messages can be retried"
        elif holder is None:
            refused[message.id] = "it is pending; the relay sends it by itself"
        elif not is_head:
            refused[message.id] = f"it waits behind message {holder.head_id}; retry or skip that one"
        else:
            at_once.append(message.id)
    Message.objects.using(using).filter(pk__in=failed).update(
        status=MessageStatus.PENDING, retry_count=0, retry_at=None, ended_at=None
    )
    put_in_front(fronts, holders, using)
    BlockedAggregate.objects.using(using).filter(head_id__in=at_once).update(
        status=BlockedAggregate.Status.WAITING, retry_at=Now()
    )
    return refused


def _skip(ids: Sequence[int], using: str) -> dict[int, str]:
    allowed = "only pending and failed messages can be skipped"
    if not _may_update(using):
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT salon_jobs_skip_messages(%s::bigint[])", [list(ids)])
            skipped = {row[0] for row in cursor.fetchall()}
        return why_not([id_ for id_ in ids if id_ not in skipped], allowed, using)
    messages = lock_messages(ids, using)
    open_ones = [message.id for message in messages if message.status in _OPEN]
    Message.objects.using(using).filter(pk__in=open_ones).update(
        status=MessageStatus.SKIPPED, ended_at=Now(), retry_at=None
    )
    BlockedAggregate.objects.using(using).filter(head_id__in=open_ones).delete()
    refused = {m.id: f"it is {m.status}; {allowed}" for m in messages if m.status not in _OPEN}
    return refused | _not_found(ids, messages)


def _retry_or_let_go(heads: Sequence[int], using: str) -> dict[int, str]:
    """Retry the heads; release the aggregate of any head that is gone or has ended."""
    refused = _retry(heads, using)
    open_ones = Message.objects.using(using).filter(pk__in=refused, status__in=_OPEN).values_list("pk", flat=True)
    over = set(refused) - set(open_ones)
    BlockedAggregate.objects.using(using).filter(head_id__in=over).delete()
    return {head: why for head, why in refused.items() if head not in over}


def _not_found(ids: Sequence[int], messages: Sequence[LockedMessage]) -> dict[int, str]:
    found = {message.id for message in messages}
    return {id_: _GONE for id_ in ids if id_ not in found}


def _may_update(using: str) -> bool:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT has_table_privilege('salon_jobs_message', 'UPDATE')")
        row = cursor.fetchone()
    return row is not None and bool(row[0])


def pause_destination(aggregate_type: str, *, using: str | None = None) -> None:
    """Stop sending to one destination until it is resumed; relays follow within a second. Role: operator, worker.

    Messages are still written, and wait. Raises MessageInvalid for an invalid name.
    """
    _set_paused(aggregate_type, True, using)


def resume_destination(aggregate_type: str, *, using: str | None = None) -> None:
    """Send a paused destination its waiting messages again, in order. Role and errors as in ``pause_destination``."""
    _set_paused(aggregate_type, False, using)


def _set_paused(aggregate_type: str, paused: bool, using: str | None) -> None:
    parse_destination(aggregate_type)
    alias = using or conf.database
    with transaction.atomic(using=alias):
        DestinationState.objects.using(alias).bulk_create(
            [DestinationState(aggregate_type=aggregate_type, paused=paused)],
            update_conflicts=True,
            unique_fields=["aggregate_type"],
            update_fields=["paused"],
        )
        emit.operator_changed(using=alias)
