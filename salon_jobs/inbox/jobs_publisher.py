"""Publisher that turns messages into jobs: ``rn::jobs:::task-name`` enqueues that task, once per message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from django.db import Error, connections, transaction

from salon_jobs.brokers.publisher import (
    Answers,
    OutgoingMessage,
    Publisher,
    PublishFailure,
    Verdict,
    publish_one_by_one,
)
from salon_jobs.core.errors import EnqueueRefused, MessageInvalid, PayloadInvalid, UnknownTask
from salon_jobs.core.tracing import consuming
from salon_jobs.db.connections import alias_of, is_right_missing
from salon_jobs.db.statements import is_of_driver
from salon_jobs.db.upkeep import tidy_connections
from salon_jobs.inbox import queries
from salon_jobs.inbox.queries import InboxRow, Status
from salon_jobs.jobs import registry
from salon_jobs.jobs.enqueue import add
from salon_jobs.jobs.payload import STORE_ARGUMENT
from salon_jobs.jobs.task import get_task
from salon_jobs.tenancy.context import context_of

# Consumer name in the inbox, so that a message becomes one job however often it is relayed.
CONSUMER = "jobs"


class JobsPublisher(Publisher):
    """Publisher that enqueues the task named by a resource, with the payload as its arguments, in the message's store.

    The inbox row and the job commit together: exactly one job per message, even after crashes. The event is ignored.
    """

    service = "jobs"

    def check(self, message: OutgoingMessage) -> None:
        """Reject a task that is not registered or is another library's, and a payload that no job of it can have."""
        if (name := _task_name(message)) not in registry.task_names():
            raise MessageInvalid(
                f"aggregate_type {message.aggregate_type}: no task {name!r} is registered in this process"
            )
        try:
            get_task(name)
        except UnknownTask as error:  # another library's task
            raise MessageInvalid(f"aggregate_type {message.aggregate_type}: {error}") from error
        if not message.payload.startswith("{"):
            raise MessageInvalid("payload must be a dict of the task's arguments, when the destination is a task")

    def publish(self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]) -> Answers:
        """Enqueue one job per message, each in its own transaction."""
        if not connections[alias_of(self.using)].in_atomic_block:  # a test may drain in its own transaction
            tidy_connections(after_idling=True)
        return publish_one_by_one(messages, self._enqueue, should_continue=should_continue)

    def ping(self) -> None:
        """Do nothing, because the relay's own readiness checks the database."""

    def _enqueue(self, message: OutgoingMessage) -> PublishFailure | None:
        using = alias_of(self.using)
        try:
            with context_of(message.store_id, using=using), transaction.atomic(using=using):
                id_ = str(message.message_id)
                row = InboxRow(id_, message.event, message.producer, message.store_id, Status.ENQUEUED)
                if queries.insert(CONSUMER, [row], using=using):
                    queries.record_jobs(CONSUMER, {id_: self._add_job(message, using)}, using=using)
        except UnknownTask as error:
            return PublishFailure(Verdict.MISSING, error.code, str(error))
        except (PayloadInvalid, EnqueueRefused) as error:
            # A right that the relay's user lacks is missing for every message.
            verdict = Verdict.OUTAGE if is_right_missing(error.__cause__) else Verdict.REFUSED
            return PublishFailure(verdict, error.code, str(error))
        except Error as error:
            if is_of_driver(error):
                return PublishFailure(Verdict.REFUSED, "JOBS.STATEMENT", str(error).strip())
            connections[using].errors_occurred = True
            return PublishFailure(Verdict.OUTAGE, "JOBS.DATABASE", str(error).strip())
        return None

    def _add_job(self, message: OutgoingMessage, using: str) -> int:
        task = get_task(_task_name(message))
        members = queries.members_of(message.payload)
        named = queries.take_store(members, task.payload) if task.is_store_task else None
        store = message.store_id or named
        if named not in (None, store):
            raise PayloadInvalid(f"its payload names another {STORE_ARGUMENT} than the message")
        job = task.new_job(task.payload.bind_json(members, store), task.options)
        with consuming([message], lambda each: each.traced(consumer=CONSUMER)) as [trace]:
            return add(replace(job, trace=trace), using=using).id


def _task_name(message: OutgoingMessage) -> str:
    return message.aggregate_type.rpartition(":")[2]
