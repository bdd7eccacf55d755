"""One run of a job, from its claim until its end is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import timedelta
from operator import itemgetter
from typing import Any, Final, TypeVar, cast

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from salon_jobs.core import run_log
from salon_jobs.core.as_json import encode
from salon_jobs.core.errors import CancelRequested, Interrupted, LeaseLost, ResultInvalid, TimedOut, TransactionBroken
from salon_jobs.core.extensions import Extensible
from salon_jobs.core.records import ClaimedJob, KeptResult, StoreId
from salon_jobs.core.tracing import Run, headers_of
from salon_jobs.db.connections import in_transaction, refuse_lost_transaction
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.registry import TaskDeclaration
from salon_jobs.tenancy.active import ActiveContext, open_store

R = TypeVar("R", bound="JobRun")
# Characters of results in one statement, which is several times as large when sent. The server accepts 1 GB.
MOST_PER_STATEMENT: Final = 8_000_000
# Far below what jsonb can hold.
_LARGEST: Final = 10_000_000


def refuse_broken_transaction(connection: BaseDatabaseWrapper) -> None:
    """Raise TransactionBroken if the transaction can only roll back: a swallowed error must not look like success.

    ``durable`` blocks and savepoints that were rolled back properly are fine.
    """
    try:
        connection.validate_no_broken_transaction()
    except TransactionManagementError as error:
        raise TransactionBroken("the handler swallowed a database error or asked for a rollback") from error
    refuse_lost_transaction(connection)


def refuse_open_transaction(connection: BaseDatabaseWrapper) -> None:
    """Raise TransactionBroken if a transaction is open, even one begun by a literal BEGIN: it would not be committed.

    Also raises it for an open tenant context: its store would stay set for the next user of this connection.
    """
    if connection.in_atomic_block or (connection.connection is not None and not connection.autocommit):
        raise TransactionBroken("the handler left a transaction open")
    if in_transaction(connection):
        raise TransactionBroken(
            "the handler left a transaction open that it began with BEGIN; use transaction.atomic()"
        )
    if open_store(connection) is not None:
        raise TransactionBroken("the handler left a tenant context open: close the generator that uses it")


# Logging reads the same variable, with a less specific type.
current_run = cast("ContextVar[JobRun | None]", run_log.current_run)


def _monotonic() -> float:
    """Read the clock by its current name, as everywhere else: a test may have frozen it since the import."""
    return time.monotonic()


@dataclass(eq=False)
class JobRun(Extensible):
    """Run of a job, as the worker drives it. The state of a feature in it is an extension.

    Code that handles chunks too calls the run that represents one ``running``, and each of its ``runs`` ``run``.

    Without slots: a default that a run never overrides stays an attribute of the class, and costs nothing.
    """

    job: ClaimedJob
    # Kept here so that it is looked up by name only once.
    declaration: TaskDeclaration
    leases: Leases = field(repr=False)
    # The thread's connection, looked up once: Django's lookup costs as much as a claim.
    connection: BaseDatabaseWrapper = field(repr=False)
    # In a worker the session belongs to the job and is reset after it; elsewhere it belongs to the caller.
    resets_session: bool = False
    # When the run began, and when it had ended, with its transaction (monotonic seconds).
    started: float = field(default_factory=_monotonic)
    ended: float | None = field(default=None, init=False)
    # Whether the handler has been called; recorded only for a task declared at_most_once.
    is_called: bool = field(default=False, init=False)
    # Whether a statement of this run has ended the job as succeeded, perhaps in a transaction that is still open.
    finished: bool = field(default=False, init=False)
    # Whether its success is committed, as far as is known.
    is_written: bool = field(default=False, init=False)
    # A statement that may have ended the job was sent, or its COMMIT, and its effect is not known for sure.
    is_unclear: bool = field(default=False, init=False)
    # Written by other threads of the worker: the first interrupt of this run, and when to interrupt it (monotonic
    # seconds).
    interrupted_by: type[Interrupted] | None = field(default=None, init=False)
    times_out_at: float | None = field(default=None, init=False)
    cancel_at: float | None = field(default=None, init=False)
    on_extended: Callable[[float], None] | None = field(default=None, init=False)
    # The result of the handler, if it is to be kept.
    result: KeptResult | None = field(default=None, init=False)
    # The record for the tracer and the reporter of failures, if there is one.
    trace: Run | None = field(default=None, init=False)

    @property
    def runs(self) -> tuple[JobRun, ...]:
        """The runs that begin and end with this one: itself, unless it represents a chunk."""
        return (self,)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the handler. Raises PayloadInvalid."""
        return self.declaration.payload.decode(self.job.payload, self.job.store_id)

    def as_store(self) -> AbstractContextManager[object]:
        """Return the context of the handler of a store task that has no transaction of its own."""
        assert self.store_id is not None  # noqa: S101 - it is a store task
        by_statement = self.declaration.is_async
        return ActiveContext(self.connection, self.store_id, atomic=False, by_statement=by_statement)

    @property
    def may_hold_transaction(self) -> bool:
        """Whether the handler can have left a transaction or a tenant context open on the connection."""
        connection = self.connection
        return connection.connection is not None or connection.in_atomic_block or bool(connection.execute_wrappers)

    @property
    def log_fields(self) -> dict[str, object]:
        """Further fields of the log records of its end."""
        return {}

    @property
    def ran_s(self) -> float:
        """Seconds the handler has run so far, or in total once it has ended."""
        return (time.monotonic() if self.ended is None else self.ended) - self.started

    @property
    def duration_s(self) -> float:
        """Seconds the handler has run for this job."""
        return self.ran_s

    @property
    def waited_s(self) -> float:
        """Seconds the job waited after it became due: by the database's clock until the claim, then by ours."""
        return max(0.0, self.started - self.job.due_at)

    @property
    def id(self) -> int:
        return self.job.id

    @property
    def task(self) -> str:
        return self.job.task

    @property
    def store_id(self) -> StoreId | None:
        return self.job.store_id

    @property
    def interrupt_due(self) -> tuple[float, type[Interrupted]] | None:
        """When to interrupt the run (monotonic seconds) and by what; None if never, or if already interrupted."""
        if self.interrupted_by is not None:
            return None
        candidates = ((self.times_out_at, TimedOut), (self.cancel_at, CancelRequested))
        return min(((at, kind) for at, kind in candidates if at is not None), key=itemgetter(0), default=None)

    def cancelled(self) -> bool:
        """Return whether cancellation was requested: its handler has a few seconds before the interrupt."""
        return self.cancel_at is not None

    def close_extensions(self) -> None:
        """Have extensions release resources that must not outlive the handler, which has ended."""
        for extension in tuple(self.extensions.values()):  # a thread of the handler may log its first line now
            extension.close()

    def start_trace(self) -> Run:
        """Return the record for the tracer and the reporter of failures at the start of this run."""
        job = self.job
        self.trace = Run(
            task=job.task,
            job_id=job.id,
            queue=job.queue,
            store_id=job.store_id,
            attempt=job.attempt,
            waited_s=self.waited_s,
            body_size=len(job.payload.encode()),
            headers=headers_of(job.trace),
            tick=job.tick,
        )
        return self.trace

    def forget_error(self) -> None:
        """Drop this run's reference to its error, whose frames lead to the run: all that they hold would stay."""
        if self.trace is not None and self.trace.error is not None:
            self.trace = replace(self.trace, error=None)  # the tracer holds the other record

    @property
    def result_kept_for(self) -> timedelta | None:
        """How long the job's result is kept; None or zero if it is not."""
        own = self.job.keep_result
        return self.declaration.options.keep_result if own is None else own

    def keep_returned(self, value: object) -> None:
        """Keep the handler's return value, if this job's result is kept. Raises ResultInvalid."""
        if not (keep := self.result_kept_for):
            return
        try:
            encoded = encode(value)
            if len(encoded) > _LARGEST:
                raise ValueError(f"it has {len(encoded):,} bytes, and at most {_LARGEST:,} are kept")
            self.result = KeptResult(encoded.decode(), keep, self.ran_s)
        except Exception as error:  # the caller's own class may raise anything
            raise ResultInvalid(
                f"task {self.task!r} returned {type(value).__name__}, which cannot be kept as JSON: {error}. Return "
                "numbers, texts, lists, dicts, dates or dataclasses, or declare the task without keep_result"
            ) from error

    def finish(self) -> None:
        """Finish the job in the current transaction, with the result kept so far.

        A second call in the same transaction does nothing. Raises the errors of ``check_finish``, and LeaseLost.
        """
        self.check_finish()
        self.is_unclear = True
        if not self.leases.finish([self]) and not (self.finished and self.leases.committed(self.job)):
            raise LeaseLost(f"job {self.id} is no longer leased to this run")
        self.finished = True

    def recheck_finish(self) -> None:
        """Find out whether the job is still ``finished``, or the transaction that did it was rolled back.

        Raises the errors of ``check_finish``.
        """
        self.check_finish()
        self.finished = bool(self.leases.committed(self.job))

    def check_finish(self) -> None:
        """Raise the error that keeps this run from succeeding: its interrupt, or TransactionBroken."""
        self.refuse_to_go_on()
        refuse_broken_transaction(self.connection)

    def refuse_to_go_on(self) -> None:
        """Raise the interrupt of this run again if it had one: a handler that caught it must not look like success."""
        if self.interrupted_by is not None:
            raise self.interrupted_by(
                "the handler went on, which is no success: where it catches the timeout it may raise Discard, Snooze "
                "or Retry; to succeed, it ends before current_job().deadline"
            )


def batched_by_size(runs: Sequence[R], most: int) -> Iterator[list[R]]:
    """Yield the runs that keep a result, in parts of at most ``most`` characters, or a single run that is longer."""
    part, size = list[R](), 0
    for run in runs:
        if run.result is None:
            continue
        if part and size + len(run.result.value) > most:
            yield part
            part, size = [], 0
        part.append(run)
        size += len(run.result.value)
    if part:
        yield part
