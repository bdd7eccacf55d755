"""Turns SIGTERM and SIGINT into something a main thread can wait for."""

from __future__ import annotations

import queue
import signal
from types import FrameType


class StopSignals:
    """Collects stop signals. The handler only puts into a SimpleQueue: safe at any bytecode, as an Event is not."""

    def __init__(self) -> None:
        self._arrived: queue.SimpleQueue[int] = queue.SimpleQueue()

    def install(self) -> None:
        """Take over SIGTERM and SIGINT. Main thread only."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a signal; False when none came in time."""
        try:
            self._arrived.get(timeout=timeout_s)
        except queue.Empty:
            return False
        return True

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._arrived.put(number)
