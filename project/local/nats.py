"""Real nats-server with JetStream that can be stopped and restarted with its data."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import nats
from nats.aio.client import Client

from project.local.ports import free_port
from project.local.postgres_install import ServerFailed

T = TypeVar("T")
_SERVER: Final = Path(sys.prefix, "bin", "nats-server")
_START_S: Final = 20.0
_LOOK_S: Final = 120.0


class NatsServer:
    """One nats-server with its own port. ``configuration``: text of its file; ``connect``: options for clients."""

    def __init__(self, configuration: str = "", **connect: Any) -> None:
        """Prepare its folder without starting it."""
        self.files = Path(tempfile.mkdtemp(prefix="nats-"))
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.configuration = configuration
        self.connect: dict[str, Any] = connect
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process ID of the server. Raises ServerFailed if it is not running."""
        return self._running().pid

    def start(self) -> None:
        """Start it unless it is running; return when it sends its greeting. Raises ServerFailed with its log."""
        if self._process is not None:
            return
        configuration = self.files / "server.conf"
        configuration.write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{self.files}/data" }}\n{self.configuration}\n'
        )
        with (self.files / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_SERVER, "-c", configuration], stderr=log, stdout=log, start_new_session=True
            )
        until = time.monotonic() + _START_S
        while not _greets(self.port):
            if self._process.poll() is not None or time.monotonic() > until:
                raise ServerFailed(f"nats-server did not start:\n{(self.files / 'log').read_text()}")

    def stop(self) -> None:
        """Stop it, as an operator would. Idempotent."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def kill(self) -> None:
        """Kill it, as a power cut would."""
        self._running().kill()
        self._running().wait(30)
        self._process = None

    def close(self) -> None:
        """Stop it and remove its files."""
        self.stop()
        shutil.rmtree(self.files, ignore_errors=True)

    def stream(self, name: str, subjects: Sequence[str] = (), **options: Any) -> None:
        """Create a stream for the subject with its name and everything below, or for the given subjects."""

        async def add(client: Client) -> None:
            taken = list(subjects) or [name, f"{name}.>"]
            await client.jetstream().add_stream(name=name.replace(".", "-"), subjects=taken, **options)

        self.look(add)

    def messages(self, stream: str) -> list[tuple[str, dict[str, str], str]]:
        """Return subject, headers and body of all messages in a stream, from the beginning, by sequence number."""

        async def read(client: Client) -> list[tuple[str, dict[str, str], str]]:
            state = (await client.jetstream().stream_info(stream)).state
            found: list[tuple[str, dict[str, str], str]] = []
            for sequence in range(state.first_seq, state.last_seq + 1) if state.messages else ():
                asked = json.dumps({"seq": sequence}).encode()
                answer = await client.request(f"$JS.API.STREAM.MSG.GET.{stream}", asked, timeout=_LOOK_S)
                if message := json.loads(answer.data).get("message"):
                    body = base64.b64decode(message.get("data", "")).decode()
                    found.append((message["subject"], _headers(message.get("hdrs", "")), body))
            return found

        return self.look(read)

    def look(self, at: Callable[[Client], Awaitable[T]]) -> T:
        """Call a function with a client of the SDK. Raises TimeoutError when the server does not answer."""

        async def main() -> T:
            client = await nats.connect(self.url, **self.connect)
            try:
                return await at(client)
            finally:
                await client.close()

        return asyncio.run(asyncio.wait_for(main(), _LOOK_S))

    def __enter__(self) -> Self:
        """Start it; clean up if that fails."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerFailed("nats-server is not running")
        return self._process


def _headers(encoded: str) -> dict[str, str]:
    lines = base64.b64decode(encoded).decode().split("\r\n")[1:]
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines if line)}


def _greets(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
            return probe.recv(4) == b"INFO"
    except OSError:
        time.sleep(0.01)
        return False
