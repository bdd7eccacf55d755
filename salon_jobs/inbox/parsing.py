"""Conversion of a delivery, by its consumer's settings, into a task and its arguments or a reason for rejection."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast
from uuid import UUID

from salon_jobs.brokers.source import Delivery, Envelope
from salon_jobs.conf.sections import ANY_EVENT, ConsumerSettings
from salon_jobs.core.destinations import place_of
from salon_jobs.core.error_report import storable
from salon_jobs.core.errors import PayloadInvalid
from salon_jobs.core.tracing import Received
from salon_jobs.inbox.queries import InboxRow, Status, kept_text, short
from salon_jobs.jobs.payload import STORE_ARGUMENT, Arguments
from salon_jobs.jobs.task import Task

UNREADABLE: Final = "INBOX.UNREADABLE"
UNKNOWN_EVENT: Final = "INBOX.UNKNOWN_EVENT"
PRODUCER_REFUSED: Final = "INBOX.PRODUCER_REFUSED"
REPLAY_REFUSED: Final = "INBOX.REPLAY_REFUSED"
UNKNOWN_STORE: Final = "INBOX.UNKNOWN_STORE"
ENQUEUE_FAILED: Final = "INBOX.ENQUEUE_FAILED"
_LONGEST: Final = 255


@dataclass(frozen=True, slots=True)
class Reason:
    """Reason why a message becomes no job. ``transient``: a later delivery may succeed."""

    code: str
    text: str
    transient: bool = False


class Refused(Exception):
    """Internal error: the message becomes no job, with the code of the reason."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """One parsed message: ``task`` and ``arguments``, or a ``reason`` for rejection.

    ``delivery`` is None for a retry.
    """

    message_id: str
    envelope: Envelope | None
    delivery: Delivery | None = None
    task: Task[..., Any] | None = None
    arguments: Arguments | None = None
    reason: Reason | None = None

    @property
    def count(self) -> int:
        return 1 if self.delivery is None else self.delivery.count

    @property
    def event(self) -> str:
        """Event of the envelope, "" if unreadable."""
        return "" if self.envelope is None else self.envelope.event

    @property
    def store_id(self) -> UUID | None:
        return None if self.arguments is None else self.arguments.store_id

    @property
    def is_transient(self) -> bool:
        """Whether a later delivery may succeed."""
        return self.reason is not None and self.reason.transient

    def rejected(self, reason: Reason) -> ParsedMessage:
        return replace(self, task=None, reason=reason)

    def row(self) -> InboxRow:
        reason, envelope = self.reason, self.envelope
        raw = "" if self.delivery is None else self.delivery.raw
        return InboxRow(
            message_id=self.message_id,
            event=storable(self.event)[:_LONGEST],
            producer=storable(envelope.producer)[:_LONGEST] if envelope else "",
            store_id=self.store_id,
            status=Status.REJECTED if reason else Status.ENQUEUED,
            code=reason.code if reason else "",
            reason=short(reason.text) if reason else "",
            deliveries=min(self.count, 2**31 - 1),
            raw=kept_text(envelope, raw) if reason else "",
        )

    def received(self, consumer: str, source: str) -> Received:
        """Describe for tracers a message that becomes a job."""
        envelope, (service, resource) = self.envelope, place_of(source)
        return Received(
            consumer=consumer,
            system=service,
            destination=resource,
            message_id=self.message_id,
            event=self.event,
            deliveries=self.count,
            store_id=self.store_id,
            body_size=len(envelope.payload.encode()) if envelope else 0,
            headers=envelope.headers if envelope else {},
        )


def parse_delivery(
    delivery: Delivery, settings: ConsumerSettings, tasks: Mapping[str, Task[..., Any]]
) -> ParsedMessage:
    """Parse one delivery. No I/O; never raises for bad input."""
    envelope = delivery.envelope
    if not settings.has_envelope:
        envelope = Envelope(message_id=delivery.broker_id, event="", payload=delivery.raw)
    if envelope is None:
        reason = Reason(UNREADABLE, delivery.fault or "the source gave no envelope")
        return ParsedMessage(_made_id(delivery.raw), None, delivery, reason=reason)
    return parse_envelope(envelope, settings, tasks, delivery=delivery)


def parse_envelope(
    envelope: Envelope,
    settings: ConsumerSettings,
    tasks: Mapping[str, Task[..., Any]],
    *,
    delivery: Delivery | None = None,
    accept_replays: bool = False,
) -> ParsedMessage:
    """Parse one envelope; ``accept_replays`` overrides the setting when an operator has decided."""
    message_id = envelope.message_id
    try:
        if not 1 <= len(message_id) <= _LONGEST or storable(message_id) != message_id:
            message_id = _made_id(repr(envelope))
            raise Refused(UNREADABLE, f"its message id is empty, longer than {_LONGEST} characters or no text")
        if settings.producers is not None and envelope.producer not in settings.producers:
            raise Refused(PRODUCER_REFUSED, f"its producer {envelope.producer!r} is not among PRODUCERS")
        if envelope.replay_of and settings.replays == "refuse" and not accept_replays:
            raise Refused(REPLAY_REFUSED, f"it repeats message {envelope.replay_of}, and REPLAYS is 'refuse'")
        task = tasks.get(envelope.event if settings.has_envelope else ANY_EVENT)
        if task is None:
            raise Refused(UNKNOWN_EVENT, f"TASKS maps no task to the event {envelope.event!r}")
        arguments = task.payload.bind((), _arguments(envelope, settings, task))
    except (Refused, PayloadInvalid) as error:
        return ParsedMessage(message_id, envelope, delivery, reason=Reason(error.code, str(error)))
    return ParsedMessage(message_id, envelope, delivery, task, arguments)


def _arguments(envelope: Envelope, settings: ConsumerSettings, task: Task[..., Any]) -> dict[str, Any]:
    """Return the payload's members and, for a store task, the store.

    The store comes from the settings, else from the envelope, or from the payload where there is no envelope.
    """
    what, forms = ("payload", "") if settings.has_envelope else ("body", ", plain or in base64")
    try:
        payload: object = json.loads(envelope.payload)
    except (ValueError, RecursionError) as error:
        raise PayloadInvalid(f"its {what} is no JSON{forms}: {error}") from error
    if not isinstance(payload, dict):
        raise PayloadInvalid(f"its {what} must be a JSON object, not {type(payload).__name__}")
    arguments = cast("dict[str, Any]", payload)
    if not task.is_store_task:
        return arguments
    in_payload = _store(arguments[STORE_ARGUMENT]) if STORE_ARGUMENT in arguments else None
    if settings.store != "envelope":
        store = _store(settings.store)
    elif settings.has_envelope:
        store = _store(envelope.store_id)
    elif in_payload is not None:
        store = in_payload
    else:
        text = f"its {what} has no {STORE_ARGUMENT}; send one, or set STORE when all are one store's"
        raise PayloadInvalid(text)
    if in_payload not in (None, store):
        raise PayloadInvalid(f"its payload names another {STORE_ARGUMENT} than the message")
    return {**arguments, STORE_ARGUMENT: store}


def _store(value: object) -> UUID:
    if isinstance(value, UUID):
        return value
    try:
        return UUID(cast("str", value))
    except (ValueError, TypeError, AttributeError):
        raise PayloadInvalid("its task is one of a store, and its store id is no uuid") from None


def _made_id(raw: str) -> str:
    """Derive an ID for a message without one; it is the same on redelivery."""
    return f"unreadable:{hashlib.sha256(raw.encode(errors='backslashreplace')).hexdigest()}"
