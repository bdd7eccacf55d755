"""Is Azure Queue Storage under test: Azurite, with its files, so that a restart keeps what it holds."""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from socket import create_connection
from typing import Any

from azure.storage.queue import QueueClient, QueueServiceClient

from project.demo.processes import free_port
from salon_jobs.core.destinations import parse_destination
from salon_jobs.publishers.azure_queue import AzureQueuePublisher
from salon_jobs.sources.azure_queue import AzureQueueSource
from salon_jobs.sources.base import Envelope
from tests.brokers.azurite.install import HERE, NODE, installed_program
from tests.brokers.base import Broker

START_S = 30
STOP_S = 10
# The most that a peek shows.
_PEEKED = 32


class AzureBroker(Broker):
    """Runs Azurite on a port of its own, with an account and key of its own."""

    service = "azurequeue"

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="azurite-"))
        self._port = free_port()
        self.key = base64.b64encode(secrets.token_bytes(64)).decode()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def connection_string(self) -> str:
        """Return what the account's owner would copy from the portal."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName=salon;AccountKey={self.key};"
            f"QueueEndpoint=http://127.0.0.1:{self._port}/salon;"
        )

    def start(self) -> None:
        """Start it on the port it had before; returns when it answers. Does nothing while it runs."""
        if self._process is not None:
            return
        with (self._home / "azurite.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    NODE, "--require", HERE / "endable.js", installed_program(), "--location", self._home,
                    "--queueHost", "127.0.0.1", "--queuePort", str(self._port),
                    "--silent", "--disableTelemetry", "--skipApiVersionCheck",
                ],
                stdin=subprocess.PIPE, stdout=log, stderr=log,
                env={**os.environ, "AZURITE_ACCOUNTS": f"salon:{self.key}"},
            )  # fmt: skip
        until = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise RuntimeError(f"Azurite did not start: {(self._home / 'azurite.log').read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it; what it holds is written to its files first."""
        process, self._process = self._process, None
        if process is not None:
            with process:  # closes the pipe
                process.terminate()
                try:
                    process.wait(timeout=STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise

    def close(self) -> None:
        """Stop it and remove its files."""
        self.stop()
        shutil.rmtree(self._home)

    def settings(self) -> dict[str, Any]:
        """Return how to reach it."""
        return {"AZURE": {"CONNECTION_STRING": self.connection_string, "TIMEOUT": 3}}

    def destination(self, name: str) -> str:
        """Create a queue, as whoever deploys would."""
        with QueueServiceClient.from_connection_string(self.connection_string, retry_total=0) as service:
            service.create_queue(name)
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
        return QueueClient.from_connection_string(self.connection_string, parse_destination(destination).resource)

    def _answers(self) -> bool:
        try:
            with create_connection(("127.0.0.1", self._port), timeout=1):
                return True
        except OSError:
            return False


def _envelope(body: bytes) -> Envelope:
    """Read a body by nothing but JSON: the payload is the text after its key, which is the last one."""
    fields = json.loads(body)
    del fields["envelope"]
    payload = body.decode().split('"payload":', 1)[1][:-1]
    assert json.loads(payload) == fields["payload"]
    return Envelope(**{**fields, "payload": payload})
