"""Writes the headers of a message for NATS, and says which it can not carry."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from salon_jobs.core import envelope
from salon_jobs.publishers.base import OutgoingMessage

_HEADER: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# What a message has besides its own headers, at its longest: names, ids, the expected sequence, the frame.
FIXED_BYTES: Final = 600
_read: Final = msgspec.json.Decoder(dict[str, str]).decode


def own_headers(headers: str) -> dict[str, str]:
    """Read the headers that were given to ``emit``. Raises ValueError."""
    return _read(headers) if headers not in ("", "{}") else {}


def headers_of(message: OutgoingMessage) -> dict[str, str]:
    """Return all headers of a message. Raises ValueError for those that NATS can not carry."""
    headers = own_headers(message.headers)
    for name, value in headers.items():
        if refusal := refusal_of(name, value):
            raise ValueError(refusal)
    # The message's id, by which the server drops doubles. Neither it nor the aggregate's, which the subject says, has
    # another header: each costs a message a twentieth of its time here.
    headers["Nats-Msg-Id"] = str(message.message_id)
    headers[envelope.ENVELOPE] = envelope.VERSION
    headers[envelope.EVENT] = message.event
    headers[envelope.PRODUCER] = message.producer
    headers[envelope.AGGREGATE_TYPE] = message.aggregate_type
    if message.store_id is not None:
        headers[envelope.STORE_ID] = str(message.store_id)
    if message.replay_of is not None:
        headers[envelope.REPLAY_OF] = str(message.replay_of)
    return headers


def refusal_of(name: str, value: str) -> str:
    """Return why NATS would refuse or change a header, "" when it would not."""
    if not _HEADER.fullmatch(name) or name.lower().startswith("nats-"):
        return f"{name!r} is no name for a header here; use letters, digits and hyphens, and do not begin with 'Nats-'"
    if value != value.strip() or "\r" in value or "\n" in value:
        return f"the value of {name!r} begins or ends with white space, or has line breaks; NATS would change it"
    return ""


def size_of(headers: Iterable[tuple[str, str]]) -> int:
    """Count the bytes of headers as they are sent."""
    return 16 + sum(len(name) + len(value.encode()) + 4 for name, value in headers)
