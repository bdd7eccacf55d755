"""Publishes to NATS JetStream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from salon_jobs.brokers.nats.subjects import (
    FIXED_BYTES,
    own_headers,
    refusal_of,
    require_length,
    require_resource,
    size_of,
    subject_of,
)
from salon_jobs.brokers.publisher import Answers, OutgoingMessage, Publisher
from salon_jobs.conf import settings
from salon_jobs.core.destinations import Destination
from salon_jobs.core.errors import MessageInvalid

if TYPE_CHECKING:
    from salon_jobs.brokers.nats.sender import NatsSender


class NatsPublisher(Publisher):
    """Publishes to the subject ``resource.aggregate_id``; the headers carry what ``core.envelope`` names.

    See ``nats_batch`` for the order and what fences it, and docs/how-to/nats.md for the streams it needs.
    """

    service = "nats"

    def __init__(self) -> None:
        """Make it without I/O."""
        self._making = threading.Lock()
        self._made: NatsSender | None = None

    def check(self, destination: Destination, *, aggregate_id: str, event: str, payload: str, headers: str) -> None:
        """Refuse what is no subject, or is too large, or has headers that NATS can not carry. No I/O."""
        require_resource(destination.resource)
        require_length(subject_of(destination.resource, aggregate_id))
        own = own_headers(headers)
        for name, value in own.items():
            if refusal := refusal_of(name, value):
                raise MessageInvalid(f"headers: {refusal}")
        if event != event.strip() or "\r" in event or "\n" in event:
            raise MessageInvalid(
                f"event {event!r} begins or ends with white space, or has line breaks; use a plain name"
            )
        short = (event, settings.outbox.producer or "", destination.name, aggregate_id)
        size = len(payload.encode()) + size_of(own.items()) + sum(len(text.encode()) for text in short)
        if size + FIXED_BYTES > settings.nats.max_payload:
            raise MessageInvalid(
                f"payload with its headers takes {size + FIXED_BYTES} bytes; NATS takes "
                f"{settings.nats.max_payload} (SALON_JOBS['NATS']['MAX_PAYLOAD']): send less, or a reference to it"
            )

    def open(self) -> None:
        """Make what connects, at the first message. Raises ConfigurationError when the client library is missing."""
        self._sender()

    def publish(self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]) -> Answers:
        """Publish with up to ``window`` messages on their way, one of an aggregate at a time."""
        return self._sender().publish(messages, should_continue=should_continue)

    def ping(self) -> None:
        """Ask the server for a pong. Raises NotReady."""
        self._sender().ping()

    def close(self) -> None:
        """Close the connection and end its thread. Idempotent."""
        with self._making:
            made = self._made
        if made is not None:
            made.close()

    def _sender(self) -> NatsSender:
        with self._making:
            if self._made is None:
                # Whoever only writes messages needs no client library.
                from salon_jobs.brokers.nats.sender import NatsSender  # noqa: PLC0415

                self._made = NatsSender()
            return self._made
