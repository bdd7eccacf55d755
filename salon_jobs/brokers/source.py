"""Source interface: where ``consume_queue`` receives deliveries, and how it answers them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

from salon_jobs.core import destinations
from salon_jobs.core.destinations import Destination


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Content of a message, whatever carried it. ``message_id`` is fixed by its writer (salon_jobs: a UUID).

    ``payload`` is JSON text. ``replay_of`` is the ID of the message that an operator re-sent under this new ID.
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


def read_envelope(
    fields: Mapping[str, str], body: str | bytes, *, kind: str, message_id: str, headers: Mapping[str, str]
) -> Envelope:
    """Build the envelope of a message whose fields came as ``kind`` (headers or attributes) beside its body.

    Field names are those of ``core.destinations``, in lower case. ``message_id``: for messages whose writer gave none.
    Raises ValueError for content that is no message.
    """

    def field_of(name: str) -> str:
        return fields.get(name.lower(), "")

    if (version := field_of(destinations.ENVELOPE) or destinations.VERSION) != destinations.VERSION:
        raise ValueError(f"the {kind} {destinations.ENVELOPE} is {version!r}, not {destinations.VERSION!r}")
    if not field_of(destinations.EVENT):
        raise ValueError(f"the {kind} {destinations.EVENT} is missing")
    try:
        json.loads(body)
        payload = body if isinstance(body, str) else body.decode()
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        raise ValueError(f"the body is not JSON: {error}") from error
    return Envelope(
        message_id=field_of(destinations.MESSAGE_ID) or message_id,
        event=field_of(destinations.EVENT),
        payload=payload,
        producer=field_of(destinations.PRODUCER),
        aggregate_type=field_of(destinations.AGGREGATE_TYPE),
        aggregate_id=field_of(destinations.AGGREGATE_ID),
        store_id=field_of(destinations.STORE_ID),
        replay_of=field_of(destinations.REPLAY_OF),
        headers=headers,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One receipt of one message, with either its ``envelope`` or the ``fault`` that made it unreadable.

    ``count`` is the number of deliveries so far, starting at 1. ``raw`` is kept if the message is rejected. ``handle``
    is private to the source. ``broker_id`` is the broker's ID of the message, the same on each delivery, for consumers
    whose ENVELOPE setting is ``none``; such a body is read from ``raw`` alone.
    """

    count: int
    raw: str
    handle: object
    envelope: Envelope | None = None
    fault: str = ""
    broker_id: str = ""


class Source(ABC):
    """Receiver from one queue, stream or subscription. Used by one thread; ``extend`` may be called from another."""

    service: ClassVar[str]

    def __init__(self, destination: Destination, *, consumer: str) -> None:
        """Store the queue's name (an ARN or RN) and the consumer's name in the settings. No I/O."""
        self.destination = destination
        self.consumer = consumer

    @property
    def visibility(self) -> timedelta:
        """How long a received message is hidden from other consumers, and one that is given back from all."""
        return timedelta(seconds=30)

    @abstractmethod
    def receive(self, limit: int, *, wait: timedelta, visibility: timedelta) -> list[Delivery]:
        """Return up to ``limit`` deliveries: those already there at once, otherwise wait up to ``wait``.

        They are hidden from other consumers for ``visibility``. Raises NotReady when the broker does not answer.
        """

    @abstractmethod
    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Remove the messages for good, except any since delivered to another consumer. Raises NotReady."""

    @abstractmethod
    def extend(self, deliveries: Sequence[Delivery], *, visibility: timedelta) -> None:
        """Hide the messages for that long from now. Raises NotReady."""

    @abstractmethod
    def give_back(self, deliveries: Sequence[Delivery], *, after: timedelta) -> None:
        """Let the broker redeliver the messages, ``after`` from now. Raises NotReady."""

    @abstractmethod
    def ping(self) -> None:
        """Check that the queue exists. Raises NotReady within 5 s if it does not."""

    def close(self) -> None:  # noqa: B027 - some hold nothing
        """Release connections and threads; unanswered messages are redelivered. Idempotent."""
