"""Publisher for NATS JetStream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from salon_jobs.brokers.nats.protocol import headers_of, require_resource, size_of, subject_of
from salon_jobs.brokers.nats.settings import nats_settings
from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure, Verdict
from salon_jobs.brokers.sender import Sender, SendingPublisher
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import MessageInvalid

if TYPE_CHECKING:
    from salon_jobs.brokers.nats.transport import NatsTransport

# A server reads a control line of at most 4,096 bytes: subject, reply inbox and two sizes.
_LONGEST_BYTES: Final = 4000
# The header that only messages of an aggregate have: its name, a number of 20 digits, and what separates them.
_EXPECTED_BYTES: Final = 60
# The server keeps the size of a message's headers in 16 bits.
_MOST_HEADER_BYTES: Final = 65_535


class NatsPublisher(SendingPublisher["NatsTransport"]):
    """Publisher to the subject ``resource.aggregate_id``; headers carry the fields of ``core.destinations``.

    docs/how-to/nats.md describes the streams it needs.
    """

    service = "nats"
    window = 256

    def check(self, message: OutgoingMessage) -> None:
        """Reject an invalid subject, a message that is too large, and headers NATS cannot carry."""
        resource = parse_destination(message.aggregate_type).resource
        require_resource(resource)
        subject = subject_of(resource, message.aggregate_id)
        if len(subject.encode()) > _LONGEST_BYTES:
            raise MessageInvalid(f"aggregate_id makes a subject of more than {_LONGEST_BYTES} bytes; use a shorter one")
        event = message.event
        if event != event.strip() or "\r" in event or "\n" in event:
            raise MessageInvalid(
                f"event {event!r} begins or ends with white space, or has line breaks; use a plain name"
            )
        try:
            header_size = size_of(headers_of(message).items()) + _EXPECTED_BYTES
        except ValueError as error:
            raise MessageInvalid(f"headers: {error}") from error
        size = len(message.payload.encode()) + header_size
        if size > nats_settings.max_payload:
            raise MessageInvalid(
                f"payload with its headers takes {size} bytes; NATS accepts {nats_settings.max_payload} "
                "(SALON_JOBS['NATS']['MAX_PAYLOAD']): send less, or a reference to it"
            )
        if header_size > _MOST_HEADER_BYTES:
            raise MessageInvalid(
                f"headers take {header_size} bytes; JetStream accepts {_MOST_HEADER_BYTES}: send less, or put it into "
                "the payload"
            )

    def connect(self) -> NatsTransport:
        """Make the transport, which connects at first use. Raises ConfigurationError without the client library."""
        # A process that only emits messages needs no client library.
        from salon_jobs.brokers.nats.transport import NatsTransport  # noqa: PLC0415

        return NatsTransport()

    def send(self, sender: Sender, resource: str) -> None:
        """Publish, one message of each aggregate in flight."""
        try:
            require_resource(resource)
        except MessageInvalid as error:
            sender.stop(PublishFailure(Verdict.REFUSED, "NATS.BAD_SUBJECT", str(error)))
        else:
            self.client.get().publish(sender, resource)
