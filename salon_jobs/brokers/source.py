"""Source interface: where ``consume_queue`` receives deliveries, and how it answers them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar, Final

from salon_jobs.core import destinations
from salon_jobs.core.destinations import Destination


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Content of a message, by any transport. ``message_id`` is fixed by its writer (salon_jobs: a UUID).

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One receipt of one message, with either its ``envelope`` or the ``fault`` that made it unreadable.

    ``count`` is the number of deliveries so far, starting at 1. ``raw`` is kept if the message is rejected. ``handle``
    is private to the source. ``broker_id`` is the broker's ID of the message, the same on each delivery, for consumers
    whose ENVELOPE setting is ``none``; such a body is read only from ``raw``.

    ``former_id`` is the ID that an earlier release made for this message, if it made another one; the inbox looks for
    it among what it received since ``stored_at``, when the broker stored the message.
    """

    count: int
    raw: str
    handle: object
    envelope: Envelope | None = None
    fault: str = ""
    broker_id: str = ""
    former_id: str = ""
    stored_at: datetime | None = None


def read_delivery(
    fields: Mapping[str, str],
    body: str | bytes,
    *,
    kind: str,
    message_id: str,
    headers: Callable[[], Mapping[str, str]],
    count: int,
    raw: str,
    handle: object,
) -> Delivery:
    """Parse a message whose fields came as ``kind`` (headers or attributes) next to its body.

    Field names are those of ``core.destinations``, in lower case. ``message_id``: for messages without an ID from their
    writer. Unreadable content becomes a fault, never an error, so that it cannot stop other messages; ``headers`` may
    raise ValueError for it.
    """
    try:
        if (version := fields.get("envelope") or destinations.VERSION) != destinations.VERSION:
            raise ValueError(f"the {kind} {destinations.ENVELOPE} is {version!r}, not {destinations.VERSION!r}")
        if not fields.get("event"):
            raise ValueError(f"the {kind} {destinations.EVENT} is missing")
        try:
            json.loads(body)
        except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
            raise ValueError(f"the body is not JSON: {error}") from error
        envelope = Envelope(
            message_id=fields.get("message-id") or message_id,
            payload=body if isinstance(body, str) else body.decode(),
            headers=headers(),
            **{name.replace("-", "_"): fields.get(name, "") for name in destinations.RESERVED - _READ_ABOVE},
        )
    except ValueError as error:
        return Delivery(count=count, raw=raw, handle=handle, fault=str(error))
    return Delivery(count=count, raw=raw, handle=handle, envelope=envelope)


_READ_ABOVE: Final = {"envelope", "message-id"}


class Source(ABC):
    """Receiver from one queue, stream or subscription. Used by one thread; ``extend`` may be called from another."""

    service: ClassVar[str]
    # Whether the inbox has messages of this consumer; set before the first receive. A source whose broker then knows no
    # consumer has lost its place: it must not begin again with messages older than INBOX_KEPT.
    resumes: bool = False

    def __init__(self, destination: Destination, *, consumer: str) -> None:
        """Store the queue's name (an ARN or RN) and the consumer's name in the settings. No I/O."""
        self.destination = destination
        self.consumer = consumer

    @property
    def largest_bytes(self) -> int | None:
        """The most bytes that the broker delivers in one message; None if there is no such bound. For the checks."""
        return None

    @property
    def visibility(self) -> timedelta:
        """How long a received message is hidden from other consumers, and a returned one from all."""
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

    def close(self) -> None:  # noqa: B027 - some hold nothing
        """Release connections and threads; unanswered messages are redelivered. Idempotent."""
