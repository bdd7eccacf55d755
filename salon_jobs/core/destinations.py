"""Destination names (ARN or RN), and the headers and fields that carry a message through a broker."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from salon_jobs.core.errors import MessageInvalid

_SHAPE: Final = re.compile(
    r"(?:arn|rn):[a-z0-9-]*:(?P<service>[a-z][a-z0-9-]*)"
    r":(?P<region>[a-z0-9-]*):(?P<account>[A-Za-z0-9-]*):(?P<resource>[^\s:\x00-\x20\x7f]+)"
)
LONGEST: Final = 255


@dataclass(frozen=True, slots=True)
class Destination:
    """Parsed destination name, such as ``rn::memory:::orders`` (service ``memory``, resource ``orders``)."""

    name: str
    service: str
    region: str
    account: str
    resource: str

    def __str__(self) -> str:
        """Return the name as given."""
        return self.name


@lru_cache(maxsize=4096)
def parse_destination(name: str) -> Destination:
    """Parse an ``aggregate_type``. Raises MessageInvalid with the expected form."""
    if len(name) > LONGEST:
        raise MessageInvalid(f"aggregate_type is {len(name)} characters long; at most {LONGEST} are allowed")
    match = _SHAPE.fullmatch(name)
    if match is None:
        raise MessageInvalid(
            f"aggregate_type {name!r} is malformed; write an ARN or RN of six parts with the service third and the "
            "resource last, such as 'rn::SERVICE:::orders'"
        )
    return Destination(name, **match.groupdict())


def place_of(name: str) -> tuple[str, str]:
    """Return the service and resource of an ``aggregate_type``, or "" and the whole name when it is malformed."""
    parts = name.split(":", 5)
    return (parts[2], parts[5]) if len(parts) == 6 else ("", name)


VERSION: Final = "1"

# Headers, for brokers that have them; the message's own are sent alongside.
ENVELOPE: Final = "Envelope"
MESSAGE_ID: Final = "Message-Id"
EVENT: Final = "Event"
PRODUCER: Final = "Producer"
AGGREGATE_TYPE: Final = "Aggregate-Type"
AGGREGATE_ID: Final = "Aggregate-Id"
STORE_ID: Final = "Store-Id"
REPLAY_OF: Final = "Replay-Of"
RESERVED: Final = frozenset(
    name.lower() for name in (ENVELOPE, MESSAGE_ID, EVENT, PRODUCER, AGGREGATE_TYPE, AGGREGATE_ID, STORE_ID, REPLAY_OF)
)
