"""A site on an ASGI server in a process of its own, and clients that write, or leave in the midst of a body."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid4

_PATIENCE_S = 60.0
_CLIENTS = 6
# Less than a body has; the rest fills no buffer on the way, so that the server is still sending.
_READ = 30_000


@dataclass(slots=True)
class Tally:
    """What clients were answered."""

    requests: int = 0
    unanswered: int = 0
    refused: int = 0
    written: set[str] = field(default_factory=set)


@contextmanager
def site(kind: str, pool: int, url: str, log: Path, *, resets: bool = False) -> Generator[int]:
    """Serve a site by uvicorn, and yield the port."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.e2e.streams.settings",
        "DATABASE_URL": url,
        "SCENE": json.dumps({"site": kind, "pool": pool, "resets": resets}),
    }
    with socket.create_server(("127.0.0.1", 0)) as listening, log.open("wb") as output:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "uvicorn", "--factory", "django.core.asgi:get_asgi_application"),
                *("--fd", str(listening.fileno()), "--lifespan", "off", "--log-level", "warning", "--no-access-log"),
            ],
            env=environment,
            pass_fds=[listening.fileno()],
            stdout=output,
            stderr=output,
        )
        try:
            # The socket listens already, so this waits until the site is loaded.
            assert asyncio.run(_get(listening.getsockname()[1], "/nowhere/", uuid4())).startswith(b"HTTP")
            yield listening.getsockname()[1]
        finally:
            server.kill()
            server.wait()


async def _get(port: int, path: str, store: UUID, *, most: int = -1, patience_s: float = _PATIENCE_S) -> bytes:
    """Send a request, and leave once as many bytes are read; by default at the end of the answer."""
    async with asyncio.timeout(patience_s):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            head = f"GET {path} HTTP/1.1\r\nHost: site\r\nX-Store-Id: {store}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode())
            return await (reader.read() if most < 0 else reader.readexactly(most))
        finally:
            writer.transport.abort()


def visit(port: int, store: UUID, paths: list[str], *, rounds: int) -> Tally:
    """Send requests to the paths from several clients at once, who leave each stream and wait for each write."""
    tally = Tally()

    async def be_a_client(number: int) -> None:
        for turn in range(rounds):
            path = paths[(number + turn) % len(paths)]
            name = f"written {uuid4()}"
            tally.requests += 1
            try:
                if path.startswith("/stream/"):
                    await _get(port, path, store, most=_READ)
                    continue
                answer = await _get(port, f"{path}?name={name.replace(' ', '+')}", store)
            except TimeoutError:
                tally.unanswered += 1
            except asyncio.IncompleteReadError as error:  # shorter than the body is
                tally.refused += b" 200 " not in error.partial[:20]
            else:
                succeeded = b" 200 " in answer[:20]
                tally.refused += not succeeded
                if succeeded:
                    tally.written.add(name)

    async def be_clients() -> None:
        await asyncio.gather(*(be_a_client(number) for number in range(_CLIENTS)))

    asyncio.run(be_clients())
    return tally
