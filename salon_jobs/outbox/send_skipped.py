"""Sends skipped messages after all, under their own ids: they were never sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from django.db import transaction

from salon_jobs.conf import settings as conf
from salon_jobs.core.messages import MessageStatus, OperatedMessage
from salon_jobs.models import Message
from salon_jobs.outbox import wake
from salon_jobs.outbox.blocked import Key, LockedMessage, lock_holders, lock_messages, put_in_front
from salon_jobs.outbox.operate import BATCH, why_not


def send_skipped_messages(ids: Iterable[int], *, using: str | None = None) -> list[OperatedMessage]:
    """Make skipped messages pending again. Role: operator, worker.

    They arrive in the order of their ids, before the later messages of their aggregate that are not sent yet. Those of
    a blocked aggregate stay skipped: they would pass the message that blocks it, or be passed by the ones behind it.
    Each transaction changes all messages of some aggregates, about a thousand. ``using`` None is the alias of the job
    tables. Results come in the order of the ids.
    """
    alias, wanted = using or conf.database, list(ids)
    refused = dict.fromkeys(wanted, "")
    for batch in _batches_of_aggregates(sorted(set(wanted)), alias):
        with transaction.atomic(using=alias):
            sent = _send(batch, refused, alias)
            if sent:
                wake.operator_changed(using=alias)
        for message_id in sent:
            del refused[message_id]
    unexplained = [message_id for message_id, why in refused.items() if not why]
    refused |= why_not(unexplained, "only skipped messages can be sent", alias)
    return [OperatedMessage(each, each not in refused, refused.get(each, "")) for each in wanted]


def _batches_of_aggregates(ids: Sequence[int], using: str) -> Iterator[list[int]]:
    """Yield batches that split no aggregate.

    The relay catches an aggregate up from one message on, and must find all later ones there. Ones that come while it
    does could be passed over.
    """
    groups: dict[tuple[str, str] | int, list[int]] = {}
    messages = Message.objects.using(using)
    for start in range(0, len(ids), BATCH):
        found = messages.filter(pk__in=ids[start : start + BATCH]).order_by("pk")
        for message_id, kind, aggregate_id in found.values_list("pk", "aggregate_type", "aggregate_id"):
            groups.setdefault((kind, aggregate_id) if aggregate_id else message_id, []).append(message_id)
    batch: list[int] = []
    for group in groups.values():
        batch += group
        if len(batch) >= BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _send(ids: Sequence[int], refused: dict[int, str], using: str) -> list[int]:
    """Send one batch in the caller's transaction; return which, and note in ``refused`` what blocks the others."""
    skipped = [message for message in lock_messages(ids, using) if message.status == MessageStatus.SKIPPED]
    holders = lock_holders(skipped, using)
    sent: list[int] = []
    fronts: dict[Key, LockedMessage] = {}
    for message in skipped:
        if holder := holders.get(message.key):
            refused[message.id] = (
                f"message {holder.head_id} holds its aggregate back; send this one when that one is sent or skipped"
            )
            continue
        sent.append(message.id)
        fronts.setdefault(message.key, message)
    Message.objects.using(using).filter(pk__in=sent).update(
        status=MessageStatus.PENDING, retry_count=0, retry_at=None, ended_at=None, last_error=""
    )
    put_in_front(fronts, holders, using)
    return sent
