"""Changes messages by an operator's hand: retry, skip, unpark; a thousand at a time, each with its result.

Rows are locked in the order messages by id, then blocked aggregates by id. Each batch is a transaction (a savepoint
inside yours), and wakes the relays by a notification of that transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from django.db import connections, transaction
from django.db.models.functions import Now

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.core.messages import MessageStatus, OperatedMessage
from salon_jobs.models import BlockedAggregate, Message
from salon_jobs.outbox import wake
from salon_jobs.outbox.blocked import Key, LockedMessage, lock_holders, lock_messages, put_in_front

BATCH: Final = 1000
_OPEN: Final = (MessageStatus.PENDING, MessageStatus.FAILED)
_T = TypeVar("_T")
_PARKED: Final[str] = BlockedAggregate.Status.PARKED.value
_GONE: Final = "there is no such message, or you may not see it"


@dataclass(frozen=True, slots=True)
class OperatedAggregate:
    """Says what became of one blocked aggregate: unparked, or why not."""

    aggregate_type: str
    aggregate_id: str
    changed: bool
    detail: str = ""


def retry_messages(ids: Iterable[int], *, using: str | None = None) -> list[OperatedMessage]:
    """Have failed messages sent again, and those that wait for a retry sent now. Role: operator, worker.

    A failed one is pending again with all its tries, and the next of its aggregate; the later ones of that aggregate
    follow it. One of an aggregate that another message holds back stays as it is, and says which. ``using`` None is
    the alias of the job tables. Results come in the order of the ids.
    """
    return _in_batches(_retry, ids, using)


def skip_messages(ids: Iterable[int], *, using: str | None = None) -> list[OperatedMessage]:
    """Mark pending and failed messages as skipped: they are never sent, and what they held back goes on.

    Role: operator, worker; web, inside ``tenant_context``, for its current store's. One that a relay is sending at this
    moment may arrive all the same. ``using`` and results as ``retry_messages``.
    """
    return _in_batches(_skip, ids, using)


def unpark(
    aggregates: Iterable[tuple[str, str]] = (), *, aggregate_type: str | None = None, using: str | None = None
) -> list[OperatedAggregate]:
    """Try the message again that holds each blocked aggregate back, at once; the others of it follow in order.

    ``aggregates`` are pairs of aggregate type and aggregate id; or all of one ``aggregate_type``, messages without an
    aggregate among them. An aggregate whose message was pruned or ended otherwise just goes on. Role: operator, worker.
    Raises OptionInvalid unless exactly one of the two is given.
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
    results = [
        OperatedAggregate(*heads[each.id], each.changed, each.detail) for each in retry_heads(heads, using=alias)
    ]
    blocked = set(heads.values())
    return [*results, *(OperatedAggregate(*pair, False, "it is not blocked") for pair in named if pair not in blocked)]


def retry_heads(heads: Iterable[int], *, using: str | None = None) -> list[OperatedMessage]:
    """Do what ``unpark`` does, of aggregates named by the messages that hold them back."""
    return _in_batches(_retry_or_let_go, heads, using)


def why_not(ids: Sequence[int], allowed: str, using: str) -> dict[int, str]:
    """Say of each message what it is instead of ``allowed``."""
    statuses = dict(Message.objects.using(using).filter(pk__in=ids).values_list("pk", "status"))
    return {id_: f"it is {statuses[id_]}; {allowed}" if id_ in statuses else _GONE for id_ in ids}


def _in_batches(
    change: Callable[[Sequence[int], str], dict[int, str]], ids: Iterable[int], using: str | None
) -> list[OperatedMessage]:
    """Change all, the lowest ids first: of an aggregate, the message that holds the others comes before them."""
    alias, wanted = using or conf.database, list(ids)
    refused: dict[int, str] = {}
    for batch in _batches(sorted(set(wanted))):
        with transaction.atomic(using=alias):
            refusals = change(batch, alias)
            if len(refusals) < len(batch):
                wake.operator_changed(using=alias)
        refused |= refusals
    return [OperatedMessage(id_, id_ not in refused, refused.get(id_, "")) for id_ in wanted]


def _batches(everything: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (everything[start : start + BATCH] for start in range(0, len(everything), BATCH))


def _retry(ids: Sequence[int], using: str) -> dict[int, str]:
    """Retry one batch in the caller's transaction; returns why not, by the ids of those that were not."""
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
    """Retry the heads; where the message is there no more or has ended, nothing holds the aggregate back."""
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
