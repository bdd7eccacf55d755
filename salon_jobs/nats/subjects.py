"""Makes subjects of destinations and aggregate ids, and reads them back.

Legal in a token of a subject is every character but white space, controls, and ``.``, ``*`` and ``>`` (NATS,
"Subject-Based Messaging"). Only those are percent-encoded, byte by byte of their UTF-8, and ``%`` itself, so that it
can be reversed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from salon_jobs.core.errors import MessageInvalid

_ILLEGAL: Final = re.compile(r"[\x00-\x20.*>%\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]")
# A server reads a control line of at most 4,096 bytes: subject, inbox of the answer and two sizes.
_LONGEST_BYTES: Final = 4000


def encode_token(token: str) -> str:
    """Return a text as one legal token of a subject."""
    return _ILLEGAL.sub(_encoded, token)


def decode_token(token: str) -> str:
    """Return what ``encode_token`` was given; anything else as it is, but for its percent signs."""
    return unquote(token, errors="replace") if "%" in token else token


def subject_of(resource: str, aggregate_id: str) -> str:
    """Return ``resource.aggregate_id``, or ``resource`` for the empty id."""
    return f"{resource}.{encode_token(aggregate_id)}" if aggregate_id else resource


def aggregate_of(resource: str, subject: str) -> str:
    """Return the aggregate id of a subject below a resource."""
    return decode_token(subject[len(resource) + 1 :]) if subject.startswith(f"{resource}.") else ""


@lru_cache(maxsize=4096)
def require_resource(resource: str) -> None:
    """Raise MessageInvalid for what is no subject to publish to: a server stores what is sent to a wildcard."""
    tokens = resource.split(".")
    if not all(tokens) or any(encode_token(token) != token for token in tokens) or resource.startswith("$"):
        raise MessageInvalid(
            f"aggregate_type names {resource!r}, which is no NATS subject to publish to; write tokens separated by "
            "dots, without wildcards, spaces and percent signs, that do not begin with '$', such as 'orders'"
        )


def require_length(subject: str) -> None:
    """Raise MessageInvalid for a subject that is longer than a server reads."""
    if len(subject.encode()) > _LONGEST_BYTES:
        raise MessageInvalid(f"aggregate_id makes a subject of more than {_LONGEST_BYTES} bytes; use a shorter one")


def _encoded(found: re.Match[str]) -> str:
    character = found[0]
    return f"%{ord(character):02X}" if character < "\x80" else quote(character)
