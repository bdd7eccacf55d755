"""JetStream's protocol: subjects, headers, and the server's answers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure, Verdict
from salon_jobs.core import destinations
from salon_jobs.core.errors import MessageInvalid

_ILLEGAL: Final = re.compile(r"[\x00-\x20.*>%\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]")


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
    """Raise MessageInvalid for an invalid subject; a server would store a message to a wildcard."""
    tokens = resource.split(".")
    if not all(tokens) or any(encode_token(token) != token for token in tokens) or resource.startswith("$"):
        raise MessageInvalid(
            f"aggregate_type names {resource!r}, which is not a NATS subject that can be published to; write "
            "tokens separated by dots, without wildcards, spaces and percent signs, that do not begin with '$', "
            "such as 'orders'"
        )


_HEADER: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Largest overhead of a message in addition to its own headers: names, IDs, expected sequence, frame.
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


# Larger than the stream's max_msg_size; headers longer than JetStream can keep. Other faults of a message come from
# headers that begin with Nats-, which ours cannot have.
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

    A full stream or account rejects every message until there is room, and no message is to blame: an outage, like
    every error that is not known to concern one message. A full subject affects only its aggregate.
    """
    code, detail = f"NATS.{fault.err_code}", fault.description
    if fault.err_code in _TOO_LARGE:
        return PublishFailure(Verdict.REFUSED, "NATS.TOO_LARGE", f"the stream said: {detail}")
    if fault.err_code == _STORE_FAILED:
        full = Verdict.UNRESOLVABLE if "per subject" in detail else Verdict.OUTAGE
        return PublishFailure(full, "NATS.STREAM_FULL" if "maximum" in detail else code, detail)
    return PublishFailure(Verdict.UNRESOLVABLE if fault.err_code == _IN_PROCESS else Verdict.OUTAGE, code, detail)
