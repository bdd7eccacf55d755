"""Operators' changes to messages and destinations: retry, skip, unblock, pause, resume."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from salon_jobs.conf import settings as conf
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.core.records import ActionResult, MessageStatus
from salon_jobs.db import statements
from salon_jobs.models import BlockedAggregate, DestinationState, Message
from salon_jobs.outbox import emit

Key = tuple[str, str] | int
BATCH: Final = 1000
_OPEN: Final = (MessageStatus.PENDING, MessageStatus.FAILED)
_PARKED: Final[str] = BlockedAggregate.Status.PARKED.value
_T = TypeVar("_T")
_GONE: Final = "there is no such message, or you may not see it"


def key_of(row: Message | BlockedAggregate) -> Key:
    """Return the unit of ordering: the aggregate, or the message itself if it has none."""
    if row.aggregate_id:
        return row.aggregate_type, row.aggregate_id
    return row.head_id if isinstance(row, BlockedAggregate) else row.pk


def lock_messages(ids: Sequence[int], using: str) -> list[Message]:
    """Lock and return messages by ID, lowest first, as they are once locked."""
    rows = Message.objects.using(using).select_for_update().filter(pk__in=ids).order_by("pk")
    return list(rows.only("aggregate_type", "aggregate_id", "partition", "store_id", "status"))


def lock_holders(messages: Sequence[Message], using: str) -> dict[Key, BlockedAggregate]:
    """Lock and return the rows that block the messages' aggregates."""
    ordered = Q(
        aggregate_type__in={message.aggregate_type for message in messages},
        aggregate_id__in={message.aggregate_id for message in messages if message.aggregate_id},
    )
    by_itself = Q(head_id__in=[message.pk for message in messages])
    rows = BlockedAggregate.objects.using(using).select_for_update().filter(ordered | by_itself).order_by("pk")
    return {key_of(row): row for row in rows}


def put_in_front(fronts: dict[Key, Message], holders: dict[Key, BlockedAggregate], using: str) -> None:
    """Have the relay send each message next in its aggregate, since its cursor is already past them."""
    blocked = BlockedAggregate.objects.using(using)
    waiting = BlockedAggregate.Status.WAITING
    for key, message in fronts.items():
        holder = holders.get(key)
        if holder is not None and message.pk <= holder.head_id:
            blocked.filter(pk=holder.pk).update(head_id=message.pk, status=waiting, retry_at=Now(), retry_count=0)
    blocked.bulk_create(
        [
            BlockedAggregate(
                aggregate_type=message.aggregate_type,
                aggregate_id=message.aggregate_id,
                partition=message.partition,
                head_id=message.pk,
                store_id=message.store_id,
                status=waiting,
                retry_at=Now(),
            )
            for key, message in fronts.items()
            if key not in holders
        ],
        ignore_conflicts=True,  # a relay blocked the aggregate in the meantime
    )


def retry_messages(ids: Iterable[int], *, using: str | None = None) -> list[ActionResult[int]]:
    """Retry failed messages, and retry waiting messages now. Role: operator, worker.

    A failed message becomes pending with all its attempts restored and goes first in its aggregate; later messages
    follow it. A message whose aggregate is blocked by another message stays as it is, and its result names that
    message. ``using`` defaults to the alias of the job tables. Results are in the order of the IDs.
    """
    return change_in_batches(_retry, ids, using)


def skip_messages(ids: Iterable[int], *, using: str | None = None) -> list[ActionResult[int]]:
    """Mark pending and failed messages as skipped: they are never sent and no longer block their aggregate.

    Role: operator, worker; web, inside ``tenant_context``, for messages of the current store. A message that a relay is
    sending at this moment may still arrive. ``using`` and results are as in ``retry_messages``.
    """
    return change_in_batches(_skip, ids, using)


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
        raise OptionInvalid("pass aggregates, or aggregate_type for all of a destination")
    alias = using or conf.database
    rows = BlockedAggregate.objects.using(alias).order_by("head_id")
    heads: dict[int, tuple[str, str]] = {}
    if aggregate_type:
        heads = {row.head_id: (aggregate_type, row.aggregate_id) for row in rows.filter(aggregate_type=aggregate_type)}
    for batch in batches([pair for pair in named if pair[1]]):
        pairs = set(batch)
        types, ids = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
        for row in rows.filter(aggregate_type__in=types, aggregate_id__in=ids):
            if (pair := (row.aggregate_type, row.aggregate_id)) in pairs:
                heads[row.head_id] = pair
    results = [ActionResult(heads[each.id], each.changed, each.detail) for each in retry_heads(heads, using=alias)]
    blocked = set(heads.values())
    return [*results, *(ActionResult(pair, False, "it is not blocked") for pair in named if pair not in blocked)]


def retry_heads(heads: Iterable[int], *, using: str | None = None) -> list[ActionResult[int]]:
    """Unpark aggregates, as ``unpark`` does, named by the messages that block them."""
    return change_in_batches(_retry_or_release, heads, using)


def why_not(ids: Iterable[int], allowed: str, using: str) -> dict[int, str]:
    """Return for each message which status it has instead of ``allowed``."""
    statuses = dict(Message.objects.using(using).filter(pk__in=ids).values_list("pk", "status"))
    return {id_: f"it is {statuses[id_]}; {allowed}" if id_ in statuses else _GONE for id_ in ids}


def batches(rows: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (rows[start : start + BATCH] for start in range(0, len(rows), BATCH))


def change_in_batches(
    change: Callable[[Sequence[int], str], dict[int, str]],
    ids: Iterable[int],
    using: str | None,
    *,
    split: Callable[[Sequence[int], str], Iterable[Sequence[int]]] = lambda ids, using: batches(ids),
) -> list[ActionResult[int]]:
    """Change all messages, lowest IDs first, so that a blocking message precedes the rest of its aggregate.

    ``change`` changes one batch in a transaction; it returns, by ID, why messages were refused.
    """
    alias, wanted = using or conf.database, list(ids)
    refused: dict[int, str] = {}
    for batch in split(sorted(set(wanted)), alias):
        with transaction.atomic(using=alias):
            refusals = change(batch, alias)
            if len(refusals) < len(batch):
                emit.operator_changed(using=alias)
        refused |= refusals
    return [ActionResult(id_, id_ not in refused, refused.get(id_, "")) for id_ in wanted]


def _retry(ids: Sequence[int], using: str) -> dict[int, str]:
    messages = lock_messages(ids, using)
    holders = lock_holders(messages, using)
    refused = dict.fromkeys(set(ids) - {message.pk for message in messages}, _GONE)
    failed: list[int] = []
    at_once: list[int] = []
    fronts: dict[Key, Message] = {}
    for message in messages:
        holder = holders.get(key_of(message))
        is_head = holder is not None and holder.head_id == message.pk
        if message.status == MessageStatus.FAILED:
            if holder and not is_head and holder.status == _PARKED and holder.head_id not in failed:
                refused[message.pk] = f"message {holder.head_id} blocks its aggregate; retry or skip that one first"
                continue
            failed.append(message.pk)
            fronts.setdefault(key_of(message), message)
        elif message.status != MessageStatus.PENDING:
            refused[message.pk] = f"it is {message.status}; only failed and waiting messages can be retried"
        elif holder is None:
            refused[message.pk] = "it is pending; the relay will send it"
        elif not is_head:
            refused[message.pk] = f"message {holder.head_id} blocks its aggregate; retry or skip that one"
        else:
            at_once.append(message.pk)
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
    [(may_update,)] = statements.rows("may_update_messages", using=using)
    if not may_update:
        skipped_rows = statements.rows("skip_messages", {"ids": list(ids)}, using=using)
        return why_not(set(ids) - {row[0] for row in skipped_rows}, allowed, using)
    skipped = [message.pk for message in lock_messages(ids, using) if message.status in _OPEN]
    changes = {"status": MessageStatus.SKIPPED, "ended_at": Now(), "retry_at": None}
    Message.objects.using(using).filter(pk__in=skipped).update(**changes)
    BlockedAggregate.objects.using(using).filter(head_id__in=skipped).delete()
    return why_not(set(ids) - set(skipped), allowed, using)


def _retry_or_release(heads: Sequence[int], using: str) -> dict[int, str]:
    """Retry the heads; release the aggregate of any head that is gone or has ended."""
    refused = _retry(heads, using)
    still_open = Message.objects.using(using).filter(pk__in=refused, status__in=_OPEN).values_list("pk", flat=True)
    ended = set(refused) - set(still_open)
    BlockedAggregate.objects.using(using).filter(head_id__in=ended).delete()
    return {head: why for head, why in refused.items() if head not in ended}


def pause_destination(aggregate_type: str, *, by: str = "", using: str | None = None) -> None:
    """Stop sending to one destination until it is resumed; relays follow within a second. Role: operator, worker.

    Messages are still written, and wait. ``by`` says who pauses it; of a destination that is paused already, the first
    one stays. Raises MessageInvalid for an invalid name, OptionInvalid for ``by`` longer than 255 characters.
    """
    if len(by) > 255 or "\0" in by:
        raise OptionInvalid("by must be a string of at most 255 characters, without NUL")
    _set_paused(aggregate_type, True, by, using)


def resume_destination(aggregate_type: str, *, using: str | None = None) -> None:
    """Send a paused destination its waiting messages again, in order. Role and errors as in ``pause_destination``."""
    _set_paused(aggregate_type, False, "", using)


def _set_paused(aggregate_type: str, paused: bool, by: str, using: str | None) -> None:
    parse_destination(aggregate_type)
    alias = using or conf.database
    with transaction.atomic(using=alias):
        rows = DestinationState.objects.using(alias)
        rows.bulk_create([DestinationState(aggregate_type=aggregate_type)], ignore_conflicts=True)
        changed = rows.filter(pk=aggregate_type).exclude(paused=paused)
        changed.update(paused=paused, paused_at=Now() if paused else None, paused_by=by)
        emit.operator_changed(using=alias)
