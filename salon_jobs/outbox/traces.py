"""Reports to tracers of messages that a relay published."""

from __future__ import annotations

import time
from collections.abc import Sequence

from salon_jobs.brokers.publisher import Answers, OutgoingMessage, PublishFailure, Verdict
from salon_jobs.core.destinations import place_of
from salon_jobs.core.events import logger
from salon_jobs.core.tracing import Published, active_tracers, headers_of

_NO_TRY = (Verdict.NOT_SENT, Verdict.SKIPPED)


def trace_published(batch: Sequence[OutgoingMessage], answers: Answers, began_ns: int) -> None:
    """Report each tried message that carries headers, begun at ``began_ns``; others cost nothing."""
    tracers = active_tracers()
    if not tracers:
        return
    ended_ns = time.time_ns()
    for message, answer in zip(batch, answers, strict=True):
        if message.headers == "{}" or (answer is not None and answer.verdict in _NO_TRY):
            continue
        try:
            published = _published(message, answer, began_ns=began_ns, ended_ns=ended_ns, count=len(batch))
            for tracer in tracers:
                tracer.published(published)
        except Exception:  # the message is published, whatever its tracer does
            logger.exception("a tracer could not note message %s", message.message_id)


def _published(
    message: OutgoingMessage, answer: PublishFailure | None, *, began_ns: int, ended_ns: int, count: int
) -> Published:
    service, resource = place_of(message.aggregate_type)
    return Published(
        system=service,
        destination=resource,
        event=message.event,
        message_id=str(message.message_id),
        store_id=message.store_id,
        created_at_s=message.created_at_s,
        began_ns=began_ns,
        ended_ns=ended_ns,
        count=count,
        body_size=len(message.payload.encode()),
        headers=headers_of(message.headers),
        code="" if answer is None else answer.code or str(answer.verdict),
    )
