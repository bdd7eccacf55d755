"""Conversion of deliveries into jobs, one per message: the inbox row and the job commit together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.db import InterfaceError, OperationalError, transaction

from salon_jobs.brokers.source import Delivery, Envelope
from salon_jobs.conf import settings as conf
from salon_jobs.conf.sections import ConsumerSettings
from salon_jobs.core import events
from salon_jobs.core.errors import ConfigurationError, EnqueueRefused, PayloadInvalid, SchemaMissing, UnknownTask
from salon_jobs.core.events import log_event
from salon_jobs.core.tracing import MessageFailure, Received, consuming, report_failure
from salon_jobs.inbox import queries as inbox
from salon_jobs.inbox.parsing import (
    ENQUEUE_FAILED,
    UNKNOWN_STORE,
    UNREADABLE,
    Arrival,
    Reason,
    read_delivery,
    read_envelope,
    received_of,
)
from salon_jobs.jobs import registry
from salon_jobs.jobs.task import Call, Task


@dataclass(slots=True)
class BatchResult:
    """How to answer deliveries, with counts of their outcomes."""

    acknowledge: list[Delivery] = field(default_factory=list[Delivery])
    give_back: list[Delivery] = field(default_factory=list[Delivery])
    enqueued: int = 0
    duplicates: int = 0
    rejected: int = 0

    def add(self, other: BatchResult) -> None:
        """Add another result to this one."""
        self.acknowledge += other.acknowledge
        self.give_back += other.give_back
        self.enqueued += other.enqueued
        self.duplicates += other.duplicates
        self.rejected += other.rejected


class Processor:
    """Processor of one consumer's deliveries. Single-threaded; worker role, outside any transaction."""

    def __init__(self, consumer: str, settings: ConsumerSettings) -> None:
        """Look up the tasks. Raises ConfigurationError for an unknown task name, suggesting the nearest one."""
        self._consumer = consumer
        self._settings = settings
        self._tasks = find_tasks(consumer, settings)
        self._stores: set[UUID] = set()

    def take(self, deliveries: Sequence[Delivery], *, stopping: Callable[[], bool] = lambda: False) -> BatchResult:
        """Store deliveries and enqueue their jobs; return, after the commit, how to answer each.

        All deliveries share one transaction. If one fails, each gets its own, so that a bad message holds up no other.
        Raises database errors, SchemaMissing and EnqueueRefused for errors that are no message's fault; what was
        committed before counts as a duplicate when it is processed again.
        """
        arrivals = [read_delivery(delivery, self._settings, self._tasks) for delivery in deliveries]
        try:
            return self._commit(arrivals)
        except Exception as error:  # trying each alone shows whose fault it is
            if _is_outage(error):
                raise
        taken = BatchResult()
        for arrival in arrivals:
            if stopping():
                taken.give_back += _deliveries([arrival])
            else:
                taken.add(self._take_alone(arrival))
        return taken

    def retry_asked(self) -> int:
        """Retry what operators asked for, each in its own transaction; return how many there were."""
        count = 0
        while self._retry_one():
            count += 1
        return count

    def _take_alone(self, arrival: Arrival) -> BatchResult:
        try:
            return self._commit([arrival])
        except Exception as error:  # recorded with the message
            if _is_outage(error):
                raise
            if isinstance(error, OperationalError):
                # A deadlock, a lock timeout, a full disk: not the message's fault, however often it was delivered.
                return BatchResult(give_back=_deliveries([arrival]))
            return self._commit([replace(arrival, task=None, reason=_reason(error))])

    def _commit(self, arrivals: Sequence[Arrival]) -> BatchResult:
        """Commit arrivals in one transaction; give back those with a transient reason until delivered too often."""
        arrivals = self._look_at_stores(arrivals)
        ready = [arrival for arrival in arrivals if not self._may_heal(arrival)]
        taken = BatchResult(
            acknowledge=_deliveries(ready),
            give_back=_deliveries([arrival for arrival in arrivals if self._may_heal(arrival)]),
        )
        if not ready:
            return taken
        first: dict[str, Arrival] = {}
        for arrival in ready:  # a message delivered twice in a batch counts once
            first.setdefault(arrival.message_id, arrival)
        with transaction.atomic(using=conf.database):
            new = inbox.take(self._consumer, [arrival.row() for arrival in first.values()])
            arrived = [arrival for message_id, arrival in first.items() if message_id in new]
            jobs = self._enqueue([arrival for arrival in arrived if arrival.task is not None])
            if jobs:
                inbox.record_jobs(self._consumer, jobs)
        taken.enqueued, taken.rejected = len(jobs), len(new) - len(jobs)
        taken.duplicates = len(ready) - len(new)
        for arrival in arrived:
            self._log_rejected(arrival)
        return taken

    def _enqueue(self, arrivals: Sequence[Arrival]) -> dict[str, int]:
        """Enqueue by task, in the same order in every consumer; return the job IDs by message."""
        by_task: dict[str, list[Arrival]] = {}
        for arrival in arrivals:
            by_task.setdefault(arrival.task.name if arrival.task else "", []).append(arrival)
        jobs: dict[str, int] = {}
        for _, group in sorted(by_task.items()):
            task: Any = group[0].task
            with consuming(group, self._received) as traces:
                calls: list[Call[Any]] = [
                    Call(task.name, arrival.arguments, trace)
                    for arrival, trace in zip(group, traces, strict=True)
                    if arrival.arguments
                ]
                handles = task.enqueue_many(calls)
            jobs.update((arrival.message_id, handle.id) for arrival, handle in zip(group, handles, strict=True))
        return jobs

    def _received(self, arrival: Arrival) -> Received:
        return received_of(arrival, consumer=self._consumer, source=self._settings.source)

    def _look_at_stores(self, arrivals: Sequence[Arrival]) -> list[Arrival]:
        """Reject arrivals for stores that do not exist (yet). A store found once is not queried again."""
        named = {a.arguments.store_id for a in arrivals if a.task is not None and a.arguments is not None} - {None}
        if conf.store_model is not None and (unseen := named - self._stores):
            self._stores |= inbox.known_stores(unseen)
        missing = set[UUID | None]() if conf.store_model is None else named - self._stores
        if not missing:
            return list(arrivals)
        return [
            replace(
                a, task=None, reason=Reason(UNKNOWN_STORE, f"there is no store {a.arguments.store_id}", transient=True)
            )
            if a.task is not None and a.arguments is not None and a.arguments.store_id in missing
            else a
            for a in arrivals
        ]

    def _may_heal(self, arrival: Arrival) -> bool:
        transient = arrival.reason is not None and arrival.reason.transient
        return transient and arrival.count < self._settings.max_deliveries

    def _retry_one(self) -> bool:
        """Retry one message; return False if there is none."""
        row = reason = None
        try:
            with transaction.atomic(using=conf.database):
                row = inbox.next_to_retry(self._consumer)
                if row is None:
                    return False
                envelope = inbox.kept_envelope(row.raw)
                if envelope is None and not self._settings.has_envelope:
                    # Set aside while the settings still asked for an envelope.
                    envelope = Envelope(message_id=row.message_id, event="", payload=row.raw)
                if envelope is None:
                    reason = Reason(UNREADABLE, "what came is no envelope: it can be dismissed")
                else:
                    read = read_envelope(envelope, self._settings, self._tasks, replays="accept")
                    [arrival] = self._look_at_stores([read])
                    reason = arrival.reason
                    if reason is None:
                        inbox.record_jobs(self._consumer, self._enqueue([replace(arrival, message_id=row.message_id)]))
        except Exception as error:  # recorded with the message
            if row is None or _is_outage(error) or isinstance(error, OperationalError):
                raise
            reason = _reason(error)
        if reason is not None:
            inbox.reject_again(row.id, code=reason.code, reason=reason.text)
        return True

    def _log_rejected(self, arrival: Arrival) -> None:
        if arrival.reason is not None:
            # Not the text of the reason: it may quote the message.
            log_event(
                logging.WARNING,
                events.MESSAGE_REJECTED,
                consumer=self._consumer,
                message_id=arrival.message_id,
                message_event=arrival.envelope.event if arrival.envelope else None,
                code=arrival.reason.code,
                deliveries=arrival.count,
            )
            envelope = arrival.envelope
            report_failure(
                MessageFailure(
                    arrival.message_id,
                    self._settings.source,
                    envelope.event if envelope else "",
                    arrival.arguments.store_id if arrival.arguments else None,
                    arrival.reason.code,
                    arrival.count,
                    self._consumer,
                )
            )


def find_tasks(consumer: str, settings: ConsumerSettings) -> dict[str, Task[..., Any]]:
    """Return the task of each event. Raises ConfigurationError for an unknown task name, suggesting the nearest one."""
    found: dict[str, Task[..., Any]] = {}
    for event, name in settings.tasks.items():
        try:
            found[event] = registry.get_task(name)
        except UnknownTask as error:
            raise ConfigurationError(f"SALON_JOBS['CONSUMERS'][{consumer!r}]['TASKS'][{event!r}]: {error}") from error
    return found


def _deliveries(arrivals: Sequence[Arrival]) -> list[Delivery]:
    return [arrival.delivery for arrival in arrivals if arrival.delivery is not None]


def _reason(error: Exception) -> Reason:
    if isinstance(error, PayloadInvalid):
        return Reason(PayloadInvalid.code, str(error))
    return Reason(ENQUEUE_FAILED, f"{type(error).__name__}: {error}", transient=True)


def _is_outage(error: Exception) -> bool:
    """Return whether the database is lost or not set up: no message's fault, and none fares better alone."""
    if isinstance(error, (SchemaMissing, EnqueueRefused, InterfaceError)):
        return True
    state = getattr(error.__cause__, "sqlstate", None)
    return isinstance(error, OperationalError) and (state is None or state.startswith(("08", "57P")))
