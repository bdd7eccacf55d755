"""``current_job()``: a handler's view of its job, with the actions it can take."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from salon_jobs.core.errors import NoCurrentJob
from salon_jobs.core.extensions import Extension
from salon_jobs.core.records import StoreId
from salon_jobs.db.instants import to_project
from salon_jobs.jobs.options import LONGEST_DAYS, check_duration
from salon_jobs.jobs.progress import writer
from salon_jobs.jobs.run import JobRun, current_run

if TYPE_CHECKING:
    from salon_jobs.jobs.flows import RunningFlow
    from salon_jobs.jobs.steps import Steps

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass
class FinishedWith(Extension):
    """The result that ``finish`` was given, kept or not."""

    result: object


@dataclass(frozen=True, slots=True)
class CurrentJob:
    """The job that a handler is running, for the handler and for receivers of signals."""

    # For features, which attach their state to it.
    run: JobRun

    @property
    def id(self) -> int:
        return self.run.id

    @property
    def task(self) -> str:
        return self.run.task

    @property
    def attempt(self) -> int:
        """Number of this run; the first is 1."""
        return self.run.job.attempt

    @property
    def max_attempts(self) -> int:
        return self.run.job.max_attempts

    @property
    def store_id(self) -> StoreId | None:
        """Store of the job; None for a system task."""
        return self.run.store_id

    @property
    def run_at(self) -> datetime:
        """When the job was due."""
        return to_project(self.run.job.run_at)

    @property
    def created_at(self) -> datetime:
        """When the job was enqueued; unlike ``run_at``, retries do not change it."""
        return to_project(self.run.job.created_at)

    @property
    def tick(self) -> datetime | None:
        """Cron tick from which the job originates, directly or through a fan-out, or None. Always aware."""
        return self.run.job.tick

    @property
    def deadline(self) -> datetime | None:
        """When this run times out, by this host's clock; None without a timeout."""
        if self.run.times_out_at is None:
            return None
        return to_project(datetime.now(UTC) + timedelta(seconds=self.run.times_out_at - time.monotonic()))

    @property
    def flow(self) -> RunningFlow:
        """The flow of the job, with one or two queries. Raises FlowInvalid if it has none."""
        from salon_jobs.jobs.flows import RunningFlow  # noqa: PLC0415 - only for those who have flows

        return RunningFlow(self.id, using=self.run.connection.alias)

    def cancelled(self) -> bool:
        """Return whether cancellation was requested; if so, raise any exception soon. Does not query the database.

        Becomes true at most a second after ``cancel_jobs``, usually at once. The run is interrupted five seconds later.
        """
        return self.run.cancelled()

    def extend(self, by: timedelta) -> None:
        """Postpone the deadline of this run, as often as needed. Without a timeout this does nothing.

        A shutdown does not wait for it. Raises OptionInvalid unless ``by`` is from zero to 36,500 days, and TimedOut if
        the run has timed out already.
        """
        check_duration("by", by, LONGEST_DAYS)
        run = self.run
        run.refuse_to_go_on()
        if run.times_out_at is not None:
            run.times_out_at += by.total_seconds()
            if run.on_extended is not None:
                run.on_extended(run.times_out_at)

    def progress(self, done: int, total: int | None = None, text: str = "") -> None:
        """Show people how far this run is: ``done`` of ``total`` (None: unknown), and a text of up to 255 characters.

        Outside the handler's transaction, once a second at most; call it as often as you like. It is deleted when the
        run ends. Raises OptionInvalid.
        """
        writer.note(self.run, done, total, text)

    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function once in the life of the job; later attempts return its result without a call.

        In a transaction of its own, which also keeps the result, as JSON of up to 1 MB, under the job's lease: what the
        function writes to the job's database happens exactly once. ``name`` is unique to the step in this job. Raises
        StepInvalid inside a transaction, such as that of a store task without ``atomic=False``, for a name that this
        run has used, and for a result that cannot be kept; and LeaseLost: do not catch it.
        """
        result: R = self._steps.run(name, function, args, kwargs)
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
        return await self._steps.arun(name, function, args, kwargs)

    @overload
    def cursor(self, name: str, elements: Callable[[T | None], Iterable[T]], /) -> Iterator[T]: ...
    @overload
    def cursor(self, name: str, elements: Iterable[T], /) -> Iterator[T]: ...
    def cursor(self, name: str, elements: Any, /) -> Iterator[Any]:
        """Iterate over the elements, after those that earlier attempts have committed.

        Each element is taken, and the body of the loop runs, in one transaction, which also keeps the position, as
        ``step`` keeps a result. Leaving the loop early rolls that element back. An iterable must begin with the same
        elements in each attempt; a function gets the last committed element, None at first, and returns the elements
        after it.
        """
        return self._steps.loop(name, elements)

    @property
    def _steps(self) -> Steps:
        from salon_jobs.jobs.steps import Steps  # noqa: PLC0415 - only for jobs that have them

        return self.run.extension(Steps) or self.run.attach(Steps(self.run))

    def finish(self, result: object = None) -> None:
        """Finish the job as succeeded inside the handler's own last transaction, so that both commit together.

        For tasks with ``atomic=False``. A task with ``keep_result`` passes its ``result`` here, since its return value
        comes too late. A second call in the same transaction does nothing, and one that is rolled back counts for
        nothing. Raises LeaseLost if the job now belongs to another run, and TransactionBroken if the transaction can
        only roll back: do not catch them. After a timeout, raises the timeout again: a handler that swallowed it must
        not look like success.
        """
        self.run.keep_returned(result)
        self.run.finish()
        if result is not None or self.run.extension(FinishedWith) is not None:
            self.run.attach(FinishedWith(result))


def current_job() -> CurrentJob:
    """Return the job this handler is running. Raises NoCurrentJob outside a handler, and in a handler of chunks."""
    if (run := current_run.get()) is None:
        raise NoCurrentJob("current_job() works only inside a task's handler")
    if run.declaration.chunk is not None:
        raise NoCurrentJob(f"task {run.task!r} runs several jobs at once, so it has no current job")
    return CurrentJob(run)
