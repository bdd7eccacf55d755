"""Insertion of messages in the caller's transaction, and the relay's wake-up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final
from uuid import UUID, uuid4

from asgiref.sync import sync_to_async
from django.db import IntegrityError, connections

from salon_jobs.brokers.publisher import OutgoingMessage
from salon_jobs.brokers.registry import checker_for
from salon_jobs.conf import settings as conf
from salon_jobs.core.as_json import encode
from salon_jobs.core.destinations import LONGEST, RESERVED, parse_destination, place_of
from salon_jobs.core.errors import EmitRefused, MessageInvalid
from salon_jobs.core.text import short_repr
from salon_jobs.core.tracing import Sent, current_headers, is_traced, sending
from salon_jobs.db import statements
from salon_jobs.db.connections import alias_of, translated_errors
from salon_jobs.db.notify import WakeUps
from salon_jobs.tenancy.active import current_store_id, has_current_store

CHANNEL: Final = "salon_jobs_message"
# Payload of the notification that an operator changed state that relays keep in memory.
OPERATOR: Final = "operator"
wake_ups: Final = WakeUps(CHANNEL, together=True)


def operator_changed(*, using: str) -> None:
    """Notify relays, when the caller's transaction commits, to reread blocked aggregates and paused destinations."""
    statements.rows("notify_relays", {"channel": CHANNEL, "news": OPERATOR}, using=using)


_BATCH: Final = 5000
# Characters of payloads and headers in one statement, which is closed with the message that exceeds it.
_CHARACTERS: Final = 16_000_000
_ANY_ID: Final = UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One message for ``emit_many``, with the arguments of ``emit``."""

    aggregate_type: str
    event: str
    payload: Any
    aggregate_id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def emit(
    aggregate_type: str,
    *,
    event: str,
    payload: Any,
    aggregate_id: str = "",
    headers: Mapping[str, str] | None = None,
    using: str | None = None,
) -> UUID:
    """Write one message in the open transaction on the jobs' database; return its ID, which never changes.

    It is relayed after the commit, in order with the other messages of its ``aggregate_id`` (no order if ""); a
    rollback discards it. The current store, the configured producer and the trace travel with it. ``payload`` is
    anything that JSON can represent (including UUIDs, dates, decimals and dataclasses, as msgspec converts them).
    ``using`` is the alias of the messages, by default that of the settings.

    Raises MessageInvalid (names the field and the remedy), EmitRefused (no transaction, or the current store is that of
    another connection), ConfigurationError, SchemaMissing. Role: web, worker.
    """
    draft = Draft(
        aggregate_type=aggregate_type, aggregate_id=aggregate_id, event=event, payload=payload, headers=headers or {}
    )
    return emit_many([draft], using=using)[0]


async def aemit(
    aggregate_type: str,
    *,
    event: str,
    payload: Any,
    aggregate_id: str = "",
    headers: Mapping[str, str] | None = None,
    using: str | None = None,
) -> UUID:
    """Emit from a coroutine, as ``emit`` does, in the transaction of ``async with tenant_context(…)``."""
    return await sync_to_async(emit)(
        aggregate_type, event=event, payload=payload, aggregate_id=aggregate_id, headers=headers, using=using
    )


def emit_many(drafts: Iterable[Draft], *, using: str | None = None) -> list[UUID]:
    """Write messages in the given order, as ``emit`` does, up to 5,000 per statement; return their IDs in order.

    Of 5,000 at a time, all are checked before the first is written.
    """
    alias = alias_of(using)
    if not connections[alias].in_atomic_block:
        raise EmitRefused(
            "emit() writes the message in the transaction that it belongs to, and none is open on "
            f"{alias!r}: put both into transaction.atomic(using={alias!r})"
        )
    if not has_current_store(connections[alias]):
        raise EmitRefused(
            f"the current store, {current_store_id()}, is not set on this thread's connection of {alias!r}, so the"
            f" message would belong to none or to another: emit it in tenant_context(…, using={alias!r}), in another"
            " thread in a function of carry_store"
        )
    producer = conf.outbox.require_producer()
    ids: list[UUID] = []
    remaining = iter(drafts)
    while batch := list(islice(remaining, _BATCH)):
        sent = _described(batch) if is_traced() else Sent(emitted=True)
        with sending(sent):
            trace = current_headers()
            messages = [_message(draft, trace, producer) for draft in batch]
            try:
                with translated_errors(alias, EmitRefused, "emit as the web or the worker role"):
                    for part in _parts(messages):
                        # Not all are used: the database makes the id and the instant, and knows the current store.
                        columns = dict(zip(OutgoingMessage._fields, map(list, zip(*part, strict=True)), strict=True))
                        statements.execute("emit_many", {**columns, "producer": producer}, using=alias)
            except IntegrityError as error:
                raise EmitRefused(f"the database refused the message: {error}") from error
            if len(batch) == 1:
                sent.message_id, sent.body_size = str(messages[0].message_id), len(messages[0].payload.encode())
        ids += [message.message_id for message in messages]
    if ids:
        wake_ups.after_commit(alias)
    return ids


def _parts(messages: Sequence[OutgoingMessage]) -> Iterator[Sequence[OutgoingMessage]]:
    """Split messages so that no statement, nor its copy on the server, exceeds its limit."""
    first = size = 0
    for number, message in enumerate(messages):
        if size > _CHARACTERS:
            yield messages[first:number]
            first, size = number, 0
        size += len(message.payload) + len(message.headers)
    yield messages[first:]


def _described(batch: Sequence[Draft]) -> Sent:
    """Describe the batch for tracers, as far as all its messages agree. Nothing has been validated yet."""
    types, names = {str(draft.aggregate_type) for draft in batch}, {str(draft.event) for draft in batch}
    service, destination = place_of(types.pop()) if len(types) == 1 else ("", "")
    name = names.pop() if len(names) == 1 else ""
    return Sent(emitted=True, system=service, destination=destination, name=name, count=len(batch))


def _message(draft: Draft, trace: Mapping[str, str], producer: str) -> OutgoingMessage:
    """Check a draft; the message has the largest size it can reach, since publishers check that."""
    for name in ("aggregate_type", "aggregate_id", "event"):
        value: object = getattr(draft, name)
        if not isinstance(value, str):
            raise MessageInvalid(f"{name} must be a string, not {type(value).__name__}; write str(…)")
        if not value and name != "aggregate_id":
            raise MessageInvalid(f"{name} must not be empty")
        if len(value) > LONGEST:
            raise MessageInvalid(f"{name} is {len(value)} characters long; at most {LONGEST} are allowed")
        if not value.isprintable():
            raise MessageInvalid(f"{name} {value!r} contains characters that cannot be printed, which brokers refuse")
    destination = parse_destination(draft.aggregate_type)
    message = OutgoingMessage(
        id=0,
        message_id=uuid4(),
        aggregate_type=draft.aggregate_type,
        aggregate_id=draft.aggregate_id,
        event=draft.event,
        payload=_json("payload", draft.payload),
        headers=_json("headers", {**_checked(draft.headers), **trace}),
        store_id=_ANY_ID,
        producer=producer,
        created_at_s=0.0,
        replay_of=_ANY_ID,
    )
    checker_for(destination.service).check(message)
    return message


def _checked(headers: Mapping[str, str]) -> Mapping[str, str]:
    if not isinstance(headers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise MessageInvalid(f"headers must be a dict of strings to strings, not {short_repr(headers)}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise MessageInvalid(f"headers must be a dict of strings to strings; {short_repr(name)} is not")
        if not name or not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
            raise MessageInvalid(f"headers: the name {name!r} must be only ASCII letters, digits, '-' and '_'")
        if name.lower() in RESERVED:
            raise MessageInvalid(f"headers: {name!r} is written by salon_jobs itself; choose another name")
        if not value.isprintable():
            raise MessageInvalid(f"headers: the value of {name!r} contains characters that cannot be printed")
    return headers


def _json(name: str, value: object) -> str:
    try:
        encoded = encode(value, in_utc=False)
    except ValueError as error:
        raise MessageInvalid(f"{name} cannot be written as JSON: {error}") from error
    if len(encoded) > conf.max_payload:
        raise MessageInvalid(
            f"{name} is {len(encoded)} bytes long; at most {conf.max_payload} are allowed "
            "(SALON_JOBS['MAX_PAYLOAD']): send less, or a reference to it"
        )
    return encoded.decode()
