"""Helpers that run jobs and publish messages inside a test, on the caller's connection."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload
from uuid import UUID

from django.db import connections

from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure, Verdict
from salon_jobs.brokers.registry import make_publisher
from salon_jobs.conf import settings as conf
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.error_report import report
from salon_jobs.core.outcomes import Discard, Errored, Left, Outcome, Snooze, Split, Succeeded
from salon_jobs.core.records import PARTITIONS, ClaimedJob, JobState, StoreId
from salon_jobs.db import statements
from salon_jobs.db.connections import alias_of, can_run
from salon_jobs.jobs import registry
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.payload import STORE_ARGUMENT
from salon_jobs.jobs.run import JobRun
from salon_jobs.jobs.task import Task
from salon_jobs.models import Job, Process
from salon_jobs.outbox import queries as outbox
from salon_jobs.outbox.queries import PageRequest
from salon_jobs.tenancy.active import ActiveContext, as_system_task, call_outside, current_store_id, outside
from salon_jobs.worker.async_handlers import run_coroutine
from salon_jobs.worker.chunks import can_join_chunk, run_of
from salon_jobs.worker.ends import settle
from salon_jobs.worker.executor import execute

if TYPE_CHECKING:
    from django.tasks import Task as DjangoTask

P = ParamSpec("P")
R = TypeVar("R")

_here = threading.local()


@dataclass(frozen=True, slots=True)
class DrainedJob:
    """One run of ``drain_jobs``. With ``raise_errors=False``, a handler's error is ``outcome.error``."""

    id: int
    task: str
    store_id: StoreId | None
    outcome: Outcome


def drain_jobs(
    *,
    queues: Sequence[str] | None = None,
    now: datetime | None = None,
    limit: int = 1000,
    raise_errors: bool = True,
    using: str | None = None,
) -> list[DrainedJob]:
    """Run due jobs, and those they enqueue, until none is due; return every run in order.

    They run as in a worker, without the store, language and time zone of the caller. A later ``now`` makes later jobs
    due (retries, ``run_at``). Raises AssertionError after ``limit`` runs, since jobs that enqueue each other would
    never end, and at the first run that fails, with its error as the cause. With ``raise_errors=False``, that job is
    retried or failed as in a worker, and the drain goes on. Jobs of a task with ``chunk`` run together as in a worker,
    each counted as a run; after a failed chunk they run one by one. ``using`` is the alias of the jobs, by default that
    of the settings.
    """
    drain = partial(_drain, queues, now, limit, raise_errors=raise_errors, using=alias_of(using))
    return call_outside(drain)


def _drain(
    queues: Sequence[str] | None, now: datetime | None, limit: int, *, raise_errors: bool, using: str
) -> list[DrainedJob]:
    processes = Process.objects.using(using)
    process = processes.create(kind="test", hostname=socket.gethostname()[:255], pid=os.getpid())
    leases = Leases(process.pk, using=processes.db)
    drained: list[DrainedJob] = []
    if leases.connection.in_atomic_block:  # it may never commit: ``then`` is enqueued as the jobs end
        statements.execute("count_ends_at_once", using=leases.using)
    was_draining, _here.drains = is_draining(), True
    try:
        while True:
            if not (claimed := leases.claim_due(registry.task_names(), 1, queues=queues, now=now)):
                if registry.find_waiting_tasks(using=leases.using):
                    continue
                break
            job = claimed[0]
            if len(drained) == limit:
                leases.requeue([(job.id, job.lease)], unbegun=True)
                raise AssertionError(f"{limit} jobs ran and still more are due; the next is {job.task!r}")
            task = registry.get_declaration(job.task)
            others = _claim_others(job, leases, limit - len(drained) - 1, queues=queues, now=now)
            running = run_of([job, *others], task, leases, leases.connection)
            outcome = settle(running, _unharmed(running))
            if raise_errors and isinstance(outcome, (Errored, Left, Split)) and _would_fail(running, outcome):
                what = f"a chunk of {len(running.runs)} jobs" if len(running.runs) > 1 else f"job {running.id}"
                failure = report(outcome.error)
                raise AssertionError(
                    f"{what} of task {running.task!r} failed: {failure.error_class}: {failure.message}\n"
                    "If the test expects this, pass raise_errors=False; the error is then in the run's outcome"
                ) from outcome.error
            drained += [DrainedJob(run.id, run.task, run.store_id, outcome) for run in running.runs]
    finally:
        _here.drains = was_draining
        process.delete()
    return drained


def _would_fail(running: JobRun, outcome: Errored | Left | Split) -> bool:
    """Return whether a job fails or is retried by this error; in a chunk, whether it would alone."""
    if not isinstance(outcome, Split):
        return True
    error = outcome.error
    return not isinstance(error, (Snooze, Discard)) and isinstance(running.declaration.errors.outcome(error), Errored)


def _unharmed(running: JobRun) -> Outcome:
    """Execute a run; if a database error ends it, the open transaction goes on.

    A worker has none open around a handler, so such an error breaks nothing there.
    """
    connection = running.connection
    if not connection.in_atomic_block:
        return execute(running)
    savepoint: Any = connection.savepoint()  # a name, since a transaction is open
    outcome = execute(running)
    # After a handler that has caught the error, the rollback would silently lose its writes.
    if not isinstance(outcome, Succeeded) and (connection.needs_rollback or not can_run(connection)):
        connection.needs_rollback = False
        connection.savepoint_rollback(savepoint)
    else:
        connection.savepoint_commit(savepoint)
    return outcome


def is_draining() -> bool:
    """Return whether a drain runs on this thread, which will also run jobs enqueued until it ends."""
    return getattr(_here, "drains", False)


def _claim_others(
    first: ClaimedJob, leases: Leases, most: int, *, queues: Sequence[str] | None, now: datetime | None
) -> list[ClaimedJob]:
    """Claim up to ``most`` due jobs that run in one chunk with this one."""
    task = registry.get_declaration(first.task)
    if task.chunk is None or not can_join_chunk(task, first):
        return []
    due = leases.claim_due([task.name], 10_000, queues=queues, now=now)
    alike = [job for job in due if (job.store_id, job.claim_group) == (first.store_id, first.claim_group)]
    chunk = [job for job in alike if can_join_chunk(task, job)][: min(task.chunk - 1, most)]
    ids = {job.id for job in chunk}
    leases.requeue([(job.id, job.lease) for job in due if job.id not in ids])
    return chunk


@overload
def perform_job(task: Task[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
@overload
def perform_job(task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
@overload
def perform_job(task: DjangoTask[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
def perform_job(task: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Run a task's handler here, with arguments converted and store set as in a worker; its errors propagate.

    An ``async def`` handler runs to its end, and its result is returned; in async code, call this with sync_to_async.
    Nothing is enqueued, and ``current_job()`` is unavailable. One of Django's tasks runs as the store whose context is
    open, if one is. Raises PayloadInvalid, TaskInvalid.
    """
    run: Callable[[], Any]
    if isinstance(task, Task):
        ours = cast("Task[..., Any]", task)
        arguments = ours.payload.bind(args, kwargs)
        store_id, is_async, atomic = arguments.store_id, ours.is_async, ours.atomic
        run = partial(ours.function, **ours.payload.decode(arguments.json, store_id))
    else:
        theirs: Any = registry.declaration_of(task)
        store_id, is_async, atomic = current_store_id(), theirs.is_async, theirs.atomic
        run = partial(theirs.perform, args, kwargs)

    def call() -> Any:
        result = run()
        return run_coroutine(result) if is_async else result

    if store_id is None:
        with outside(), as_system_task(task.name):
            return call()
    with ActiveContext(connections[conf.database], store_id, atomic=atomic, by_statement=is_async):
        return call()


def assert_enqueued(
    task: Task[..., Any] | DjangoTask[..., Any], /, *, count: int | None = None, **arguments: Any
) -> list[int]:
    """Assert that jobs of ``task``, ours or Django's, are queued with these arguments; return their ids.

    ``count`` None means one or more. The AssertionError shows the queued jobs instead. Raises TaskInvalid for a task of
    another backend, and PayloadInvalid for an argument that the task does not have.
    """
    declared = registry.declaration_of(task)
    queued = Job.objects.using(conf.database).filter(task=declared.name, state=JobState.QUEUED).order_by("id")
    names = (STORE_ARGUMENT, declared.payload.store_name) if declared.is_store_task else ()
    store_id = next((arguments.pop(name) for name in names if name in arguments), None)
    wanted = {name: declared.payload.stored(name, value) for name, value in arguments.items()}
    # The call of a task of Django's has only what was given.
    known = declared.payload.signature.parameters
    defaults = {name: wanted[name] for name in wanted.keys() & known if known[name].default == arguments[name]}
    rows: list[tuple[int, StoreId | None, dict[str, Any]]] = [
        (pk, store, declared.payload.named(payload))
        for pk, store, payload in queued.values_list("pk", "store_id", "payload")
    ]
    ids = [
        pk
        for pk, store, payload in rows
        if wanted.items() <= {**defaults, **payload}.items() and (store_id is None or str(store) == str(store_id))
    ]
    if (count is None and not ids) or (count is not None and len(ids) != count):
        shown = [payload if store is None else (str(store), payload) for _, store, payload in rows[:10]]
        expected = "at least 1" if count is None else str(count)
        raise AssertionError(
            f"{len(ids)} jobs of {declared.name!r} with {wanted} are queued, not {expected}; queued are {shown}"
        )
    return ids


_NO_GATE = 2**63 - 1


@dataclass(frozen=True, slots=True)
class DrainedMessage:
    """One message of ``drain_outbox``; ``answer`` is None if it was published."""

    message_id: UUID
    aggregate_type: str
    aggregate_id: str
    event: str
    payload: str
    answer: PublishFailure | None


def drain_outbox(*, limit: int = 1000, using: str | None = None) -> list[DrainedMessage]:
    """Publish pending messages once, including those of the caller's own transaction; return them in order.

    Uses the publishers of the settings (``rn::memory:::…`` keeps messages in ``MemoryPublisher.published``). Messages
    that are not published stay pending. Role: one that may update messages, such as the worker's or the tables' owner.
    ``using`` is their alias, by default that of the settings. Raises AssertionError if there are more than ``limit``.
    """
    alias = alias_of(using)
    drained: list[DrainedMessage] = []
    for destination in outbox.message_destinations(using=alias):
        requests = [PageRequest(destination, partition, 0, limit + 1) for partition in range(PARTITIONS)]
        messages = sorted(outbox.fetch(requests, _NO_GATE, using=alias), key=lambda message: message.id)
        if len(drained) + len(messages) > limit:
            raise AssertionError(f"more than {limit} messages are pending; raise the limit of drain_outbox()")
        if messages:
            drained += _publish(messages, using=alias)
    return drained


def _publish(messages: list[OutgoingMessage], *, using: str) -> list[DrainedMessage]:
    publisher = make_publisher(parse_destination(messages[0].aggregate_type).service, using=using)
    publisher.open()
    try:
        answers = publisher.publish(messages, should_continue=lambda: True)
    finally:
        publisher.close()
    pairs = list(zip(messages, answers, strict=True))
    outbox.mark_published([message for message, answer in pairs if answer is None], using=using)
    skipped = [(m, answer.code) for m, answer in pairs if answer and answer.verdict is Verdict.SKIPPED]
    if skipped:
        outbox.mark_skipped(skipped, using=using)
    return [
        DrainedMessage(m.message_id, m.aggregate_type, m.aggregate_id, m.event, m.payload, answer)
        for m, answer in pairs
    ]
