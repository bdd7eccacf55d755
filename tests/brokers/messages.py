"""Messages for the tests of brokers, and the answers to them."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from salon_jobs.brokers.publisher import NOT_SENT, OutgoingMessage, Publisher, Verdict
from salon_jobs.core.errors import MessageInvalid

_IDS = itertools.count(1)
# Larger than any broker accepts: Azure 64 KiB, SNS 256 KiB, NATS 1 MiB.
TOO_LARGE = '"' + "x" * 2_000_000 + '"'
HELD = (Verdict.NOT_SENT, "")
Result = tuple[Verdict, str] | None


def make(destination: str, aggregate_id: str = "a", payload: str = "{}", **fields: Any) -> OutgoingMessage:
    """Make one message, as the relay would read it."""
    given: dict[str, Any] = {
        "message_id": uuid4(),
        "event": "order.created",
        "headers": "{}",
        "store_id": None,
        **fields,
    }
    given |= {"producer": "contract-tests", "created_at_s": 1_700_000_000.0}
    return OutgoingMessage(next(_IDS), aggregate_type=destination, aggregate_id=aggregate_id, payload=payload, **given)


def draft(destination: str, aggregate_id: str = "a", payload: str = "{}", **fields: Any) -> OutgoingMessage:
    """Make one message as ``emit`` passes it to ``check``: a replay of a store's message."""
    return make(destination, aggregate_id, payload, store_id=uuid4(), replay_of=uuid4(), **fields)


def largest(publisher: Publisher, of_size: Callable[[int], OutgoingMessage], beyond: int) -> int:
    """Return the largest size, below another, of which ``check`` lets a message pass."""

    def is_too_large(size: int) -> bool:
        try:
            publisher.check(of_size(size))
        except MessageInvalid:
            return True
        return False

    return bisect.bisect_left(range(beyond), True, key=is_too_large) - 1


def results(
    publisher: Publisher, *messages: OutgoingMessage, should_continue: Callable[[], bool] = lambda: True
) -> list[Result]:
    """Publish one batch and return the verdict and code of each message, None if published."""
    answers = publisher.publish(messages, should_continue=should_continue)
    assert all(answer is None or answer.code or answer == NOT_SENT for answer in answers)
    return [None if answer is None else (answer.verdict, answer.code) for answer in answers]


def publish(publisher: Publisher, *messages: OutgoingMessage, **options: Callable[[], bool]) -> list[Verdict | None]:
    """Publish one batch and return the verdicts, None if published."""
    return [result and result[0] for result in results(publisher, *messages, **options)]


def ids(messages: Sequence[OutgoingMessage], aggregate_id: str | None = None) -> list[str]:
    """Return the IDs of messages, or of those of one aggregate."""
    return [str(one.message_id) for one in messages if aggregate_id is None or one.aggregate_id == aggregate_id]
