"""Runs relays in threads of the test, and publishes into memory."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db import connections, transaction

from salon_jobs import emit
from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.models import Process
from salon_jobs.outbox.relay import Relay
from tests.support import seen

ORDERS = "rn::memory:::orders"


def emitted(aggregate_id: str = "", *, event: str = "order.created", number: int = 0, to: str = ORDERS) -> UUID:
    """Emit one message in a transaction of its own."""
    with transaction.atomic():
        return emit(to, aggregate_id=aggregate_id, event=event, payload={"number": number})


def relay_in_burst() -> bool:
    """Relay what is due, in this thread."""
    process = Process.objects.create(kind="relay", hostname="test", pid=1)
    try:
        return Relay(lambda: process.pk, burst=True).run()
    finally:
        Process.objects.filter(pk=process.pk).delete()


class RunningRelay:
    """Is a relay in a thread of its own."""

    def __init__(self) -> None:
        self.process_id = Process.objects.create(kind="relay", hostname="test", pid=1).pk
        self.relay = Relay(lambda: self.process_id)
        self.clean: bool | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self) -> bool:
        """Stop it; returns whether it ended cleanly."""
        self.relay.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()
        Process.objects.filter(pk=self.process_id).delete()
        return bool(self.clean)

    def facts(self) -> dict[str, Any]:
        """Return what it tells about itself."""
        return self.relay.facts()

    def _run(self) -> None:
        try:
            self.clean = self.relay.run()
        finally:
            connections.close_all()


@contextmanager
def relaying() -> Generator[RunningRelay]:
    """Run a relay around the block."""
    running = RunningRelay()
    try:
        yield running
    finally:
        running.stop()


def arrived(to: str = ORDERS) -> list[tuple[str, int]]:
    """Return what arrived, as (aggregate id, number)."""
    import json

    return [
        (message.aggregate_id, json.loads(message.payload)["number"])
        for message in list(MemoryPublisher.published)
        if message.aggregate_type == to
    ]


def statuses() -> dict[str, int]:
    """Count the messages by status."""
    return dict(seen("SELECT status, count(*) FROM salon_jobs_message GROUP BY 1"))
