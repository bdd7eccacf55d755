"""Reads what SNS put into a message of SQS, delivered raw or wrapped into a notification."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from salon_jobs.core import envelope
from salon_jobs.publishers.sns_entries import HEADERS
from salon_jobs.sources.base import Delivery, Envelope

if TYPE_CHECKING:
    from mypy_boto3_sqs.type_defs import MessageTypeDef


def delivery_of(message: MessageTypeDef) -> Delivery:
    """Read one message. Whatever can not be read is a fault, never an error: one message must not stop the others."""
    raw = body = message.get("Body", "")
    attributes = {name: value.get("StringValue", "") for name, value in message.get("MessageAttributes", {}).items()}
    broker_id = message.get("MessageId", "")
    if attributes:
        raw = "".join(f"{name}: {value}\n" for name, value in attributes.items()) + f"\n{body}"
    elif (wrapped := _notification(body)) is not None:
        body, attributes, broker_id = wrapped
    try:
        read, fault = _envelope(body, attributes, broker_id=broker_id), ""
    except ValueError as error:
        read, fault = None, str(error)
    return Delivery(
        count=int(message.get("Attributes", {}).get("ApproximateReceiveCount", "1")),
        raw=raw,
        handle=message.get("ReceiptHandle", ""), envelope=read, fault=fault,
    )  # fmt: skip


def _notification(body: str) -> tuple[str, dict[str, str], str] | None:
    """Unwrap a notification of SNS: its message, attributes and id. None: it is none."""
    found = _object(body)
    if found is None or found.get("Type") != "Notification" or not isinstance(found.get("Message"), str):
        return None
    given = _members(found.get("MessageAttributes"))
    attributes = {name: str(_members(value).get("Value", "")) for name, value in given.items()}
    return found["Message"], attributes, str(found.get("MessageId", ""))


def _envelope(body: str, attributes: Mapping[str, str], *, broker_id: str) -> Envelope:
    version = attributes.get(envelope.ENVELOPE, envelope.VERSION)
    if version != envelope.VERSION:
        raise ValueError(f"attribute {envelope.ENVELOPE} is {version!r}; known is {envelope.VERSION!r}")
    if envelope.EVENT not in attributes:
        raise ValueError(f"there is no attribute {envelope.EVENT}, neither on the message nor in a notification of SNS")
    try:
        json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the body is no JSON: {error}") from error
    headers = _object(attributes.get(HEADERS, "{}"))
    if headers is None:
        raise ValueError(f"attribute {HEADERS} is no JSON object")
    return Envelope(
        # Whoever sends without salon_jobs may give no id: that of the broker stays the same when it delivers again.
        message_id=attributes.get(envelope.MESSAGE_ID) or broker_id,
        event=attributes[envelope.EVENT], payload=body,
        producer=attributes.get(envelope.PRODUCER, ""),
        aggregate_type=attributes.get(envelope.AGGREGATE_TYPE, ""),
        aggregate_id=attributes.get(envelope.AGGREGATE_ID, ""),
        store_id=attributes.get(envelope.STORE_ID, ""),
        replay_of=attributes.get(envelope.REPLAY_OF, ""),
        headers={name: str(value) for name, value in headers.items()},
    )  # fmt: skip


def _object(text: str) -> dict[str, Any] | None:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _members(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
