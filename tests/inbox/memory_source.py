"""Queue in memory, for what no broker does on demand, such as delivering twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar
from uuid import uuid4

from salon_jobs.brokers.source import Delivery, Envelope, Source
from salon_jobs.core.destinations import Destination
from salon_jobs.core.errors import NotReady


class MemorySource(Source):
    """Source that delivers ``queue``; messages given back are redelivered with a higher count, without a delay."""

    service = "memory"
    queues: ClassVar[dict[str, list[Delivery]]] = {}

    def __init__(self, destination: Destination, *, consumer: str) -> None:
        super().__init__(destination, consumer=consumer)
        self.queue = self.queues.setdefault(destination.resource, [])
        self.down = False
        self.closed = False
        self.acknowledged: list[Delivery] = []
        self.given_back: list[tuple[Delivery, timedelta]] = []
        self.extended = threading.Semaphore(0)
        self.before_receive: Callable[[], None] = lambda: None
        self.before_acknowledge: Callable[[], None] = lambda: None

    @property
    def visibility(self) -> timedelta:
        return timedelta(seconds=0.3)

    def receive(self, limit: int, *, wait: timedelta, visibility: timedelta) -> list[Delivery]:
        self.before_receive()
        self._require()
        deliveries, self.queue[:] = self.queue[:limit], self.queue[limit:]
        return deliveries

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self.before_acknowledge()
        self._require()
        self.acknowledged += deliveries

    def extend(self, deliveries: Sequence[Delivery], *, visibility: timedelta) -> None:
        self._require()
        self.extended.release()

    def give_back(self, deliveries: Sequence[Delivery], *, after: timedelta) -> None:
        """Append them with their delivery count increased."""
        self._require()
        self.given_back += [(delivery, after) for delivery in deliveries]
        self.queue += [again(delivery) for delivery in deliveries]

    def close(self) -> None:
        self.closed = True

    def _require(self) -> None:
        if self.down:
            raise NotReady("the broker in memory is down")


def message(payload: str = "{}", event: str = "noted", *, count: int = 1, **fields: str) -> Delivery:
    """Make the first delivery of a message."""
    texts: dict[str, Any] = {"message_id": str(uuid4()), "producer": "test", **fields}
    envelope = Envelope(event=event, payload=payload, **texts)
    return Delivery(count=count, raw="as it came", handle=object(), envelope=envelope)


def again(delivery: Delivery) -> Delivery:
    """Return its next delivery."""
    return replace(delivery, count=delivery.count + 1, handle=object())
