"""Publishes messages inside a host project's tests: on the caller's connection, in Django's TestCase too, no relay."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.messages import PARTITIONS
from salon_jobs.outbox import store
from salon_jobs.outbox.store import Wanted
from salon_jobs.publishers.base import OutgoingMessage, Unpublished, Verdict
from salon_jobs.publishers.registry import make_publisher

_NO_GATE = 2**63 - 1


@dataclass(frozen=True, slots=True)
class DrainedMessage:
    """Names one message of a drain and what became of it; ``answer`` None: published."""

    message_id: UUID
    aggregate_type: str
    aggregate_id: str
    event: str
    payload: str
    answer: Unpublished | None


def drain_outbox(*, limit: int = 1000) -> list[DrainedMessage]:
    """Publish what is pending, the caller's own transaction's messages too, once; returns them in order.

    By the publishers of the settings (``rn::memory:::…`` keeps them in ``MemoryPublisher.published``). What was not
    published stays pending. Needs a role that may update messages: the worker's, or the tables' owner. Raises
    AssertionError beyond ``limit`` messages.
    """
    drained: list[DrainedMessage] = []
    for aggregate_type in store.message_types():
        wanted = [Wanted(aggregate_type, partition, 0, limit + 1) for partition in range(PARTITIONS)]
        messages = sorted(store.fetch(wanted, _NO_GATE), key=lambda message: message.id)
        if len(drained) + len(messages) > limit:
            raise AssertionError(f"more than {limit} messages are pending; raise the limit of drain_outbox()")
        if messages:
            drained += _publish(messages)
    return drained


def _publish(messages: list[OutgoingMessage]) -> list[DrainedMessage]:
    publisher = make_publisher(parse_destination(messages[0].aggregate_type).service)
    publisher.open()
    try:
        answers = publisher.publish(messages, may_go_on=lambda: True)
    finally:
        publisher.close()
    pairs = list(zip(messages, answers, strict=True))
    store.mark_published([message.id for message, answer in pairs if answer is None])
    skipped = {m.id: answer.code for m, answer in pairs if answer and answer.verdict is Verdict.SKIPPED}
    if skipped:
        store.mark_skipped(skipped)
    return [
        DrainedMessage(m.message_id, m.aggregate_type, m.aggregate_id, m.event, m.payload, answer)
        for m, answer in pairs
    ]
