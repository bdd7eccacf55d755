"""One run of a job, from its claim until its end is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from salon_jobs.core import events
from salon_jobs.core.errors import CancelRequested, Interrupted, LeaseLost, TimedOut, TransactionBroken
from salon_jobs.core.events import LoggedLines
from salon_jobs.core.records import ClaimedJob, KeptResult, StoreId
from salon_jobs.core.tracing import Run, headers_of
from salon_jobs.db.connections import in_transaction, refuse_lost_transaction
from salon_jobs.db.instants import to_project
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.options import LONGEST_DAYS, check_duration
from salon_jobs.jobs.progress import writer
from salon_jobs.jobs.results import encode_result
from salon_jobs.tenancy.active import open_store

if TYPE_CHECKING:
    from salon_jobs.jobs.flows import RunningFlow
    from salon_jobs.jobs.registry import TaskDeclaration
    from salon_jobs.jobs.steps import Steps

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


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

    Also raises it for an open tenant context, whose store would stay set for whatever uses this connection next.
    """
    if connection.connection is None and not (connection.in_atomic_block or connection.execute_wrappers):
        return  # as after most small jobs: the checks below would take longer than the job
    if connection.in_atomic_block or (connection.connection is not None and not connection.autocommit):
        raise TransactionBroken("the handler left a transaction open")
    if in_transaction(connection):
        raise TransactionBroken(
            "the handler left a transaction open that it began with BEGIN; use transaction.atomic()"
        )
    if open_store(connection) is not None:
        raise TransactionBroken("the handler left a tenant context open: close the generator that uses it")


# Logging reads the same variable, with a less specific type.
current_run = cast("ContextVar[JobRun | None]", events.current_run)


def _monotonic() -> float:
    """Look the clock up anew, as everywhere else: a test may have frozen it since the import."""
    return time.monotonic()


@dataclass(eq=False)
class JobRun:
    """Job that a handler is running.

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
    # Whether a statement of this run has ended the job as succeeded, perhaps in a transaction that is still open.
    finished: bool = field(default=False, init=False)
    # Whether its success is committed, for all that is known.
    is_written: bool = field(default=False, init=False)
    # A statement that may have ended the job was sent, or its COMMIT, and what became of it is not known for sure.
    is_unclear: bool = field(default=False, init=False)
    # Written by other threads of the worker: what interrupted this run first, and when to interrupt it (monotonic
    # seconds).
    interrupted_by: type[Interrupted] | None = field(default=None, init=False)
    times_out_at: float | None = field(default=None, init=False)
    cancel_at: float | None = field(default=None, init=False)
    on_extended: Callable[[float], None] | None = field(default=None, init=False)
    # What the handler returned, if it is to be kept.
    result: KeptResult | None = field(default=None, init=False)
    # The result passed to ``finish``.
    finished_with: Any = field(default=None, init=False)
    # What the declaration remembers of this run until its end is announced.
    memo: Any = field(default=None, init=False)
    # The last lines that it logged, if it logged any.
    log: LoggedLines | None = field(default=None, init=False)
    # What its handler does in steps, once it has asked for one.
    steps: Steps | None = field(default=None, init=False)
    # What the tracer and the reporter of failures receive, if there are any.
    trace: Run | None = field(default=None, init=False)

    @property
    def runs(self) -> tuple[JobRun, ...]:
        """The runs that begin and end with this one: itself, unless it stands for others."""
        return (self,)

    @property
    def log_fields(self) -> dict[str, object]:
        """Further fields of the records of its end."""
        return {}

    @property
    def ran_s(self) -> float:
        """Seconds the handler has run so far, or in total once it ended."""
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
    def interrupt_due(self) -> tuple[float, type[Interrupted]] | None:
        """When to interrupt the run (monotonic seconds) and by what; None if never, or if already interrupted."""
        if self.interrupted_by is not None:
            return None
        candidates = ((self.times_out_at, TimedOut), (self.cancel_at, CancelRequested))
        return min(((at, kind) for at, kind in candidates if at is not None), key=itemgetter(0), default=None)

    @property
    def process_id(self) -> int:
        return self.leases.process_id

    @property
    def id(self) -> int:
        return self.job.id

    @property
    def task(self) -> str:
        return self.job.task

    @property
    def attempt(self) -> int:
        """Number of this run; the first is 1."""
        return self.job.attempt

    @property
    def max_attempts(self) -> int:
        return self.job.max_attempts

    @property
    def store_id(self) -> StoreId | None:
        """Store of the job; None for a system task."""
        return self.job.store_id

    @property
    def run_at(self) -> datetime:
        """When the job was due."""
        return to_project(self.job.run_at)

    @property
    def created_at(self) -> datetime:
        """When the job was enqueued; unlike ``run_at``, retries do not change it."""
        return to_project(self.job.created_at)

    @property
    def tick(self) -> datetime | None:
        """Cron tick the job originates from, directly or through a fan-out, or None. Always aware."""
        return self.job.tick

    @property
    def deadline(self) -> datetime | None:
        """When this run times out, by this host's clock; None without a timeout."""
        if self.times_out_at is None:
            return None
        return to_project(datetime.now(UTC) + timedelta(seconds=self.times_out_at - time.monotonic()))

    def start_trace(self) -> Run:
        """Return what the tracer and the reporter of failures receive at the start of this run."""
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
        """Have this run lead no more to its error, whose frames lead to the run: all that they hold would stay."""
        if self.trace is not None and self.trace.error is not None:
            self.trace = replace(self.trace, error=None)  # the other is the tracer's

    @property
    def flow(self) -> RunningFlow:
        """The flow that the job is a member of, with one or two queries. Raises FlowInvalid if it is of none."""
        from salon_jobs.jobs.flows import RunningFlow  # noqa: PLC0415 - only for those who have flows

        return RunningFlow(self.id, using=self.connection.alias)

    def cancelled(self) -> bool:
        """Return whether cancellation was requested; if so, raise any exception soon. Does not query the database.

        Becomes true at most a second after ``cancel_jobs``, usually at once. The run is interrupted five seconds later.
        """
        return self.cancel_at is not None

    def extend(self, by: timedelta) -> None:
        """Postpone the deadline of this run, as often as needed. Without a timeout this does nothing.

        A shutdown does not wait for it. Raises OptionInvalid unless ``by`` is from zero to 36,500 days, and TimedOut if
        the run has timed out already.
        """
        check_duration("by", by, LONGEST_DAYS)
        self.refuse_to_go_on()
        if self.times_out_at is not None:
            self.times_out_at += by.total_seconds()
            if self.on_extended is not None:
                self.on_extended(self.times_out_at)

    def progress(self, done: int, total: int | None = None, text: str = "") -> None:
        """Show people how far this run is: ``done`` of ``total`` (None: unknown), and a text of up to 255 characters.

        Outside the handler's transaction, once a second at most; call it as often as you like. Nothing of it is kept
        when the run ends. Raises OptionInvalid.
        """
        writer.note(self, done, total, text)

    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function once in the life of the job; later attempts return what it returned, and do not call it.

        In a transaction of its own, which also keeps the result, as JSON of up to 1 MB, under the job's lease: what the
        function writes to the job's database happens exactly once. ``name`` is the step's own in this job. Raises
        StepInvalid inside a transaction, such as that of a store task without ``atomic=False``, for a name that this
        run has used, and for what cannot be kept; and LeaseLost: do not catch it.
        """
        result: R = self._own_steps().run(name, function, args, kwargs)
        return result

    @overload
    async def astep(
        self, name: str, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def astep(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def astep(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Do the same in a coroutine, with the function on a thread.

        A coroutine function runs without a transaction, and its result is kept afterwards: at least once.
        """
        return await self._own_steps().arun(name, function, args, kwargs)

    @overload
    def cursor(self, name: str, elements: Callable[[T | None], Iterable[T]], /) -> Iterator[T]: ...
    @overload
    def cursor(self, name: str, elements: Iterable[T], /) -> Iterator[T]: ...
    def cursor(self, name: str, elements: Any, /) -> Iterator[Any]:
        """Iterate over the elements, after those that earlier attempts have committed.

        Each element is taken, and the body of the loop runs, in one transaction, which also keeps the position, as
        ``step`` keeps a result. What leaves the loop early rolls that element back. An iterable must begin with the
        same elements in each attempt; a function gets the last element committed, None at first, and returns those
        after it.
        """
        return self._own_steps().loop(name, elements)

    def _own_steps(self) -> Steps:
        if self.steps is None:
            from salon_jobs.jobs.steps import Steps  # noqa: PLC0415 - only for jobs that have them

            self.steps = Steps(self)
        return self.steps

    def finish(self, result: object = None) -> None:
        """Finish the job as succeeded inside the handler's own last transaction, so that both commit together.

        For tasks with ``atomic=False``. A task with ``keep_result`` passes its ``result`` here, since what it returns
        comes too late. A second call in the same transaction does nothing. Raises LeaseLost if the job now belongs to
        another run, and TransactionBroken if the transaction can only roll back: do not catch them. After a timeout,
        raises the timeout again: a handler that swallowed it must not look like success.
        """
        self.returned(result)
        self.end()
        self.finished_with = result

    @property
    def keeps_result(self) -> timedelta | None:
        """How long the job's result is kept; None or zero if it is not."""
        own = self.job.keep_result
        return self.declaration.options.keep_result if own is None else own

    def returned(self, value: object) -> None:
        """Keep what the handler returned, if this job's result is kept. Raises ResultInvalid."""
        if keep := self.keeps_result:
            self.result = KeptResult(encode_result(self.task, value), keep, self.ran_s)

    def end(self) -> None:
        """Finish the job in the current transaction, as ``finish`` does, with the result kept so far."""
        self.check_end()
        self.is_unclear = True
        if not self.leases.finish([self]) and not (self.finished and self.leases.committed(self.job)):
            raise LeaseLost(f"job {self.id} is no longer leased to this run")
        self.finished = True

    def check_end(self) -> None:
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
