"""Source that receives from an Amazon SQS queue, including messages SNS delivered to it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from salon_jobs.brokers.aws import client as aws
from salon_jobs.brokers.aws.sns import HEADERS
from salon_jobs.brokers.source import Delivery, Source, read_delivery
from salon_jobs.core.destinations import Destination
from salon_jobs.core.errors import NotReady
from salon_jobs.core.units import with_noun

if TYPE_CHECKING:
    from mypy_boto3_sqs.type_defs import MessageTypeDef


def delivery_of(message: MessageTypeDef) -> Delivery:
    """Parse one message, or the SNS notification that it is."""
    raw = body = message.get("Body", "")
    attributes = {name: value.get("StringValue", "") for name, value in message.get("MessageAttributes", {}).items()}
    broker_id = message.get("MessageId", "")
    if attributes:
        raw = "".join(f"{name}: {value}\n" for name, value in attributes.items()) + f"\n{body}"
    elif (notification := _notification(body)) is not None:
        body, attributes, broker_id = notification
    return read_delivery(
        {name.lower(): value for name, value in attributes.items()},
        body,
        kind="attribute",
        message_id=broker_id,  # the same on redelivery
        headers=lambda: _headers(attributes.get(HEADERS, "{}")),
        count=int(message.get("Attributes", {}).get("ApproximateReceiveCount", "1")),
        raw=raw,
        handle=message.get("ReceiptHandle", ""),
    )


def _notification(body: str) -> tuple[str, dict[str, str], str] | None:
    """Unwrap an SNS notification into its message, attributes and ID; return None if it is not one."""
    notification = _object(body)
    if notification is None or notification.get("Type") != "Notification":
        return None
    if not isinstance(message := notification.get("Message"), str):
        return None
    attributes = _members(notification.get("MessageAttributes"))
    values = {name: str(_members(value).get("Value", "")) for name, value in attributes.items()}
    return message, values, str(notification.get("MessageId", ""))


def _headers(text: str) -> dict[str, str]:
    headers = _object(text)
    if headers is None:
        raise ValueError(f"the attribute {HEADERS} is not a JSON object")
    return {name: str(value) for name, value in headers.items()}


def _object(text: str) -> dict[str, Any] | None:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _members(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


_MOST_AT_ONCE: Final = 10  # per call
_LONGEST_WAIT_S: Final = 20
_LONGEST_HIDDEN_S: Final = 43_200
_MOST_BYTES: Final = 1_048_576


class SqsSource(Source):
    """Source with long polling: ``wait`` and ``visibility`` are rounded up to seconds, at most 20 s and 12 h.

    The queue is found by name, in the region and account of its ARN, or those of the settings if omitted
    (``rn::sqs:::orders``).
    """

    service: ClassVar[str] = "sqs"

    def __init__(self, destination: Destination, *, consumer: str) -> None:
        super().__init__(destination, consumer=consumer)
        # A long poll answers late. No retry: messages that the first attempt received would be hidden for nothing.
        region, late_s = destination.region, aws.TIMEOUT_S + _LONGEST_WAIT_S
        self._receiving = aws.client("sqs", timeout_s=late_s, attempts=1, region=region)
        self._answering = aws.client("sqs", timeout_s=aws.TIMEOUT_S, attempts=2, region=region)
        self._cached_url = ""

    @property
    def largest_bytes(self) -> int:
        return _MOST_BYTES

    def receive(self, limit: int, *, wait: timedelta, visibility: timedelta) -> list[Delivery]:
        """Return up to ``limit`` deliveries, ten per call."""
        received: list[Delivery] = []
        wait_s = _seconds(wait, most=_LONGEST_WAIT_S)
        try:
            while len(received) < limit:
                with self._require_answer():
                    answer = self._receiving.receive_message(
                        QueueUrl=self._url(),
                        MaxNumberOfMessages=min(limit - len(received), _MOST_AT_ONCE),
                        WaitTimeSeconds=0 if received else wait_s,
                        VisibilityTimeout=_seconds(visibility),
                        MessageAttributeNames=["All"],
                        MessageSystemAttributeNames=["ApproximateReceiveCount"],
                    )
                if not (messages := answer.get("Messages", [])):
                    break
                received += map(delivery_of, messages)
        except NotReady:
            if not received:
                raise
        return received

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Delete the messages. An expired receipt belongs to a message that another consumer now has."""
        self._answer(deliveries, self._answering.delete_message_batch)

    def extend(self, deliveries: Sequence[Delivery], *, visibility: timedelta) -> None:
        """Hide the messages for that long from now, at most until 12 h after they were received."""
        self._answer(
            deliveries, self._answering.change_message_visibility_batch, VisibilityTimeout=_seconds(visibility)
        )

    def give_back(self, deliveries: Sequence[Delivery], *, after: timedelta) -> None:
        """Make the messages visible again after that time."""
        self.extend(deliveries, visibility=after)

    def close(self) -> None:
        """Close the connections; a later use opens new ones."""
        self._receiving.close()
        self._answering.close()

    def _answer(self, deliveries: Sequence[Delivery], send: Callable[..., Any], **fields: object) -> None:
        """Send all in batches, then raise for messages that SQS rejected, unless they are no longer ours."""
        failed: list[str] = []
        with self._require_answer():
            for start in range(0, len(deliveries), _MOST_AT_ONCE):
                batch = enumerate(deliveries[start : start + _MOST_AT_ONCE])
                entries = [{"Id": str(n), "ReceiptHandle": delivery.handle, **fields} for n, delivery in batch]
                failures = send(QueueUrl=self._url(), Entries=entries).get("Failed", [])
                failed += [failure["Code"] for failure in failures if not failure["SenderFault"]]
        if failed:
            raise NotReady(f"queue {self.destination} rejected {with_noun(len(failed), 'answer')}: {failed[0]}")

    def _url(self) -> str:
        if not self._cached_url:
            name, account = self.destination.resource, self.destination.account
            owner: Any = {"QueueOwnerAWSAccountId": account} if account else {}
            self._cached_url = self._answering.get_queue_url(QueueName=name, **owner)["QueueUrl"]
        return self._cached_url

    def _require_answer(self) -> AbstractContextManager[None]:
        return aws.require_answer(f"queue {self.destination}")


def _seconds(duration: timedelta, *, most: int = _LONGEST_HIDDEN_S) -> int:
    return min(math.ceil(duration.total_seconds()), most)
