"""Holds what is known of messages without a database."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# Aggregates are spread over so many; relays own them. Stored rows depend on it: it never changes. A power of two.
PARTITIONS: Final = 16


# Why messages are skipped that a list of the settings keeps from being sent.
TOPIC_DENIED: Final = "SNS.TOPIC_DENIED"
EVENT_SKIPPED: Final = "SNS.EVENT_SKIPPED"


class MessageStatus(StrEnum):
    """Lists what can have become of a message."""

    PENDING = "pending"
    PUBLISHED = "published"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class OperatedMessage:
    """Says what became of one message: changed, or why not."""

    id: int
    changed: bool
    detail: str = ""
