"""Reads what JetStream answers to a publish, and turns its errors into verdicts."""

from __future__ import annotations

from typing import Final

import msgspec

from salon_jobs.publishers.base import Unpublished, Verdict

_TOO_LARGE: Final = 10054
_STORE_FAILED: Final = 10077
# The last sequence of the subject is another than expected; or, in a cluster, not known at this moment.
_FENCED: Final = frozenset({10071, 10163, 10164})


class Fault(msgspec.Struct, frozen=True):
    """Is an error of the server. ``code`` is like HTTP's, ``err_code`` says which."""

    code: int = 0
    err_code: int = 0
    description: str = ""

    @property
    def fenced(self) -> bool:
        """Say whether the subject moved on since its last sequence was asked for."""
        return self.err_code in _FENCED


class Ack(msgspec.Struct, frozen=True):
    """Is the answer to one publish: its sequence in the stream, or a fault."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: Fault | None = None


class Stored(msgspec.Struct, frozen=True):
    """Is one message of a stream; ``hdrs`` are its headers as they came."""

    seq: int
    hdrs: bytes = b""

    def header(self, name: bytes) -> str:
        """Return a header's value, "" without it."""
        for line in self.hdrs.split(b"\r\n"):
            key, _, value = line.partition(b":")
            if key == name:
                return value.strip().decode(errors="replace")
        return ""


class StoredAnswer(msgspec.Struct, frozen=True):
    """Is the answer to a question for one message."""

    message: Stored | None = None
    error: Fault | None = None


class StreamNames(msgspec.Struct, frozen=True):
    """Is the answer to the question which streams take a subject."""

    streams: list[str] | None = None
    error: Fault | None = None


read_ack: Final = msgspec.json.Decoder(Ack).decode
read_stored: Final = msgspec.json.Decoder(StoredAnswer).decode
read_names: Final = msgspec.json.Decoder(StreamNames).decode


def judge(fault: Fault) -> Unpublished:
    """Return what becomes of a message that the server refused.

    A full stream refuses every message until somebody makes room, and none of them is to blame: an outage; a full
    subject concerns its aggregate alone. 503 is the cluster's trouble.
    """
    code, detail = f"NATS.{fault.err_code}", fault.description
    if fault.err_code == _TOO_LARGE:
        return Unpublished(Verdict.REFUSED, "NATS.TOO_LARGE", f"{detail} (max_msg_size of the stream)")
    if fault.err_code == _STORE_FAILED:
        full = Verdict.RETRY if "per subject" in detail else Verdict.OUTAGE
        return Unpublished(full, "NATS.STREAM_FULL" if "maximum" in detail else code, detail)
    return Unpublished(Verdict.OUTAGE if fault.code == 503 else Verdict.RETRY, code, detail)
