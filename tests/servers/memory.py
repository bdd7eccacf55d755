"""Memory publisher as a broker under test: a stopped server is simulated by its answers."""

from __future__ import annotations

from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure, Verdict
from salon_jobs.brokers.source import Envelope
from salon_jobs.core.errors import NotReady
from tests.servers.base import Broker, envelope_of


class StoppableMemoryPublisher(MemoryPublisher):
    """Publisher that is down, or lacks a destination, when its broker says so."""

    def __init__(self, broker: MemoryBroker) -> None:
        type(self).answer = broker.answer
        self.broker = broker

    def ping(self) -> None:
        if not self.broker.running:
            raise NotReady("memory is stopped")


class MemoryBroker(Broker):
    service = "memory"
    has_source = False
    running = False

    def __init__(self) -> None:
        self.destinations: set[str] = set()

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False

    def close(self) -> None:
        StoppableMemoryPublisher.forget()

    def destination(self, name: str) -> str:
        self.destinations.add(f"rn::memory:::{name}")
        return f"rn::memory:::{name}"

    def received(self, destination: str) -> list[Envelope]:
        published = StoppableMemoryPublisher.published
        return [envelope_of(message._asdict()) for message in published if message.aggregate_type == destination]

    def publisher(self) -> MemoryPublisher:
        return StoppableMemoryPublisher(self)

    def answer(self, message: OutgoingMessage) -> PublishFailure | None:
        if not self.running:
            return PublishFailure(Verdict.OUTAGE, "MEMORY.STOPPED")
        is_missing = message.aggregate_type not in self.destinations
        return PublishFailure(Verdict.MISSING, "MEMORY.NO_DESTINATION") if is_missing else None
