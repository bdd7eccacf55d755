"""Publisher for Azure Queue Storage: one request per message, whose body is one JSON object."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from salon_jobs.brokers.azure.settings import AT_ONCE, QUEUE_NAME, azure_settings
from salon_jobs.brokers.publisher import Answers, OutgoingMessage, PublishFailure, Verdict
from salon_jobs.brokers.sender import BrokerError, Sender, SendingPublisher
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import MessageInvalid

if TYPE_CHECKING:
    from salon_jobs.brokers.azure.account import AzureAccount


# 64 KiB of text, before base64.
LARGEST_BYTES: Final = 49_152


class AzureQueuePublisher(SendingPublisher["AzureAccount"]):
    """Publisher to ``rn::azurequeue:::QUEUE`` in the account of the settings.

    Aggregates are sent in parallel, messages of one aggregate one by one. The queue is never created here: a publisher
    needs only the right to add messages.
    """

    service = "azurequeue"
    window = AT_ONCE

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

    def send(self, sender: Sender, resource: str) -> None:
        """Put the messages, different aggregates in parallel."""
        if not QUEUE_NAME.fullmatch(resource):
            sender.stop(PublishFailure(Verdict.REFUSED, "AZURE.REFUSED", f"{resource!r} cannot be the name of a queue"))
            return
        account = self.client.get()

        def put(messages: Sequence[OutgoingMessage]) -> PublishFailure | Answers:
            [message] = messages
            body = _body(message, resource)
            if len(body) > LARGEST_BYTES:
                return PublishFailure(
                    Verdict.REFUSED, "AZURE.TOO_LARGE", f"{len(body)} bytes of at most {LARGEST_BYTES}"
                )
            try:
                account.put(resource, base64.b64encode(body).decode())
            except BrokerError as error:
                return error.failure
            return [None]

        sender.send_by(put, account.threads)


def _body(message: OutgoingMessage, queue: str) -> bytes:
    """Return a JSON object of all fields, or in a plain queue the payload; JSON values stay unchanged."""
    if queue in azure_settings.plain_queues:
        return message.payload.encode()
    fields = {
        name.lower().replace("-", "_"): json.dumps(text, ensure_ascii=False) for name, text in message.fields().items()
    }
    members = {**fields, "headers": message.headers, "payload": message.payload}
    return ("{" + ",".join(f'"{name}":{text}' for name, text in members.items()) + "}").encode()
