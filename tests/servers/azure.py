"""Azure Queue Storage for tests: Azurite, whose files survive a restart."""

from __future__ import annotations

import base64
import json
from typing import Any

from azure.storage.queue import QueueClient

from project.local.azurite.server import Azurite
from salon_jobs.brokers.azure.source import AzureQueueSource
from salon_jobs.brokers.azure.storage_queue import AzureQueuePublisher
from salon_jobs.brokers.source import Envelope
from salon_jobs.core.destinations import parse_destination
from tests.servers.base import Broker

_MOST_PEEKED = 32


class AzureBroker(Azurite, Broker):
    """Azurite with a queue for each destination."""

    service = "azurequeue"

    def settings(self) -> dict[str, Any]:
        return {"AZURE": {"CONNECTION_STRING": self.connection_string}}

    def destination(self, name: str) -> str:
        self.create_queue(name)
        return f"rn::azurequeue:::{name}"

    def received(self, destination: str) -> list[Envelope]:
        with self.queue(destination) as queue:
            messages = queue.peek_messages(max_messages=_MOST_PEEKED)
        assert len(messages) < _MOST_PEEKED, "a peek shows no more than 32: publish fewer in this test"
        return [_envelope(base64.b64decode(message.content)) for message in messages]

    def publisher(self) -> AzureQueuePublisher:
        return AzureQueuePublisher()

    def source(self, destination: str, *, consumer: str = "test") -> AzureQueueSource:
        return AzureQueueSource(parse_destination(destination), consumer=consumer)

    def spoil(self, destination: str, text: str) -> None:
        with self.queue(destination) as queue:
            queue.send_message(text)

    def queue(self, name: str) -> QueueClient:
        """Return the SDK's client for a queue, named by itself or as a destination."""
        return super().queue(name.rpartition(":")[2])


def _envelope(body: bytes) -> Envelope:
    """Parse a body with only the json module. The payload is the text after its key, the last one."""
    fields = json.loads(body)
    del fields["envelope"]
    payload = body.decode().split('"payload":', 1)[1][:-1]
    assert json.loads(payload) == fields["payload"]
    return Envelope(**{**fields, "payload": payload})
