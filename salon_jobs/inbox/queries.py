"""Queries of the inbox: messages stored once per consumer, and operators' decisions about rejected ones."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from django.db import connections, transaction
from django.db.models.functions import Now
from django.utils.translation import gettext

from salon_jobs.brokers.source import Envelope
from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.arguments import checked_ids
from salon_jobs.core.error_report import shown_message, storable
from salon_jobs.core.errors import PayloadInvalid
from salon_jobs.core.records import ActionResult, StoreId
from salon_jobs.core.redaction import redacted, redacted_text
from salon_jobs.db import statements
from salon_jobs.jobs.payload import STORE_ARGUMENT, PayloadType
from salon_jobs.models import InboxMessage

Status: Final = InboxMessage.Status
_LONGEST_RAW: Final = 2_000_000
_LONGEST_REASON: Final = 4_000


class InboxRow(NamedTuple):
    """One message to store. ``code`` and ``reason`` are those of a rejection; ``raw`` is then its kept text."""

    message_id: str
    event: str
    producer: str
    store_id: StoreId | None
    status: str
    code: str = ""
    reason: str = ""
    deliveries: int = 1
    raw: str = ""


class Rejected(NamedTuple):
    """Rejected message that an operator asked to retry."""

    id: int
    message_id: str
    raw: str
    deliveries: int


def insert(consumer: str, rows: Sequence[InboxRow], *, using: str) -> set[str]:
    """Insert messages in the caller's transaction; return the IDs of new ones. Role: worker."""
    columns = dict(zip(InboxRow._fields, map(list, zip(*rows, strict=True)), strict=True))
    return {row[0] for row in statements.rows("insert_inbox", {"consumer": consumer, **columns}, using=using)}


def record_jobs(consumer: str, jobs: Mapping[str, int], *, using: str) -> None:
    """Record which jobs the messages became, in the transaction that stored them. Role: worker."""
    parameters = {"consumer": consumer, "message_ids": list(jobs), "job_ids": list(jobs.values())}
    statements.execute("record_inbox_jobs", parameters, using=using)


def existing_stores(store_ids: Collection[StoreId | None], *, using: str) -> set[StoreId]:
    statement = statements.load("existing_stores").replace("__function__", conf.fan_out_function)
    with connections[using].cursor() as cursor:
        cursor.execute(statement, {"store_ids": list(store_ids)})
        return {row[0] for row in cursor.fetchall()}


def has_messages(consumer: str, *, using: str) -> bool:
    """Return whether the consumer has ever received a message: pruning leaves one. Role: worker."""
    return InboxMessage.objects.using(using).filter(consumer=consumer).exists()


def received_at(consumer: str, message_ids: Collection[str], *, using: str) -> dict[str, datetime]:
    """Return when each of these messages was received, if it was. Role: worker."""
    rows = InboxMessage.objects.using(using).filter(consumer=consumer, message_id__in=message_ids)
    return dict(rows.values_list("message_id", "received_at"))


def next_to_retry(consumer: str, *, using: str) -> Rejected | None:
    """Lock and return one message to retry, in the caller's transaction, or None. Role: worker."""
    waiting = InboxMessage.objects.using(using).filter(consumer=consumer, status=Status.RETRY).order_by("id")
    row = waiting.select_for_update(skip_locked=True).values_list(*Rejected._fields).first()
    return None if row is None else Rejected(*row)


def reject_again(inbox_id: int, *, code: str, reason: str, using: str) -> None:
    """Reject a retried message again, with its new reason. Role: worker."""
    row = InboxMessage.objects.using(using).filter(id=inbox_id, status=Status.RETRY)
    row.update(status=Status.REJECTED, code=code, reason=short(reason))


def count_rejected(consumer: str, *, using: str) -> int:
    """Count the messages that wait for an operator. Role: worker."""
    return InboxMessage.objects.using(using).filter(consumer=consumer, status=Status.REJECTED).count()


def retry_messages(ids: Sequence[int], *, using: str) -> list[ActionResult[int]]:
    """Have ``consume_queue`` retry rejected messages at its next poll. Role: operator.

    One transaction. Results are in the order of the IDs.
    """
    return _decide(ids, (Status.REJECTED,), Status.RETRY, using)


def dismiss_messages(ids: Sequence[int], *, using: str) -> list[ActionResult[int]]:
    """Dismiss messages that are rejected or wait for a retry; their IDs stay unique. See ``retry_messages``."""
    return _decide(ids, (Status.REJECTED, Status.RETRY), Status.DISMISSED, using, ended_at=Now())


_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def members_of(payload: str, *, what: str = "payload", forms: str = "") -> dict[str, msgspec.Raw]:
    """Return the members of a payload, each as it was written. Raises PayloadInvalid if it is not a JSON object."""
    try:
        return _members.decode(payload)
    except msgspec.ValidationError as error:
        raise PayloadInvalid(f"its {what} must be a JSON object: {error}") from error
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        raise PayloadInvalid(f"its {what} is not JSON{forms}: {error}") from error


def take_store(members: dict[str, msgspec.Raw], payload: PayloadType) -> StoreId | None:
    """Take the store out of a payload's members, under either of its names. Raises PayloadInvalid if they differ."""
    found: set[StoreId] = set()
    for name in {STORE_ARGUMENT, payload.store_name or STORE_ARGUMENT} & members.keys():
        try:
            found.add(store_of(msgspec.json.decode(members.pop(name))))
        except msgspec.DecodeError as error:
            raise PayloadInvalid(f"its {name} is not JSON: {error}") from error
    if len(found) > 1:
        raise PayloadInvalid(f"its payload names two stores, as {STORE_ARGUMENT} and as {payload.store_name}")
    return next(iter(found), None)


def store_of(value: object) -> StoreId:
    """Return the key of a store. Raises PayloadInvalid."""
    try:
        return store_key().parse(value)
    except ValueError as error:
        raise PayloadInvalid(f"its task is a store task, and its store ID {error}") from None


def kept_text(envelope: Envelope | None, raw: str) -> str:
    """Return the text to keep of a rejected message: its envelope as JSON, else the raw message.

    Bounded, above what any message that can become a job needs: a retry reads it.
    """
    # As JSON in JSON, a payload and headers of MAX_PAYLOAD each need twice as much: all may be quotes. ASCII would need
    # six characters for each letter of most languages.
    longest = max(_LONGEST_RAW, 4 * conf.max_payload)
    return storable(raw if envelope is None else json.dumps(asdict(envelope), ensure_ascii=False))[:longest]


def kept_envelope(text: str) -> Envelope | None:
    """Parse the text that ``kept_text`` wrote; return None if it is not an envelope."""
    try:
        return Envelope(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None


def shown_text(text: str) -> str:
    """Return the text ``kept_text`` wrote in readable form, with REDACT applied."""
    envelope = kept_envelope(text)
    if envelope is None:
        shown = redacted_text(text, conf.redact)
    else:
        shown = redacted(asdict(envelope), conf.redact) | {"payload": redacted_text(envelope.payload, conf.redact)}
    return storable(shown if isinstance(shown, str) else json.dumps(shown, indent=2, ensure_ascii=False))


def short(reason: str) -> str:
    """Bound a reason, without secrets and invisible characters."""
    return shown_message(reason)[:_LONGEST_REASON]


def _decide(
    ids: Sequence[int], waiting: Collection[str], decided: str, using: str, **changes: Any
) -> list[ActionResult[int]]:
    ids, rows = checked_ids("ids", ids), InboxMessage.objects.using(using)
    with transaction.atomic(using=using):
        chosen = rows.filter(id__in=ids, status__in=waiting).order_by("id").select_for_update()
        changed = set(chosen.values_list("id", flat=True))
        rows.filter(id__in=changed).update(status=decided, **changes)
    return [ActionResult(id_, id_ in changed, "" if id_ in changed else gettext("it is not rejected")) for id_ in ids]
