"""Interface of a broker under test, so that one suite runs against all."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from salon_jobs.brokers.publisher import Publisher
from salon_jobs.brokers.source import Envelope, Source

TEXTS = ("message_id", "event", "payload", "producer", "aggregate_type", "aggregate_id", "store_id", "replay_of")


class Broker(ABC):
    """Real server of one service, observed only through its SDK."""

    service: ClassVar[str]
    # Whether the messages of an aggregate arrive in order (a plain queue does not promise it).
    keeps_order: ClassVar[bool] = True
    # Whether a message without an aggregate ID may be published (a FIFO topic requires a group).
    takes_no_aggregate: ClassVar[bool] = True
    # Whether the broker itself drops a message with an ID that it has already received.
    drops_duplicates: ClassVar[bool] = False
    # Whether a source can receive what its publisher publishes.
    has_source: ClassVar[bool] = True

    @abstractmethod
    def start(self) -> None:
        """Start the server with the messages it had when it was stopped; return once it answers."""

    @abstractmethod
    def stop(self) -> None:
        """End the server; keep its messages until ``close``. Idempotent."""

    @abstractmethod
    def close(self) -> None:
        """Stop the server and remove its files."""

    def settings(self) -> dict[str, Any]:
        """Return the part of SALON_JOBS that points at this server, such as ``{"NATS": {"SERVER": …}}``."""
        return {}

    @abstractmethod
    def destination(self, name: str) -> str:
        """Create a topic, stream or queue, and what a consumer of it needs; return the ``aggregate_type``."""

    def received(self, destination: str) -> list[Envelope]:
        """Return everything that has arrived, in the broker's order, without removing it."""
        raise NotImplementedError

    @abstractmethod
    def publisher(self) -> Publisher:
        """Return a publisher. Call it with ``settings`` applied."""

    def source(self, destination: str, *, consumer: str = "test") -> Source:
        """Return a source that receives what is published to a destination."""
        raise NotImplementedError

    def spoil(self, destination: str, text: str) -> None:
        """Send a text that cannot be parsed as a message."""
        raise NotImplementedError


def envelope_of(message: Mapping[str, Any]) -> Envelope:
    """Return what should be read of a message, given its fields by name."""
    return Envelope(headers=json.loads(message["headers"]), **{name: str(message[name] or "") for name in TEXTS})
