"""Publisher for NATS JetStream."""

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
    """Publisher to the subject ``resource.aggregate_id``; headers carry the fields of ``core.envelope``.

    See ``sender`` for ordering and its fence, and docs/how-to/nats.md for the streams it needs.
    """

    service = "nats"

    def __init__(self) -> None:
        """Create the object without I/O."""
        self._making = threading.Lock()
        self._made: NatsSender | None = None

    def check(self, destination: Destination, *, aggregate_id: str, event: str, payload: str, headers: str) -> None:
        """Reject an invalid subject, a message that is too large, and headers NATS cannot carry. No I/O."""
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
                f"payload with its headers takes {size + FIXED_BYTES} bytes; NATS accepts "
                f"{settings.nats.max_payload} (SALON_JOBS['NATS']['MAX_PAYLOAD']): send less, or a reference to it"
            )

    def open(self) -> None:
        """Create the sender, which connects at first use. Raises ConfigurationError without the client library."""
        self._sender()

    def publish(self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]) -> Answers:
        """Publish with up to ``window`` messages in flight, one per aggregate."""
        return self._sender().publish(messages, should_continue=should_continue)

    def ping(self) -> None:
        """Check readiness with a ping. Raises NotReady."""
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
                # A process that only emits messages needs no client library.
                from salon_jobs.brokers.nats.sender import NatsSender  # noqa: PLC0415

                self._made = NatsSender()
            return self._made
