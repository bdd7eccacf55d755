"""Publisher for Azure Queue Storage: one request per message, whose body is one JSON object."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from salon_jobs.brokers.azure.settings import QUEUE_NAME, settings
from salon_jobs.brokers.publisher import (
    AggregateOrder,
    Answers,
    BrokerError,
    ClientPublisher,
    OutgoingMessage,
    PublishFailure,
    Verdict,
)
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import MessageInvalid

if TYPE_CHECKING:
    from salon_jobs.brokers.azure.account import AzureAccount


# 64 KiB of text, before base64.
LARGEST_BYTES: Final = 49_152


class AzureQueuePublisher(ClientPublisher["AzureAccount"]):
    """Publisher to ``rn::azurequeue:::QUEUE`` in the account of the settings.

    Aggregates are sent in parallel, up to ``AzureAccount.concurrency``; messages of one aggregate, one by one. The
    queue is never created here: a publisher needs only the right to add messages.
    """

    service = "azurequeue"

    def check(self, message: OutgoingMessage) -> None:
        """Reject an invalid queue name, and a message that is too large."""
        destination = parse_destination(message.aggregate_type)
        if not QUEUE_NAME.fullmatch(destination.resource):
            raise MessageInvalid(
                f"aggregate_type {destination} is not the name of an Azure queue; write 3 to 63 lower "
                "case letters, digits and single hyphens between them, such as 'rn::azurequeue:::parse-tasks'"
            )
        if destination.region or destination.account:
            raise MessageInvalid(
                f"aggregate_type {destination} names a region or an account, but the settings do; "
                f"write 'rn::azurequeue:::{destination.resource}'"
            )
        if (size := len(_body(message, destination.resource))) > LARGEST_BYTES:
            raise MessageInvalid(
                f"payload is {len(message.payload.encode())} bytes long, and {size} with what goes with it; Azure "
                f"Queue Storage accepts {LARGEST_BYTES} in all: store the content elsewhere and send a reference to it"
            )

    def connect(self) -> AzureAccount:
        """Prepare the connection pool; the first message connects. Raises ConfigurationError."""
        # The SDK takes half a second to import, and a web process, which only calls check, does not need it.
        from salon_jobs.brokers.azure.account import AzureAccount  # noqa: PLC0415

        return AzureAccount("azure-publisher")

    def publish(self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]) -> Answers:
        """Put the messages, different aggregates in parallel."""
        if not messages:
            return []
        queue = parse_destination(messages[0].aggregate_type).resource
        order = AggregateOrder(messages)
        if not QUEUE_NAME.fullmatch(queue):  # written by SQL, which checks nothing
            refused = PublishFailure(Verdict.REFUSED, "AZURE.REFUSED", f"{queue!r} cannot be the name of a queue")
            while (aggregate := order.take()) is not None:
                order.answer(aggregate, refused)
            return order.answers
        account = self.client.get()

        def put_while_ready(_: int) -> None:
            # A thread that publishes a message makes its aggregate ready again, so it finds at least that one.
            while should_continue() and (aggregate := order.take()) is not None:
                order.answer(aggregate, _put(account, queue, _body(order.first_of(aggregate), queue)))

        list(account.threads.map(put_while_ready, range(min(len(order.ready), account.concurrency))))
        return order.answers


def _put(account: AzureAccount, queue: str, body: bytes) -> PublishFailure | None:
    """Put one message; return why it was not accepted."""
    if len(body) > LARGEST_BYTES:
        return PublishFailure(Verdict.REFUSED, "AZURE.TOO_LARGE", f"{len(body)} bytes of at most {LARGEST_BYTES}")
    try:
        account.put(queue, base64.b64encode(body).decode())
    except BrokerError as error:
        return error.failure
    return None


def _body(message: OutgoingMessage, queue: str) -> bytes:
    """Return a JSON object of all fields, or in a plain queue the payload; what is JSON already stays unchanged."""
    if queue in settings.plain_queues:
        return message.payload.encode()
    fields = {
        name.lower().replace("-", "_"): json.dumps(text, ensure_ascii=False) for name, text in message.fields().items()
    }
    members = {**fields, "headers": message.headers, "payload": message.payload}
    return ("{" + ",".join(f'"{name}":{text}' for name, text in members.items()) + "}").encode()
