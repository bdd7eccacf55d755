"""Carries JSON lines between a supervisor and one child, and lets each notice at once that the other is gone."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any


class Link:
    """Is one end of a socket pair. A process that dies, however it dies, ends the other side's ``received``."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = threading.Lock()

    def send(self, **message: Any) -> bool:
        """Send one message, from any thread; False when the other side is gone."""
        try:
            with self._sending:
                self._end.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def received(self) -> Iterator[dict[str, Any]]:
        """Yield what arrives until the other side is gone; one thread's to use."""
        try:
            with self._end.makefile("rb") as lines:
                for line in lines:
                    if line.endswith(b"\n"):  # else it died while it wrote
                        yield json.loads(line)
        except OSError:
            return

    def close(self) -> None:
        """Close this end."""
        self._end.close()
