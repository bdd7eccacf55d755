"""Declares what a source is: where ``consume_queue`` receives deliveries, and how it answers them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

from salon_jobs.core.destinations import Destination


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Is what a message says, whatever carried it. ``message_id`` is fixed by whoever wrote it (salon_jobs: a uuid).

    ``payload`` is JSON text. ``replay_of`` is the id of the message that an operator sent again on purpose under this
    new id.
    """

    message_id: str
    event: str
    payload: str
    producer: str = ""
    aggregate_type: str = ""
    aggregate_id: str = ""
    store_id: str = ""
    replay_of: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Is one receipt of one message. Either ``envelope``, or ``fault``: why what came can not be read.

    ``count`` says how often the broker delivered it, 1 the first time. ``raw`` is what is kept when it is set aside.
    ``handle`` is the source's own. ``broker_id`` is the broker's id of the message, the same at each delivery, where
    the consumer's setting ENVELOPE is ``none``; such a body is read from ``raw`` alone.
    """

    count: int
    raw: str
    handle: object
    envelope: Envelope | None = None
    fault: str = ""
    broker_id: str = ""


class Source(ABC):
    """Receives from one queue, stream or subscription. Used by one thread; ``extend`` may be called from another."""

    service: ClassVar[str]

    def __init__(self, destination: Destination, *, consumer: str) -> None:
        """Take the queue's name, an ARN or RN, and the name of the consumer in the settings. No I/O."""
        self.destination = destination
        self.consumer = consumer

    @property
    def visibility(self) -> timedelta:
        """Say how long what was received is hidden from others, where the consumer's settings do not."""
        return timedelta(seconds=30)

    @abstractmethod
    def receive(self, limit: int, *, wait: timedelta, visibility: timedelta) -> list[Delivery]:
        """Return up to ``limit`` deliveries, those already there at once, else wait up to ``wait``.

        They are hidden from others for ``visibility``. Raises NotReady when the broker does not answer.
        """

    @abstractmethod
    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Remove them for good. One that was delivered to somebody else meanwhile is left to them. Raises NotReady."""

    @abstractmethod
    def extend(self, deliveries: Sequence[Delivery], *, visibility: timedelta) -> None:
        """Hide them for that long from now on. Raises NotReady."""

    @abstractmethod
    def give_back(self, deliveries: Sequence[Delivery], *, after: timedelta) -> None:
        """Let the broker deliver them again, ``after`` from now. Raises NotReady."""

    @abstractmethod
    def ping(self) -> None:
        """Ask whether the queue is there. Raises NotReady when it is not, within 5 s."""

    def close(self) -> None:  # noqa: B027 - some hold nothing
        """Give back connections and threads; what was received and not answered is delivered again. Idempotent."""
