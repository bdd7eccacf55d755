"""Makes messages for the contract suites."""

from __future__ import annotations

import itertools
from uuid import UUID, uuid4

from salon_jobs.brokers.publisher import Answers, OutgoingMessage, Publisher, Verdict

_IDS = itertools.count(1)
# Larger than any broker takes: Azure 64 KiB, SNS 256 KiB, NATS 1 MiB.
TOO_LARGE = '"' + "x" * 2_000_000 + '"'


def make(
    destination: str,
    aggregate_id: str = "a",
    *,
    event: str = "order.created",
    payload: str = "{}",
    headers: str = "{}",
    store_id: UUID | None = None,
    message_id: UUID | None = None,
    replay_of: UUID | None = None,
) -> OutgoingMessage:
    """Make one message, as the relay would read it."""
    return OutgoingMessage(
        id=next(_IDS),
        message_id=message_id or uuid4(),
        aggregate_type=destination,
        aggregate_id=aggregate_id,
        event=event,
        payload=payload,
        headers=headers,
        store_id=store_id,
        producer="contract-tests",
        created_at_s=1_700_000_000.0,
        replay_of=replay_of,
    )


def publish(publisher: Publisher, *messages: OutgoingMessage) -> list[Verdict | None]:
    """Publish one batch and return the verdicts; None: published."""
    return verdicts(publisher.publish(messages, should_continue=lambda: True))


def verdicts(answers: Answers) -> list[Verdict | None]:
    """Return what became of each message; None: published. Whatever failed has a code."""
    assert all(answer is None or answer.code or answer.verdict is Verdict.NOT_SENT for answer in answers)
    return [None if answer is None else answer.verdict for answer in answers]
