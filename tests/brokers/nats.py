"""Runs a real nats-server with JetStream."""

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
from typing import Any, TypeVar

import nats
from nats.aio.client import Client

from salon_jobs.core import envelope
from salon_jobs.core.destinations import parse_destination
from salon_jobs.nats.subjects import aggregate_of
from salon_jobs.publishers.base import Publisher
from salon_jobs.publishers.nats import NatsPublisher
from salon_jobs.sources.base import Envelope, Source
from salon_jobs.sources.nats import NatsSource
from tests.brokers.base import Broker

T = TypeVar("T")
_SERVER = Path(sys.prefix, "bin", "nats-server")


class NatsBroker(Broker):
    """Is one nats-server on a port of its own, kept over stop and start. ``configuration`` is text of its file."""

    service = "nats"
    drops_duplicates = True

    def __init__(self, configuration: str = "", **connect: Any) -> None:
        """Prepare its directory. ``connect`` are options of the client that tests look with."""
        self.files = Path(tempfile.mkdtemp(prefix="nats-"))
        self.port = _free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.configuration = configuration
        self.connect: dict[str, Any] = connect
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns when it greets. Nothing to do when it runs."""
        if self._process is not None:
            return
        configuration = self.files / "server.conf"
        configuration.write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{self.files}/data" }}\n{self.configuration}\n'
        )
        with (self.files / "log").open("ab") as log:
            self._process = subprocess.Popen([_SERVER, "-c", configuration], stderr=log, stdout=log)
        until = time.monotonic() + 20
        while not _greets(self.port):
            log_text = (self.files / "log").read_text()
            assert self._process.poll() is None, log_text
            assert time.monotonic() < until, log_text

    def stop(self) -> None:
        """End it as an operator would."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    @property
    def pid(self) -> int:
        """Return the server's process id."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)
        self._process = None

    def close(self) -> None:
        """Stop it and remove its files."""
        self.stop()
        shutil.rmtree(self.files, ignore_errors=True)

    def settings(self) -> dict[str, Any]:
        """Point at it; impatient, for tests."""
        return {"NATS": {"SERVER": self.url, "TIMEOUT": 3, "RECONNECT_WAIT": 0.05, "RECONNECT_JITTER": 0}}

    def destination(self, name: str) -> str:
        """Create a stream that takes the name and everything below."""
        self.stream(name)
        return f"rn::nats:::{name}"

    def stream(self, name: str, subjects: Sequence[str] = (), **options: Any) -> None:
        """Create a stream."""

        async def add(client: Client) -> None:
            taken = list(subjects) or [name, f"{name}.>"]
            await client.jetstream().add_stream(name=name.replace(".", "-"), subjects=taken, **options)

        self.look(add)

    def received(self, destination: str) -> list[Envelope]:
        """Read the stream from its beginning, by numbers."""
        return [_envelope(subject, headers, data) for subject, headers, data in self.stored(destination)]

    def stored(self, destination: str) -> list[tuple[str, dict[str, str], str]]:
        """Return subject, headers and body of everything in the stream, in its order."""
        name = parse_destination(destination).resource.replace(".", "-")

        async def read(client: Client) -> list[tuple[str, dict[str, str], str]]:
            state = (await client.jetstream().stream_info(name)).state
            found: list[tuple[str, dict[str, str], str]] = []
            for sequence in range(state.first_seq, state.last_seq + 1) if state.messages else ():
                answer = await client.request(f"$JS.API.STREAM.MSG.GET.{name}", json.dumps({"seq": sequence}).encode())
                if message := json.loads(answer.data).get("message"):
                    body = base64.b64decode(message.get("data", "")).decode()
                    found.append((message["subject"], _headers(message.get("hdrs", "")), body))
            return found

        return self.look(read)

    def look(self, at: Callable[[Client], Awaitable[T]]) -> T:
        """Do something with a client of the SDK."""

        async def main() -> T:
            client = await nats.connect(self.url, **self.connect)
            try:
                return await at(client)
            finally:
                await client.close()

        return asyncio.run(main())

    def publisher(self) -> Publisher:
        """Make a publisher."""
        return NatsPublisher()

    def source(self, destination: str, *, consumer: str = "test") -> Source:
        """Make a source."""
        return NatsSource(parse_destination(destination), consumer=consumer)

    def spoil(self, destination: str, text: str) -> None:
        """Put a text there without headers."""
        subject = parse_destination(destination).resource
        self.look(lambda client: client.jetstream().publish(subject, text.encode()))


def _headers(encoded: str) -> dict[str, str]:
    lines = base64.b64decode(encoded).decode().split("\r\n")[1:]
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines if line)}


def _envelope(subject: str, headers: dict[str, str], data: str) -> Envelope:
    named = {name.lower(): value for name, value in headers.items()}
    own = {
        name: value
        for name, value in headers.items()
        if name.lower() not in envelope.RESERVED and not name.lower().startswith("nats-")
    }
    aggregate_type = named.get(envelope.AGGREGATE_TYPE.lower(), "")
    return Envelope(
        message_id=named["nats-msg-id"], event=named[envelope.EVENT.lower()], payload=data,
        producer=named.get(envelope.PRODUCER.lower(), ""), aggregate_type=aggregate_type,
        aggregate_id=aggregate_of(parse_destination(aggregate_type).resource, subject),
        store_id=named.get(envelope.STORE_ID.lower(), ""), replay_of=named.get(envelope.REPLAY_OF.lower(), ""),
        headers=own,
    )  # fmt: skip


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _greets(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
            return probe.recv(4) == b"INFO"
    except OSError:
        time.sleep(0.01)
        return False
