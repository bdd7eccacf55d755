"""Runs a real NATS server with JetStream on a free port of 127.0.0.1, from the wheel that brings it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_SERVER: Final = Path(sys.prefix, "bin", "nats-server")
_PATIENCE_S: Final = 20.0
_LOOK_S: Final = 0.02


class NatsServer:
    """Is one server; port and streams are kept over ``stop`` and ``start``. A context manager: it always ends."""

    def __init__(self) -> None:
        self._files = Path(tempfile.mkdtemp(prefix="nats-"))
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return where clients connect."""
        return f"nats://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it; returns when it greets. Raises RuntimeError with the end of its log when it does not."""
        command = [str(_SERVER), "-a", "127.0.0.1", "-p", str(self._port), "-js", "-sd", str(self._files / "data")]
        with (self._files / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        until = time.monotonic() + _PATIENCE_S
        while not self._greets():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"nats-server did not start: {(self._files / 'log').read_text()[-2000:]}")
            time.sleep(_LOOK_S)

    def stop(self) -> None:
        """End it, by its pid; returns when it ended. Idempotent."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._files, ignore_errors=True)

    def _greets(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
