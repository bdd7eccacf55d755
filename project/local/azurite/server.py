"""Azurite's queues as a process that can be stopped and restarted with its data."""

from __future__ import annotations

import base64
import secrets
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from socket import create_connection
from typing import Final

from azure.storage.queue import QueueClient, QueueServiceClient

from project.local.azurite.install import HERE, NODE, installed_program
from project.local.ports import free_port
from project.local.postgres_install import ServerFailed

_START_S: Final = 30
_STOP_S: Final = 10


class Azurite:
    """One Azurite with its own port, account and key."""

    def __init__(self) -> None:
        """Prepare its folder without starting it."""
        self._home = Path(tempfile.mkdtemp(prefix="azurite-"))
        self._port = free_port()
        self.key = base64.b64encode(secrets.token_bytes(64)).decode()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def connection_string(self) -> str:
        """Connection string, as the account's owner would copy it from the portal."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName=salon;AccountKey={self.key};"
            f"QueueEndpoint=http://127.0.0.1:{self._port}/salon;"
        )

    def start(self) -> None:
        """Start it on its previous port; return when it answers. On first use npm installs it, which takes about 20 s.

        Does nothing if it is running. Raises ServerFailed.
        """
        if self._process is not None:
            return
        program = installed_program()
        with (self._home / "azurite.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    NODE,
                    "--require",
                    HERE / "endable.js",
                    program,
                    "--location",
                    self._home,
                    "--queueHost",
                    "127.0.0.1",
                    "--queuePort",
                    str(self._port),
                    "--silent",
                    "--disableTelemetry",
                    "--skipApiVersionCheck",
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"AZURITE_ACCOUNTS": f"salon:{self.key}"},
            )
        until = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise ServerFailed(f"Azurite did not start: {(self._home / 'azurite.log').read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop it after it has written its data to files. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            with process:  # closes the pipe
                process.terminate()
                try:
                    process.wait(timeout=_STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise

    def close(self) -> None:
        """Stop it and remove its files."""
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def create_queue(self, name: str) -> None:
        """Create a queue, as a deployment would."""
        with QueueServiceClient.from_connection_string(self.connection_string, retry_total=0) as service:
            service.create_queue(name)

    def queue(self, name: str) -> QueueClient:
        """Return the SDK's client for a queue."""
        return QueueClient.from_connection_string(self.connection_string, name)

    def _answers(self) -> bool:
        try:
            with create_connection(("127.0.0.1", self._port), timeout=1):
                return True
        except OSError:
            return False
