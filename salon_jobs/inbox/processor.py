"""Conversion of deliveries into jobs, or reasons for rejection: the inbox row and the job commit together."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from django.db import InterfaceError, OperationalError, transaction

from salon_jobs.brokers.source import Delivery, Envelope
from salon_jobs.conf import settings as conf
from salon_jobs.conf.sections import ANY_EVENT, ConsumerSettings
from salon_jobs.conf.store_key import store_key
from salon_jobs.core import events
from salon_jobs.core.destinations import place_of
from salon_jobs.core.error_report import storable
from salon_jobs.core.errors import ConfigurationError, EnqueueRefused, PayloadInvalid, SchemaMissing, UnknownTask
from salon_jobs.core.events import log_event
from salon_jobs.core.records import StoreId
from salon_jobs.core.tracing import MessageFailure, TracedMessage, consuming, report_failure
from salon_jobs.db.read_only import failed_read_only
from salon_jobs.inbox import queries
from salon_jobs.inbox.queries import InboxRow, Status, kept_text, short
from salon_jobs.jobs.enqueue import add
from salon_jobs.jobs.payload import STORE_ARGUMENT, Arguments
from salon_jobs.jobs.task import Call, Task, get_task

# How often a message that cannot become a job yet is delivered: its store or task may be on its way.
_MOST_DELIVERIES: Final = 5
# How long a consumer trusts that a store exists: asking takes 4 ms where there are 9,000 stores, and 54 ms where there
# are 90,000.
_TRUSTED_S: Final = 10.0


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
    """Raised inside this module for a message that cannot become a job, with the code of its ``Reason``."""

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
    def store_id(self) -> StoreId | None:
        return None if self.arguments is None else self.arguments.store_id

    @property
    def aggregate(self) -> tuple[str, str] | None:
        """The aggregate of its order, None without one."""
        envelope = self.envelope
        return (envelope.aggregate_type, envelope.aggregate_id) if envelope and envelope.aggregate_id else None

    @property
    def is_early(self) -> bool:
        """Whether to wait for a later delivery, which may succeed."""
        return self.reason is not None and self.reason.transient and self.count < _MOST_DELIVERIES

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
            raise Refused(UNREADABLE, f"its message ID is empty, longer than {_LONGEST} characters or not a string")
        if settings.producers is not None and envelope.producer not in settings.producers:
            raise Refused(PRODUCER_REFUSED, f"its producer {envelope.producer!r} is not among PRODUCERS")
        if envelope.replay_of and settings.replays == "refuse" and not accept_replays:
            raise Refused(REPLAY_REFUSED, f"it repeats message {envelope.replay_of}, and REPLAYS is 'refuse'")
        task = tasks.get(envelope.event if settings.has_envelope else ANY_EVENT)
        if task is None:
            raise Refused(UNKNOWN_EVENT, f"TASKS maps no task to the event {envelope.event!r}")
        arguments = _arguments(envelope, settings, task)
    except (Refused, PayloadInvalid) as error:
        return ParsedMessage(message_id, envelope, delivery, reason=Reason(error.code, str(error)))
    return ParsedMessage(message_id, envelope, delivery, task, arguments)


def _arguments(envelope: Envelope, settings: ConsumerSettings, task: Task[..., Any]) -> Arguments:
    """Return the payload's members as arguments of the task and, for a store task, the store.

    The store comes from the settings, else from the envelope, or from the payload where there is no envelope.
    """
    what, forms = ("payload", "") if settings.has_envelope else ("body", ", plain or in base64")
    members = queries.members_of(envelope.payload, what=what, forms=forms)
    store: StoreId | None = None
    if task.is_store_task:
        in_payload = queries.take_store(members, task.payload)
        if settings.store != "envelope":
            store = queries.store_of(settings.store)
        elif settings.has_envelope:
            store = queries.store_of(envelope.store_id)
        elif in_payload is not None:
            store = in_payload
        else:
            text = f"its {what} has no {STORE_ARGUMENT}; send one, or set STORE when all are one store's"
            raise PayloadInvalid(text)
        if in_payload not in (None, store):
            raise PayloadInvalid(f"its payload names another {STORE_ARGUMENT} than the message")
    known = {name: raw for name, raw in members.items() if name in task.payload.names}
    # An entirely unknown payload is not a newer version of the task's arguments.
    return task.payload.bind_json(known if known and settings.unknown_fields == "ignore" else members, store)


def _made_id(raw: str) -> str:
    """Derive an ID for a message without one; it is the same on redelivery."""
    return f"unreadable:{hashlib.sha256(raw.encode(errors='backslashreplace')).hexdigest()}"


@dataclass(slots=True)
class BatchResult:
    """Answers to deliveries, with counts of their outcomes."""

    acknowledge: list[Delivery] = field(default_factory=list[Delivery])
    give_back: list[Delivery] = field(default_factory=list[Delivery])
    enqueued: int = 0
    duplicates: int = 0
    rejected: int = 0


class Processor:
    """Processor of one consumer's deliveries. Single-threaded; worker role, outside any transaction."""

    def __init__(
        self, consumer: str, settings: ConsumerSettings, *, using: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Look up the tasks. Raises ConfigurationError for an unknown task name, suggesting the nearest one."""
        self._consumer = consumer
        self._settings = settings
        self._using = using
        self._tasks = find_tasks(consumer, settings)
        self._clock = clock
        # Stores that exist, and since when they are trusted to.
        self._stores: set[StoreId] = set()
        self._stores_since = float("-inf")

    def process(self, deliveries: Sequence[Delivery], *, stopping: Callable[[], bool] = lambda: False) -> BatchResult:
        """Store deliveries and enqueue their jobs; return, after the commit, the answer to each.

        All deliveries share one transaction. If one fails, each gets its own, so that a bad message holds up no other,
        except when a message is given back: so are the later ones of its aggregate, which would come before it. Raises
        database errors, SchemaMissing and EnqueueRefused for errors that no message caused; a message committed before
        counts as a duplicate when it is processed again.
        """
        messages = [parse_delivery(delivery, self._settings, self._tasks) for delivery in deliveries]
        messages = self._with_former_ids(messages)
        result = BatchResult()
        try:
            self._commit(messages, result, held=set())
        except Exception as error:  # trying each alone shows which message caused it
            if _is_outage(error):
                raise
            held: set[tuple[str, str]] = set()
            for message in messages:
                if stopping():
                    result.give_back += _deliveries([message])
                    continue
                try:
                    self._commit([message], result, held=held)
                except OperationalError as own_error:
                    if _is_outage(own_error):
                        raise
                    # A deadlock, a lock timeout, a full disk: not the message's fault, however often it was delivered.
                    result.give_back += _deliveries([message])
                    if message.aggregate is not None:
                        held.add(message.aggregate)
                except Exception as own_error:  # recorded with the message
                    if _is_outage(own_error):
                        raise
                    self._commit([message.rejected(_reason(own_error))], result, held=held)
        return result

    def retry_requested(self) -> int:
        """Retry the messages that operators requested, each in its own transaction; return how many there were."""
        count = 0
        while self._retry_one():
            count += 1
        return count

    def _with_former_ids(self, messages: list[ParsedMessage]) -> list[ParsedMessage]:
        """Give messages the ID under which an earlier release stored them, so that they count as received."""
        ids = {each.delivery.former_id for each in messages if each.delivery is not None and each.delivery.former_id}
        received = queries.received_at(self._consumer, ids, using=self._using) if ids else {}
        return [_with_former_id(each, received) for each in messages] if received else messages

    def _commit(self, messages: Sequence[ParsedMessage], result: BatchResult, *, held: set[tuple[str, str]]) -> None:
        """Commit messages in one transaction; give back those with a transient reason until delivered too often.

        Messages of the aggregates in ``held`` are given back, too; the aggregates of given-back messages are added to
        it.
        """
        ready: list[ParsedMessage] = []
        later: list[ParsedMessage] = []
        for message in self._check_stores(messages):
            if message.is_early or message.aggregate in held:
                later.append(message)
                if message.aggregate is not None:
                    held.add(message.aggregate)
            else:
                ready.append(message)
        first: dict[str, ParsedMessage] = {}
        for message in ready:  # a message delivered twice in a batch counts once
            first.setdefault(message.message_id, message)
        new: list[ParsedMessage] = []
        jobs: dict[str, int] = {}
        if ready:
            with transaction.atomic(using=self._using):
                new_ids = queries.insert(self._consumer, [each.row() for each in first.values()], using=self._using)
                new = [message for message_id, message in first.items() if message_id in new_ids]
                jobs = self._enqueue([message for message in new if message.task is not None])
                if jobs:
                    queries.record_jobs(self._consumer, jobs, using=self._using)
        result.acknowledge += _deliveries(ready)
        result.give_back += _deliveries(later)
        result.enqueued += len(jobs)
        result.rejected += len(new) - len(jobs)
        result.duplicates += len(ready) - len(new)
        for message in new:
            if message.reason is not None:
                self._report(message, message.reason)

    def _enqueue(self, messages: Sequence[ParsedMessage]) -> dict[str, int]:
        """Enqueue by task, in the same order in every consumer; return the job IDs by message."""
        by_task: dict[str, list[ParsedMessage]] = {}
        for message in messages:
            by_task.setdefault(message.task.name if message.task else "", []).append(message)
        jobs: dict[str, int] = {}
        for _, group in sorted(by_task.items()):
            task: Any = group[0].task
            with consuming(group, self._traced) as traces:
                calls: list[Call[Any]] = [
                    Call(task.name, message.arguments, trace)
                    for message, trace in zip(group, traces, strict=True)
                    if message.arguments
                ]
                if task.is_ordered_by_calls:
                    # enqueue_many would take the order of their job keys.
                    jobs_of = [replace(task.new_job(call.arguments, task.options), trace=call.trace) for call in calls]
                    handles = [add(job, using=self._using) for job in jobs_of]
                else:
                    handles = task.enqueue_many(calls)
            jobs.update((message.message_id, handle.id) for message, handle in zip(group, handles, strict=True))
        return jobs

    def _traced(self, message: ParsedMessage) -> TracedMessage:
        envelope, (service, resource) = message.envelope, place_of(self._settings.source)
        return TracedMessage(
            consumer=self._consumer,
            system=service,
            destination=resource,
            message_id=message.message_id,
            event=message.event,
            deliveries=message.count,
            store_id=message.store_id,
            body_size=len(envelope.payload.encode()) if envelope else 0,
            headers=envelope.headers if envelope else {},
        )

    def _check_stores(self, messages: Sequence[ParsedMessage]) -> Sequence[ParsedMessage]:
        """Reject messages for stores that do not exist (yet). A deletion is noticed after ``_TRUSTED_S`` at most."""
        if conf.store_model is None:
            return messages
        if (now := self._clock()) - self._stores_since >= _TRUSTED_S:
            self._stores, self._stores_since = set(), now
        named = {message.store_id for message in messages if message.task is not None} - {None}
        if unknown := named - self._stores:
            self._stores |= queries.existing_stores(unknown, using=self._using)
        missing = named - self._stores
        return [
            message.rejected(Reason(UNKNOWN_STORE, f"there is no store {message.store_id}", transient=True))
            if message.task is not None and message.store_id in missing
            else message
            for message in messages
        ]

    def _retry_one(self) -> bool:
        row = reason = None
        try:
            with transaction.atomic(using=self._using):
                row = queries.next_to_retry(self._consumer, using=self._using)
                if row is None:
                    return False
                envelope = queries.kept_envelope(row.raw)
                if envelope is None and not self._settings.has_envelope:
                    # Rejected while the settings still required an envelope.
                    envelope = Envelope(message_id=row.message_id, event="", payload=row.raw)
                if envelope is None:
                    reason = Reason(UNREADABLE, "what arrived is not an envelope: it can be dismissed")
                else:
                    parsed = parse_envelope(envelope, self._settings, self._tasks, accept_replays=True)
                    [message] = self._check_stores([parsed])
                    reason = message.reason
                    if reason is None:
                        jobs = self._enqueue([replace(message, message_id=row.message_id)])
                        queries.record_jobs(self._consumer, jobs, using=self._using)
        except Exception as error:  # recorded with the message
            if row is None or _is_outage(error) or isinstance(error, OperationalError):
                raise
            reason = _reason(error)
        if reason is not None:
            queries.reject_again(row.id, code=reason.code, reason=reason.text, using=self._using)
        return True

    def _report(self, message: ParsedMessage, reason: Reason) -> None:
        # Not the text of the reason: it may quote the message.
        log_event(
            logging.WARNING,
            events.MESSAGE_REJECTED,
            consumer=self._consumer,
            message_id=message.message_id,
            message_event=message.envelope.event if message.envelope else None,
            code=reason.code,
            deliveries=message.count,
        )
        about = (message.message_id, self._settings.source, message.event, message.store_id)
        report_failure(MessageFailure(*about, reason.code, message.count, self._consumer))


def find_tasks(consumer: str, settings: ConsumerSettings) -> dict[str, Task[..., Any]]:
    """Return the task of each event.

    Raises ConfigurationError for an unknown task name, suggesting the nearest one, and for a STORE that is not a key.
    """
    if settings.store != "envelope":
        try:
            store_key().parse(settings.store)
        except ValueError as error:
            text = f"SALON_JOBS['CONSUMERS'][{consumer!r}]['STORE'] {error}, or 'envelope'"
            raise ConfigurationError(text) from None
    tasks: dict[str, Task[..., Any]] = {}
    for event, name in settings.tasks.items():
        try:
            tasks[event] = get_task(name)
        except UnknownTask as error:
            raise ConfigurationError(f"SALON_JOBS['CONSUMERS'][{consumer!r}]['TASKS'][{event!r}]: {error}") from error
    return tasks


def _with_former_id(message: ParsedMessage, received: Mapping[str, datetime]) -> ParsedMessage:
    delivery = message.delivery
    if delivery is None or delivery.stored_at is None:
        return message
    # The message received before the broker stored this one was another one, of a deleted stream.
    at = received.get(delivery.former_id)
    return message if at is None or at < delivery.stored_at else replace(message, message_id=delivery.former_id)


def _deliveries(messages: Iterable[ParsedMessage]) -> list[Delivery]:
    return [message.delivery for message in messages if message.delivery is not None]


def _reason(error: Exception) -> Reason:
    if isinstance(error, PayloadInvalid):
        return Reason(PayloadInvalid.code, str(error))
    return Reason(ENQUEUE_FAILED, f"{type(error).__name__}: {error}", transient=True)


def _is_outage(error: Exception) -> bool:
    """Return whether the database is lost or not set up: no message caused that, and each alone would fail, too."""
    if isinstance(error, (SchemaMissing, EnqueueRefused, InterfaceError)) or failed_read_only(error):
        return True
    state = getattr(error.__cause__, "sqlstate", None)
    return isinstance(error, OperationalError) and (state is None or state.startswith(("08", "57P")))
