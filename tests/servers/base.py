"""What a broker under test offers, so that one suite runs against all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from salon_jobs.brokers.publisher import Publisher
from salon_jobs.brokers.source import Envelope, Source


class Broker(ABC):
    """One real server of one service, observed through its SDK alone."""

    service: ClassVar[str]
    # Whether the messages of an aggregate arrive in order (a plain queue promises nothing).
    keeps_order: ClassVar[bool] = True
    # Whether a message without an aggregate id may be published (a FIFO topic wants a group).
    takes_no_aggregate: ClassVar[bool] = True
    # Whether the broker itself drops a message with an id that it has had.
    drops_duplicates: ClassVar[bool] = False
    # Whether there is a source that receives what its publisher publishes.
    has_source: ClassVar[bool] = True

    @abstractmethod
    def start(self) -> None:
        """Start the server with the messages it held when it was stopped; return when it answers."""

    @abstractmethod
    def stop(self) -> None:
        """End the server; keep its messages until ``close``. Idempotent."""

    def close(self) -> None:
        """Stop for good and remove the files."""
        self.stop()

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the part of SALON_JOBS that points at this server, such as ``{"NATS": {"SERVER": …}}``."""

    @abstractmethod
    def destination(self, name: str) -> str:
        """Create a topic, stream or queue with what its consumer needs; return the ``aggregate_type``."""

    @abstractmethod
    def received(self, destination: str) -> list[Envelope]:
        """Return everything that has arrived, in the broker's order, and leave it there."""

    @abstractmethod
    def publisher(self) -> Publisher:
        """Return a publisher; the settings above are in force."""

    @abstractmethod
    def source(self, destination: str, *, consumer: str = "test") -> Source:
        """Return a source that receives what is published to a destination."""

    def spoil(self, destination: str, text: str) -> None:
        """Put a text there that cannot be parsed as a message."""
        raise NotImplementedError
