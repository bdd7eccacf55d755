"""Locks messages and what blocks their aggregates, and puts messages in front of them, for operators.

All of it in the caller's transaction. Rows are locked in the order messages by id, then blocked aggregates by id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Q
from django.db.models.functions import Now

from salon_jobs.models import BlockedAggregate, Message

Key = tuple[str, str] | int


@dataclass(frozen=True, slots=True)
class LockedMessage:
    """Is what operators need to know of one message, of whatever status."""

    id: int
    aggregate_type: str
    aggregate_id: str
    partition: int
    store_id: UUID | None
    status: str

    @property
    def key(self) -> Key:
        """What keeps an order: its aggregate, or itself."""
        return (self.aggregate_type, self.aggregate_id) if self.aggregate_id else self.id


@dataclass(frozen=True, slots=True)
class Holder:
    """Is what blocks one aggregate, or one message of none."""

    id: int
    head_id: int
    aggregate_type: str
    aggregate_id: str
    status: str

    @property
    def key(self) -> Key:
        """What it holds back."""
        return (self.aggregate_type, self.aggregate_id) if self.aggregate_id else self.head_id


def lock_messages(ids: Sequence[int], using: str) -> list[LockedMessage]:
    """Lock and return messages by their ids, the lowest first, as they are when the lock is had."""
    rows = Message.objects.using(using).select_for_update().filter(pk__in=ids).order_by("pk")
    fields = ("id", "aggregate_type", "aggregate_id", "partition", "store_id", "status")
    return [LockedMessage(*row) for row in rows.values_list(*fields)]


def lock_holders(messages: Sequence[LockedMessage], using: str) -> dict[Key, Holder]:
    """Lock and return what blocks the messages' aggregates."""
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
    """Have the relay look at each of these messages now, before the rest of its aggregate: its cursor is past them."""
    blocked = BlockedAggregate.objects.using(using)
    waiting = BlockedAggregate.Status.WAITING
    for key, message in fronts.items():
        holder = holders.get(key)
        if holder is not None and message.id <= holder.head_id:
            blocked.filter(pk=holder.id).update(head_id=message.id, status=waiting, retry_at=Now(), retry_count=0)
    blocked.bulk_create(
        [
            BlockedAggregate(
                aggregate_type=message.aggregate_type, aggregate_id=message.aggregate_id, partition=message.partition,
                head_id=message.id, store_id=message.store_id, status=waiting, retry_at=Now(),
            )
            for key, message in fronts.items() if key not in holders
        ],
        ignore_conflicts=True,  # a relay has found that it must wait meanwhile
    )  # fmt: skip
