"""Runs a Redis for the peers that keep their jobs there, and counts what is in their queues."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from benchmarks.processes import ProcessFailed
from project.local.ports import free_port

# What Redis recommends where jobs are to survive a restart; a crash of the machine costs up to a second of them.
OPTIONS: Final = {"appendonly": "yes", "appendfsync": "everysec", "save": ""}
_START_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class RedisDatabase:
    """Names a running Redis."""

    superuser_url: str
    process: int

    def settle(self) -> None:
        """Do nothing: no work is left over."""

    def server_pid(self) -> int:
        """Return the server's process."""
        return self.process


class RedisQueue:
    """Says by which commands the unfinished jobs of one contestant are counted."""

    def __init__(self, *commands: str) -> None:
        self._commands = commands

    def watch(self, url: str) -> RedisWatch:
        """Return what counts them."""
        return RedisWatch(url, self._commands)

    def empty(self, url: str) -> None:
        """Remove every job, and all else."""
        _call(url, "FLUSHALL")


class RedisWatch:
    """Counts the unfinished jobs of one queue."""

    def __init__(self, url: str, commands: tuple[str, ...]) -> None:
        self._url = url
        self._commands = commands
        self.jobs = self.unfinished()

    def unfinished(self) -> int:
        """Return how many are left."""
        return sum(int(_call(self._url, command)) for command in self._commands)

    # Counting all is cheap here.
    def any_unfinished(self) -> bool:
        """Tell whether any is left."""
        return self.unfinished() > 0

    def is_half_unfinished(self) -> bool:
        """Tell whether more than half of them are left."""
        return self.unfinished() > self.jobs // 2

    def close(self) -> None:
        """Do nothing: no connection is kept."""


@contextmanager
def redis_server(program: Path) -> Iterator[RedisDatabase]:
    """Run a server of its own on a free port; its data goes when it ends."""
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    with tempfile.TemporaryDirectory(prefix="salon-bench-redis-") as folder:
        options = [word for name, value in OPTIONS.items() for word in (f"--{name}", value)]
        words = [str(program), "--bind", "127.0.0.1", "--port", str(port), "--dir", folder, *options]
        with (Path(folder) / "log").open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
            try:
                _wait_for(url, process)
                yield RedisDatabase(url, process.pid)
            finally:
                process.kill()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(ConnectionError):
            _call(url, "PING")
            return
        time.sleep(0.02)
    raise ProcessFailed(f"Redis did not start: {process.args!r}")


def _call(url: str, command: str) -> str:
    """Return the one-line answer to a command."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
        connection.sendall(f"{command}\r\n".encode())
        answer = connection.makefile("rb").readline().decode().strip()
    if answer[:1] not in {":", "+"}:
        raise ProcessFailed(f"Redis answered {command} with {answer!r}")
    return answer[1:]
