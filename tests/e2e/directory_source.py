"""Queue of files: what one process received and did not acknowledge, the next one receives.

The resource of its RN is the directory. While the file ``hold`` is in it, an acknowledgement waits and creates the
file ``held``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from salon_jobs.brokers.source import Delivery, Envelope, Source


def consuming(queue: Path) -> dict[str, Any]:
    """Return the settings with which the consumer ``orders`` has a job for each message in a folder."""
    return {
        "CONSUMERS": {"orders": {"SOURCE": f"rn::directory:::{queue}", "TASKS": {"noted": "e2e-nothing"}}},
        "OUTBOX": {"PRODUCER": "test", "SOURCES": {"directory": "tests.e2e.directory_source.DirectorySource"}},
    }


def send(queue: Path, message_id: str, *, payload: str = "{}", event: str = "noted") -> None:
    """Put a message into a queue."""
    file = queue / message_id
    file.with_suffix(".part").write_text(json.dumps({"message_id": message_id, "event": event, "payload": payload}))
    file.with_suffix(".part").rename(file.with_suffix(".json"))


class DirectorySource(Source):
    """Source that receives each file once."""

    service = "directory"
    _seen: frozenset[Path] = frozenset()

    def receive(self, limit: int, *, wait: timedelta, visibility: timedelta) -> list[Delivery]:
        """Return new files, in the order of their names."""
        new = sorted(set(self._files) - self._seen)[:limit]
        self._seen |= set(new)
        if not new:
            time.sleep(wait.total_seconds())
        return [
            Delivery(count=1, raw=file.read_text(), handle=file, envelope=Envelope(**json.loads(file.read_text())))
            for file in new
        ]

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Delete the files."""
        while (self._queue / "hold").exists():
            (self._queue / "held").touch()
            time.sleep(0.02)
        for delivery in deliveries:
            assert isinstance(delivery.handle, Path)
            delivery.handle.unlink()

    def extend(self, deliveries: Sequence[Delivery], *, visibility: timedelta) -> None:
        """Do nothing: only this process sees them."""

    def give_back(self, deliveries: Sequence[Delivery], *, after: timedelta) -> None:
        """Receive them again."""
        self._seen -= {delivery.handle for delivery in deliveries if isinstance(delivery.handle, Path)}

    @property
    def _queue(self) -> Path:
        return Path(self.destination.resource)

    @property
    def _files(self) -> list[Path]:
        return list(self._queue.glob("*.json"))
