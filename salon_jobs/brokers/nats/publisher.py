"""Publisher for NATS JetStream, with its subjects, headers and the server's answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

import msgspec

from salon_jobs.brokers.nats.settings import settings
from salon_jobs.brokers.publisher import Answers, ClientPublisher, OutgoingMessage, PublishFailure, Verdict
from salon_jobs.core import destinations
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import MessageInvalid

if TYPE_CHECKING:
    from salon_jobs.brokers.nats.sender import NatsSender


class NatsPublisher(ClientPublisher["NatsSender"]):
    """Publisher to the subject ``resource.aggregate_id``; headers carry the fields of ``core.destinations``.

    ``sender`` keeps the order; docs/how-to/nats.md describes the streams it needs.
    """

    service = "nats"

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
        if size > settings.max_payload:
            raise MessageInvalid(
                f"payload with its headers takes {size} bytes; NATS accepts {settings.max_payload} "
                "(SALON_JOBS['NATS']['MAX_PAYLOAD']): send less, or a reference to it"
            )
        if header_size > _MOST_HEADER_BYTES:
            raise MessageInvalid(
                f"headers take {header_size} bytes; JetStream accepts {_MOST_HEADER_BYTES}: send less, or put it into "
                "the payload"
            )

    def connect(self) -> NatsSender:
        """Make the sender, which connects at first use. Raises ConfigurationError without the client library."""
        # A process that only emits messages needs no client library.
        from salon_jobs.brokers.nats.sender import NatsSender  # noqa: PLC0415

        return NatsSender()

    def publish(self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]) -> Answers:
        """Publish with up to 256 messages in flight, one per aggregate."""
        return self.client.get().publish(messages, should_continue=should_continue)


_ILLEGAL: Final = re.compile(r"[\x00-\x20.*>%\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]")
# A server reads a control line of at most 4,096 bytes: subject, reply inbox and two sizes.
_LONGEST_BYTES: Final = 4000


def encode_token(token: str) -> str:
    """Encode a text as one valid token of a subject, with percent signs."""
    return _ILLEGAL.sub(percent_encoded, token)


def percent_encoded(match: re.Match[str]) -> str:
    """Return the match in percent encoding, dots too."""
    return quote(match[0], safe="").replace(".", "%2E")


def subject_of(resource: str, aggregate_id: str) -> str:
    """Return ``resource.aggregate_id``, or ``resource`` without an aggregate ID."""
    return f"{resource}.{encode_token(aggregate_id)}" if aggregate_id else resource


def aggregate_of(resource: str, subject: str) -> str:
    """Return the aggregate ID of a subject below a resource, "" for any other subject."""
    return unquote(subject[len(resource) + 1 :], errors="replace") if subject.startswith(f"{resource}.") else ""


@lru_cache(maxsize=4096)
def require_resource(resource: str) -> None:
    """Raise MessageInvalid for an invalid subject; a server would store what is sent to a wildcard."""
    tokens = resource.split(".")
    if not all(tokens) or any(encode_token(token) != token for token in tokens) or resource.startswith("$"):
        raise MessageInvalid(
            f"aggregate_type names {resource!r}, which is not a NATS subject that can be published to; write "
            "tokens separated by dots, without wildcards, spaces and percent signs, that do not begin with '$', "
            "such as 'orders'"
        )


_HEADER: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# The header that only messages of an aggregate have: its name, a number of 20 digits, and what separates them.
_EXPECTED_BYTES: Final = 60
# The server keeps the size of a message's headers in 16 bits.
_MOST_HEADER_BYTES: Final = 65_535
# Largest overhead of a message besides its own headers: names, IDs, expected sequence, frame.
FIXED_BYTES: Final = 600
_read: Final = msgspec.json.Decoder(dict[str, str]).decode


def headers_of(message: OutgoingMessage) -> dict[str, str]:
    """Return all headers of a message. Raises ValueError for headers NATS cannot carry."""
    headers = _read(message.headers) if message.headers not in ("", "{}") else {}
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or name.lower().startswith("nats-"):
            raise ValueError(
                f"{name!r} is not a valid header name; use letters, digits and hyphens, and do not begin with 'Nats-'"
            )
        if value != value.strip() or "\r" in value or "\n" in value:
            text = f"the value of {name!r} begins or ends with white space, or has line breaks"
            raise ValueError(f"{text}; NATS would change it")
    # The server drops duplicates by this one, so the message ID needs no header of its own; nor does the aggregate ID,
    # which is in the subject. Each header costs a twentieth of the time per message here.
    headers["Nats-Msg-Id"] = str(message.message_id)
    headers[destinations.ENVELOPE] = destinations.VERSION
    headers[destinations.EVENT] = message.event
    headers[destinations.PRODUCER] = message.producer
    headers[destinations.AGGREGATE_TYPE] = message.aggregate_type
    if message.store_id is not None:
        headers[destinations.STORE_ID] = str(message.store_id)
    if message.replay_of is not None:
        headers[destinations.REPLAY_OF] = str(message.replay_of)
    return headers


def size_of(headers: Iterable[tuple[str, str]]) -> int:
    """Return the encoded size of headers in bytes."""
    return 16 + sum(len(name) + len(value.encode()) + 4 for name, value in headers)


# Larger than the stream's max_msg_size; headers longer than JetStream can keep. What else could be wrong with a message
# is commanded by headers that begin with Nats-, which ours cannot have.
_TOO_LARGE: Final = frozenset({10054, 10097})
_STORE_FAILED: Final = 10077
# In a cluster: the same message, sent before a connection was lost, is still being stored.
_IN_PROCESS: Final = 10158
# The subject's last sequence differs from the expected one or, in a cluster, is not known at this moment.
_FENCED: Final = frozenset({10071, 10163, 10164})


class Fault(msgspec.Struct, frozen=True):
    """Error from the server: ``code`` is like HTTP's, ``err_code`` is specific."""

    code: int = 0
    err_code: int = 0
    description: str = ""

    @property
    def fenced(self) -> bool:
        """Whether the subject moved on since its last sequence was read."""
        return self.err_code in _FENCED


class Ack(msgspec.Struct, frozen=True):
    """Answer to one publish: its sequence in the stream, or a fault."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: Fault | None = None


class Stored(msgspec.Struct, frozen=True):
    """One message of a stream; ``hdrs`` are its raw headers."""

    seq: int
    hdrs: bytes = b""

    def header(self, name: bytes) -> str:
        """Return a header's value, or ""."""
        for line in self.hdrs.split(b"\r\n"):
            key, _, value = line.partition(b":")
            if key == name:
                return value.strip().decode(errors="replace")
        return ""


class StoredAnswer(msgspec.Struct, frozen=True):
    """Answer to a request for one message."""

    message: Stored | None = None
    error: Fault | None = None


class StreamNames(msgspec.Struct, frozen=True):
    """Answer to a request for the streams that accept a subject."""

    streams: list[str] | None = None
    error: Fault | None = None


read_ack: Final = msgspec.json.Decoder(Ack).decode
read_stored: Final = msgspec.json.Decoder(StoredAnswer).decode
read_names: Final = msgspec.json.Decoder(StreamNames).decode


def judge(fault: Fault) -> PublishFailure:
    """Return the verdict on a message that the server rejected.

    A full stream or account rejects every message until someone makes room, and no message is to blame: an outage, as
    is every error that is not known to concern one message. A full subject affects only its aggregate.
    """
    code, detail = f"NATS.{fault.err_code}", fault.description
    if fault.err_code in _TOO_LARGE:
        return PublishFailure(Verdict.REFUSED, "NATS.TOO_LARGE", f"the stream said: {detail}")
    if fault.err_code == _STORE_FAILED:
        full = Verdict.UNRESOLVABLE if "per subject" in detail else Verdict.OUTAGE
        return PublishFailure(full, "NATS.STREAM_FULL" if "maximum" in detail else code, detail)
    return PublishFailure(Verdict.UNRESOLVABLE if fault.err_code == _IN_PROCESS else Verdict.OUTAGE, code, detail)
