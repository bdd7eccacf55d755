"""Writes a message the way SNS takes it, and counts its bytes the way AWS does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from salon_jobs.core import envelope
from salon_jobs.publishers.base import OutgoingMessage

if TYPE_CHECKING:
    from mypy_boto3_sns.type_defs import PublishBatchRequestEntryTypeDef

# Of one message with its attributes, and again of all the messages of one request.
MOST_BYTES: Final = 262_144
MOST_ENTRIES: Final = 10
# The headers of the message are one attribute: with raw delivery SQS takes ten at most, and drops what has more.
HEADERS: Final = "Headers"


class Entry(NamedTuple):
    """Is one message of a batch, and its size in bytes."""

    fields: PublishBatchRequestEntryTypeDef
    size: int


def attributes_of(message: OutgoingMessage) -> dict[str, str]:
    """Return the attributes of a message, nine at most. One without a value is left out: SNS takes no empty one."""
    values = {
        envelope.ENVELOPE: envelope.VERSION,
        envelope.MESSAGE_ID: str(message.message_id),
        envelope.EVENT: message.event,
        envelope.PRODUCER: message.producer,
        envelope.AGGREGATE_TYPE: message.aggregate_type,
        envelope.AGGREGATE_ID: message.aggregate_id,
        envelope.STORE_ID: "" if message.store_id is None else str(message.store_id),
        envelope.REPLAY_OF: "" if message.replay_of is None else str(message.replay_of),
        HEADERS: "" if message.headers == "{}" else message.headers,
    }
    return {name: value for name, value in values.items() if value}


def size_of(payload: str, attributes: dict[str, str]) -> int:
    """Count bytes of UTF-8: the body, and of each attribute its name, its type and its value."""
    carried = sum(len(name) + len("String") + len(value.encode()) for name, value in attributes.items())
    return len(payload.encode()) + carried


def entry_of(message: OutgoingMessage, *, fifo: bool) -> Entry:
    """Write one entry; whoever puts it into a batch gives it an ``Id`` of its own there."""
    attributes = attributes_of(message)
    fields: PublishBatchRequestEntryTypeDef = {
        "Id": "0",
        "Message": message.payload,
        "MessageAttributes": {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()},
    }
    if fifo:
        fields["MessageGroupId"] = message.aggregate_id
        fields["MessageDeduplicationId"] = str(message.message_id)
    return Entry(fields, size_of(message.payload, attributes))
