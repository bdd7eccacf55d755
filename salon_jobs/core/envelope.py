"""Names the headers and fields that carry a message through brokers; version 1.

A broker with headers (NATS, SNS and SQS attributes) carries the payload as its body and these as headers; one without
(Azure Queue Storage) carries one JSON object of ``FIELDS`` in its body.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "1"

# Headers, where the broker has them; those of the message itself are passed on beside them.
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

# The keys of the JSON object.
FIELDS: Final = (
    "envelope", "message_id", "event", "producer", "aggregate_type", "aggregate_id", "store_id", "replay_of", "headers",
    "payload",
)  # fmt: skip
