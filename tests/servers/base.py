"""Declares what a broker under test is, so that one suite runs against all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from salon_jobs.brokers.publisher import Publisher
from salon_jobs.brokers.source import Envelope, Source


class Broker(ABC):
    """Is one real server of one service, with what looks at it from its own side, by its SDK alone."""

    service: ClassVar[str]
    # Whether everything an aggregate gets arrives in order there (a plain queue promises nothing).
    keeps_order: ClassVar[bool] = True
    # Whether a message without an aggregate id may be published (a FIFO topic wants a group).
    takes_no_aggregate: ClassVar[bool] = True
    # Whether the broker itself drops what comes again under the same id.
    drops_duplicates: ClassVar[bool] = False
    # Whether there is a source that receives what its publisher publishes.
    has_source: ClassVar[bool] = True

    @abstractmethod
    def start(self) -> None:
        """Start the server, with what it held before if it was stopped; returns when it answers."""

    @abstractmethod
    def stop(self) -> None:
        """End the server, by its pid; returns when it ended. Idempotent. What it holds is kept until ``close``."""

    def close(self) -> None:
        """Stop for good and remove its files."""
        self.stop()

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the part of SALON_JOBS that points at it, such as ``{"NATS": {"SERVER": …}}``."""

    @abstractmethod
    def destination(self, name: str) -> str:
        """Create a topic, stream or queue with what a consumer of it needs; returns the ``aggregate_type``."""

    @abstractmethod
    def received(self, destination: str) -> list[Envelope]:
        """Return everything that arrived there so far, in the broker's order, read by the SDK and left there."""

    @abstractmethod
    def publisher(self) -> Publisher:
        """Make a publisher for it; the settings above are in force."""

    @abstractmethod
    def source(self, destination: str, *, consumer: str = "test") -> Source:
        """Make a source that receives what is published to a destination."""

    def spoil(self, destination: str, text: str) -> None:
        """Put a text there, by the SDK alone, that is no message of ours and cannot be read as one."""
        raise NotImplementedError
