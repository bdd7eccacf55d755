"""Memory publisher as a broker under test: a stopped server is simulated by its answers."""

from __future__ import annotations

import json
from typing import Any

from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure, Verdict
from salon_jobs.brokers.source import Envelope, Source
from salon_jobs.core.errors import NotReady
from tests.servers.base import Broker


class StoppableMemoryPublisher(MemoryPublisher):
    """Publisher that is down, or lacks a destination, when its broker says so."""

    def __init__(self, broker: MemoryBroker) -> None:
        type(self).answer = broker.answer

    def ping(self) -> None:
        if not MemoryBroker.running:
            raise NotReady("memory is stopped")


class MemoryBroker(Broker):
    service = "memory"
    has_source = False
    running = False

    def __init__(self) -> None:
        self.destinations: set[str] = set()

    def start(self) -> None:
        type(self).running = True

    def stop(self) -> None:
        type(self).running = False

    def close(self) -> None:
        self.stop()
        StoppableMemoryPublisher.forget()

    def settings(self) -> dict[str, Any]:
        return {}

    def destination(self, name: str) -> str:
        self.destinations.add(f"rn::memory:::{name}")
        return f"rn::memory:::{name}"

    def received(self, destination: str) -> list[Envelope]:
        return [
            Envelope(
                message_id=str(message.message_id),
                event=message.event,
                payload=message.payload,
                producer=message.producer,
                aggregate_type=message.aggregate_type,
                aggregate_id=message.aggregate_id,
                store_id=str(message.store_id or ""),
                replay_of=str(message.replay_of or ""),
                headers=json.loads(message.headers),
            )
            for message in StoppableMemoryPublisher.published
            if message.aggregate_type == destination
        ]

    def publisher(self) -> MemoryPublisher:
        return StoppableMemoryPublisher(self)

    def source(self, destination: str, *, consumer: str = "test") -> Source:
        raise LookupError("nothing receives from memory")

    def answer(self, message: OutgoingMessage) -> PublishFailure | None:
        if not self.running:
            return PublishFailure(Verdict.OUTAGE, "MEMORY.STOPPED")
        if message.aggregate_type not in self.destinations:
            return PublishFailure(Verdict.MISSING, "MEMORY.NO_DESTINATION")
        return None
