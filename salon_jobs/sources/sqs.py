"""Receives from a queue of AWS SQS, which one or more topics of SNS deliver to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from salon_jobs.conf import settings
from salon_jobs.core.destinations import Destination
from salon_jobs.core.errors import NotReady
from salon_jobs.publishers import aws
from salon_jobs.sources.base import Delivery, Source
from salon_jobs.sources.sqs_messages import delivery_of

if TYPE_CHECKING:
    from mypy_boto3_sqs.type_defs import BatchResultErrorEntryTypeDef

_MOST_AT_ONCE: Final = 10  # of each call
_LONGEST_WAIT_S: Final = 20
_LONGEST_HIDDEN_S: Final = 43_200
_PING_S: Final = 2.0  # to connect, and again for the answer


class SqsSource(Source):
    """Receives by long polling: ``wait`` and ``visibility`` are rounded up to whole seconds, and 20 s and 12 h at most.

    The queue is found by its name, in the region and account of its ARN, or in those of the settings where they are
    left out (``rn::sqs:::orders``).
    """

    service: ClassVar[str] = "sqs"

    def __init__(self, destination: Destination, *, consumer: str) -> None:
        super().__init__(destination, consumer=consumer)
        timeout_s = settings.sns.timeout.total_seconds()
        # A long poll is answered late. No second attempt: what the first one received would be hidden for nothing.
        self._receiving = aws.client(
            "sqs", timeout_s=timeout_s + _LONGEST_WAIT_S, attempts=1, region=destination.region
        )
        self._answering = aws.client("sqs", timeout_s=timeout_s, attempts=2, region=destination.region)
        self._pinging = aws.client("sqs", timeout_s=_PING_S, attempts=1, region=destination.region)
        self._known_url = ""

    def receive(self, limit: int, *, wait: timedelta, visibility: timedelta) -> list[Delivery]:
        """Return up to ``limit`` deliveries, by calls for ten each."""
        received: list[Delivery] = []
        wait_s = min(_seconds(wait), _LONGEST_WAIT_S)
        try:
            while len(received) < limit:
                answer = self._receiving.receive_message(
                    QueueUrl=self._url(), MaxNumberOfMessages=min(limit - len(received), _MOST_AT_ONCE),
                    WaitTimeSeconds=0 if received else wait_s, VisibilityTimeout=_hidden_s(visibility),
                    MessageAttributeNames=["All"], MessageSystemAttributeNames=["ApproximateReceiveCount"],
                )  # fmt: skip
                messages = answer.get("Messages", [])
                received += map(delivery_of, messages)
                if not messages:
                    break
        except aws.ERRORS as error:
            if not received:
                raise self._not_ready(error) from error
        return received

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Delete them. A receipt that is no longer valid belongs to a message that is somebody else's by now."""

        def delete(entries: list[Any]) -> list[BatchResultErrorEntryTypeDef]:
            return self._answering.delete_message_batch(QueueUrl=self._url(), Entries=entries).get("Failed", [])

        self._answer(deliveries, delete)

    def extend(self, deliveries: Sequence[Delivery], *, visibility: timedelta) -> None:
        """Hide them for that long from now on, 12 h after they were received at most."""
        self._hide(deliveries, seconds=_hidden_s(visibility))

    def give_back(self, deliveries: Sequence[Delivery], *, after: timedelta) -> None:
        """Show them again after that long."""
        self._hide(deliveries, seconds=_hidden_s(after))

    def ping(self) -> None:
        """Ask for the queue's address."""
        try:
            self._pinging.get_queue_url(**self._queue())
        except aws.ERRORS as error:
            raise self._not_ready(error) from error

    def close(self) -> None:
        """Close the connections; a later use opens new ones."""
        for client in (self._receiving, self._answering, self._pinging):
            client.close()

    def _hide(self, deliveries: Sequence[Delivery], *, seconds: int) -> None:
        def hide(entries: list[Any]) -> list[BatchResultErrorEntryTypeDef]:
            entries = [{**entry, "VisibilityTimeout": seconds} for entry in entries]
            return self._answering.change_message_visibility_batch(QueueUrl=self._url(), Entries=entries).get(
                "Failed", []
            )

        self._answer(deliveries, hide)

    def _answer(
        self, deliveries: Sequence[Delivery], send: Callable[[list[Any]], list[BatchResultErrorEntryTypeDef]]
    ) -> None:
        """Send all in batches, then tell of those that SQS did not take; what is no longer ours is no fault of its."""
        failed: list[str] = []
        try:
            for entries in _batches(deliveries):
                failed += [failure["Code"] for failure in send(entries) if not failure["SenderFault"]]
        except aws.ERRORS as error:
            raise self._not_ready(error) from error
        if failed:
            raise NotReady(f"queue {self.destination} did not take {len(failed)} answers: {failed[0]}")

    def _url(self) -> str:
        if not self._known_url:
            self._known_url = self._answering.get_queue_url(**self._queue())["QueueUrl"]
        return self._known_url

    def _queue(self) -> Any:
        owner = {"QueueOwnerAWSAccountId": self.destination.account} if self.destination.account else {}
        return {"QueueName": self.destination.resource, **owner}

    def _not_ready(self, error: Exception) -> NotReady:
        return NotReady(f"queue {self.destination} does not answer: {error}")


def _batches(deliveries: Sequence[Delivery]) -> Iterator[list[Any]]:
    for start in range(0, len(deliveries), _MOST_AT_ONCE):
        some = deliveries[start : start + _MOST_AT_ONCE]
        yield [{"Id": str(place), "ReceiptHandle": delivery.handle} for place, delivery in enumerate(some)]


def _hidden_s(duration: timedelta) -> int:
    return min(_seconds(duration), _LONGEST_HIDDEN_S)


def _seconds(duration: timedelta) -> int:
    return math.ceil(duration.total_seconds())
