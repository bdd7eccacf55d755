"""Is Azure Queue Storage under test: Azurite, with its files, so that a restart keeps what it holds."""

from __future__ import annotations

import base64
import json
from typing import Any

from azure.storage.queue import QueueClient

from project.local.azurite.server import Azurite
from salon_jobs.brokers.azure.publisher import AzureQueuePublisher
from salon_jobs.brokers.azure.source import AzureQueueSource
from salon_jobs.brokers.source import Envelope
from salon_jobs.core.destinations import parse_destination
from tests.servers.base import Broker

# The most that a peek shows.
_PEEKED = 32


class AzureBroker(Broker):
    """Runs Azurite."""

    service = "azurequeue"

    def __init__(self) -> None:
        self._azurite = Azurite()

    @property
    def connection_string(self) -> str:
        """Return what the account's owner would copy from the portal."""
        return self._azurite.connection_string

    @property
    def key(self) -> str:
        """Return the account's key."""
        return self._azurite.key

    def start(self) -> None:
        """Start it on the port it had before; returns when it answers. Does nothing while it runs."""
        self._azurite.start()

    def stop(self) -> None:
        """End it; what it holds is written to its files first."""
        self._azurite.stop()

    def close(self) -> None:
        """Stop it and remove its files."""
        self._azurite.close()

    def settings(self) -> dict[str, Any]:
        """Return how to reach it."""
        return {"AZURE": {"CONNECTION_STRING": self.connection_string, "TIMEOUT": 3}}

    def destination(self, name: str) -> str:
        """Create a queue, as whoever deploys would."""
        self._azurite.create_queue(name)
        return f"rn::azurequeue:::{name}"

    def received(self, destination: str) -> list[Envelope]:
        """Peek at what is there, in the order in which it would be received."""
        with self.queue(destination) as queue:
            messages = queue.peek_messages(max_messages=_PEEKED)
        assert len(messages) < _PEEKED, "a peek shows no more than 32: publish fewer in this test"
        return [_envelope(base64.b64decode(message.content)) for message in messages]

    def publisher(self) -> AzureQueuePublisher:
        """Make a publisher."""
        return AzureQueuePublisher()

    def source(self, destination: str, *, consumer: str = "test") -> AzureQueueSource:
        """Make a source."""
        return AzureQueueSource(parse_destination(destination), consumer=consumer)

    def spoil(self, destination: str, text: str) -> None:
        """Put a text there as it is."""
        with self.queue(destination) as queue:
            queue.send_message(text)

    def queue(self, destination: str) -> QueueClient:
        """Return the SDK's client of a queue."""
        return self._azurite.queue(parse_destination(destination).resource)


def _envelope(body: bytes) -> Envelope:
    """Read a body by nothing but JSON: the payload is the text after its key, which is the last one."""
    fields = json.loads(body)
    del fields["envelope"]
    payload = body.decode().split('"payload":', 1)[1][:-1]
    assert json.loads(payload) == fields["payload"]
    return Envelope(**{**fields, "payload": payload})
