"""Conversion of a delivery, by its consumer's settings, into a task and its arguments or a reason for rejection."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
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
    """Internal error that carries a reason to the reader."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.reason = Reason(code, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One parsed delivery: ``task`` and ``arguments``, or a ``reason`` for rejection."""

    message_id: str
    envelope: Envelope | None
    raw: str
    count: int
    task: Task[..., Any] | None = None
    arguments: Arguments | None = None
    reason: Reason | None = None
    delivery: Delivery | None = None

    def row(self) -> InboxRow:
        """Return the delivery's row for the inbox."""
        reason, envelope = self.reason, self.envelope
        return InboxRow(
            message_id=self.message_id,
            event=_text(envelope.event) if envelope else "",
            producer=_text(envelope.producer) if envelope else "",
            store_id=None if self.arguments is None else self.arguments.store_id,
            status=Status.REJECTED if reason else Status.ENQUEUED,
            code=reason.code if reason else "",
            reason=short(reason.text) if reason else "",
            deliveries=min(self.count, 2**31 - 1),
            raw=kept_text(envelope, self.raw) if reason else "",
        )


def read_delivery(delivery: Delivery, settings: ConsumerSettings, tasks: Mapping[str, Task[..., Any]]) -> Arrival:
    """Parse one delivery. No I/O; never raises for bad input."""
    envelope = delivery.envelope
    if not settings.has_envelope:
        envelope = Envelope(message_id=delivery.broker_id, event="", payload=delivery.raw)
    if envelope is None:
        text = delivery.fault or "the source gave no envelope"
        return Arrival(
            message_id=_made_id(delivery.raw),
            envelope=None,
            raw=delivery.raw,
            count=delivery.count,
            reason=Reason(UNREADABLE, text),
            delivery=delivery,
        )
    return read_envelope(envelope, settings, tasks, count=delivery.count, raw=delivery.raw, delivery=delivery)


def read_envelope(
    envelope: Envelope,
    settings: ConsumerSettings,
    tasks: Mapping[str, Task[..., Any]],
    *,
    count: int = 1,
    raw: str = "",
    delivery: Delivery | None = None,
    replays: str | None = None,
) -> Arrival:
    """Parse one envelope; ``replays`` overrides the setting when an operator has decided."""
    message_id, task, arguments, reason = envelope.message_id, None, None, None
    try:
        if not 1 <= len(message_id) <= _LONGEST or storable(message_id) != message_id:
            message_id = _made_id(repr(envelope))
            raise Refused(UNREADABLE, f"its message id is empty, longer than {_LONGEST} characters or no text")
        _admit(envelope, settings, replays or settings.replays)
        task = _task(envelope, tasks) if settings.has_envelope else tasks[ANY_EVENT]
        arguments = task.payload.bind((), _arguments(envelope, settings, task))
    except Refused as refused:
        task, reason = None, refused.reason
    except PayloadInvalid as error:
        task, reason = None, Reason(PayloadInvalid.code, str(error))
    return Arrival(
        message_id=message_id,
        envelope=envelope,
        raw=raw,
        count=count,
        task=task,
        arguments=arguments,
        reason=reason,
        delivery=delivery,
    )


def _admit(envelope: Envelope, settings: ConsumerSettings, replays: str) -> None:
    if settings.producers is not None and envelope.producer not in settings.producers:
        raise Refused(PRODUCER_REFUSED, f"its producer {envelope.producer!r} is not among PRODUCERS")
    if envelope.replay_of and replays == "refuse":
        raise Refused(REPLAY_REFUSED, f"it repeats message {envelope.replay_of}, and REPLAYS is 'refuse'")


def _task(envelope: Envelope, tasks: Mapping[str, Task[..., Any]]) -> Task[..., Any]:
    task = tasks.get(envelope.event)
    if task is None:
        raise Refused(UNKNOWN_EVENT, f"TASKS maps no task to the event {envelope.event!r}")
    return task


def _arguments(envelope: Envelope, settings: ConsumerSettings, task: Task[..., Any]) -> dict[str, Any]:
    """Return the payload's members and, for a store task, the store.

    The store comes from the settings, else from the envelope, or from the payload where there is no envelope.
    """
    what, forms = ("payload", "") if settings.has_envelope else ("body", ", plain or in base64")
    try:
        payload: object = json.loads(envelope.payload)
    except (ValueError, RecursionError) as error:
        raise Refused(PayloadInvalid.code, f"its {what} is no JSON{forms}: {error}") from error
    if not isinstance(payload, dict):
        raise Refused(PayloadInvalid.code, f"its {what} must be a JSON object, not {type(payload).__name__}")
    arguments = cast("dict[str, Any]", payload)
    if not task.is_store_task:
        return arguments
    if settings.store != "envelope":
        store = _store(settings.store)
    elif settings.has_envelope:
        store = _store(envelope.store_id)
    elif STORE_ARGUMENT in arguments:
        store = _store(arguments[STORE_ARGUMENT])
    else:
        text = f"its {what} has no {STORE_ARGUMENT}; send one, or set STORE when all are one store's"
        raise Refused(PayloadInvalid.code, text)
    if STORE_ARGUMENT in arguments and _store(arguments[STORE_ARGUMENT]) != store:
        raise Refused(PayloadInvalid.code, f"its payload names another {STORE_ARGUMENT} than the message")
    return {**arguments, STORE_ARGUMENT: store}


def _store(given: object) -> UUID:
    if isinstance(given, UUID):
        return given
    try:
        return UUID(cast("str", given))
    except (ValueError, TypeError, AttributeError):
        raise Refused(PayloadInvalid.code, "its task is one of a store, and its store id is no uuid") from None


def _made_id(raw: str) -> str:
    """Derive an ID for a message without one; it is the same on redelivery."""
    return f"unreadable:{hashlib.sha256(raw.encode(errors='backslashreplace')).hexdigest()}"


def _text(value: str) -> str:
    return storable(value)[:_LONGEST]


def received_of(arrival: Arrival, *, consumer: str, source: str) -> Received:
    """Describe for tracers an arrival that becomes a job."""
    envelope, (service, resource) = arrival.envelope, place_of(source)
    return Received(
        consumer=consumer,
        system=service,
        destination=resource,
        message_id=arrival.message_id,
        event=envelope.event if envelope else "",
        deliveries=arrival.count,
        store_id=arrival.arguments.store_id if arrival.arguments else None,
        body_size=len(envelope.payload.encode()) if envelope else 0,
        headers=envelope.headers if envelope else {},
    )
