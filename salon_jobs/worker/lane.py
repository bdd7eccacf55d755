"""The lane of coroutines: many runs at once that hold neither a thread nor a connection while they wait."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, TypeVar
from weakref import proxy

from salon_jobs.core import events
from salon_jobs.core.errors import Interrupted
from salon_jobs.core.events import log_event, logger
from salon_jobs.core.outcomes import Outcome, Succeeded
from salon_jobs.core.records import ClaimedJob
from salon_jobs.core.tracing import is_observed, observing
from salon_jobs.jobs import registry
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.run import JobRun, refuse_open_transaction
from salon_jobs.tenancy.active import ActiveContext
from salon_jobs.worker import deadlines
from salon_jobs.worker.async_handlers import CoroutineRun, running_loop, until_done
from salon_jobs.worker.buffer import JobBuffer
from salon_jobs.worker.database_threads import DatabaseThreads, RunCalls
from salon_jobs.worker.deadlines import DeadlineWatcher
from salon_jobs.worker.ends import identify
from salon_jobs.worker.executor import (
    SUCCEEDED,
    asks_server,
    begin,
    begins_in_database,
    enter,
    keep_result,
    leave,
    outcome_of,
    start,
    starts_in_database,
)
from salon_jobs.worker.finisher import Finisher, size_of
from salon_jobs.worker.forks import exit_if_forked
from salon_jobs.worker.in_flight import InFlightTable

R = TypeVar("R")

# Report a run that waits longer for a thread, with the runs that have one, and at most this often.
_LONG_WAIT_S: Final = 5.0
_REPORT_EVERY_S: Final = 30.0
_LOOK_EVERY_S: Final = 1.0
# How long an interrupt waits for a loop that a handler keeps busy, or for a query that is about to be sent.
_INTERRUPT_S: Final = 1.0


class AwaitingRun(JobRun):
    """Run of a coroutine. Its connection is that of its latest turn on one of the threads."""

    calls: RunCalls
    slot: int
    is_over = False
    # Cancels the coroutine, from any thread; None until there is one.
    cancel_coroutine: Callable[[], object] | None = None

    @property
    def may_hold_transaction(self) -> bool:
        """Whether a thread waits for the run because something, such as a transaction, is open."""
        return self.calls.keeps_thread

    def as_store(self) -> AbstractContextManager[object]:
        """Return the context of the handler, which each turn attaches to its connection."""
        return _StoreOfCalls(self)


class _StoreOfCalls:
    """Context of a store's coroutine. It has no connection of its own; each call attaches it to that of its thread."""

    def __init__(self, running: AwaitingRun) -> None:
        assert running.store_id is not None  # noqa: S101 - it is a store task
        self._calls = running.calls
        self._context = ActiveContext(running.connection, running.store_id, atomic=False, by_statement=True)
        self._context.holds = False

    def __enter__(self) -> None:
        self._context.activate()
        self._calls.contexts.append(self._context)

    def __exit__(self, *_: object) -> None:
        self._context.close()


class CoroutineRunner:
    """Runner of up to ``places`` coroutines on the process's event loop, with their database work on ``threads``.

    Interrupts each run as a ``Runner`` interrupts its only one.
    """

    def __init__(
        self,
        buffer: JobBuffer,
        finisher: Finisher,
        leases: Leases,
        *,
        places: int,
        threads: int,
        first_slot: int,
        in_flight: InFlightTable,
        watcher: DeadlineWatcher,
        on_room: Callable[[], object] = lambda: None,
    ) -> None:
        """Prepare; ``on_room`` is called, on the loop, when a place is free again."""
        self._on_room = on_room
        self._buffer, self._finisher, self._leases = buffer, finisher, leases
        self._in_flight, self._deadlines = in_flight, watcher
        self._threads = DatabaseThreads(threads)
        self._slots = deque(range(first_slot, first_slot + places))
        self._runs: dict[tuple[int, int], AwaitingRun] = {}
        # The loop keeps them by weak references only.
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = threading.Lock()
        self._report_at = float("-inf")

    @property
    def room(self) -> int:
        """How many more jobs may begin now."""
        return 0 if self._buffer.is_full else len(self._slots)

    @property
    def running_count(self) -> int:
        return len(self._runs)

    @property
    def runs(self) -> list[JobRun]:
        """The runs in progress."""
        return list(self._runs.values())

    def start(self, jobs: Sequence[ClaimedJob]) -> None:
        """Begin these jobs, for which there is room."""
        self._buffer.add_running(jobs)
        loop, runs, connection = running_loop(), list[AwaitingRun](), self._leases.connection
        for job in jobs:
            task = registry.get_declaration(job.task)
            running = AwaitingRun(job, task, self._leases, connection, resets_session=True)
            running.slot = self._slots.popleft()
            running.calls = RunCalls(self._threads, self._leases.using, partial(setattr, proxy(running), "connection"))
            self._runs[job.id, job.lease] = running
            runs.append(running)
        loop.call_soon_threadsafe(self._begin, loop, runs, context=Context())

    def interrupt_all(self) -> None:
        """Interrupt all runs and requeue them; the attempts do not count."""
        runs = [running for running in self._runs.copy().values() if self._cancel(running, Interrupted)]
        self._cancel_queries(runs)

    def interrupt(self, running: JobRun, kind: type[Interrupted]) -> bool:
        """Cancel a run's coroutine and its query; return False if it cannot be interrupted now.

        Only a shutdown interrupts a second time. Cancels a query that the coroutine asked for before its cancellation,
        even one that is only being sent, but none with which it cleans up.
        """
        assert isinstance(running, AwaitingRun)  # noqa: S101 - it is watched for this lane
        if not self._cancel(running, kind):
            return False
        self._cancel_queries([running])
        return True

    def _cancel_queries(self, runs: Sequence[AwaitingRun]) -> None:
        """Cancel the queries of runs once their coroutines are cancelled: this waits for the loop and the server."""
        if not runs:
            return
        until, cancelled = time.monotonic() + _INTERRUPT_S, threading.Event()
        running_loop().call_soon_threadsafe(cancelled.set)
        cancelled.wait(_INTERRUPT_S)
        while (runs := [running for running in runs if not running.calls.cancel_query()]) and time.monotonic() < until:
            time.sleep(0.01)

    def _cancel(self, running: AwaitingRun, kind: type[Interrupted]) -> bool:
        with self._ending:
            if running.is_over or (running.interrupted_by is not None and kind is not Interrupted):
                return False
            running.interrupted_by = running.interrupted_by or kind
            running.calls.may_cancel()
            if running.cancel_coroutine is not None:
                running.cancel_coroutine()
        return True

    def cancel(self, job_id: int, lease: int) -> None:
        """Show the cancellation to the handler of this job if it runs here, and interrupt it after the grace."""
        running = self._runs.get((job_id, lease))
        with self._ending:
            if running is None or running.is_over or running.cancelled():
                return
            running.cancel_at = time.monotonic() + deadlines.CANCEL_GRACE_S
            self._deadlines.watch(running, self.interrupt)
        log_event(logging.INFO, events.JOB_CANCEL_NOTICED, **identify(running.job))

    def report_waits(self) -> None:
        """Log which run has waited for a database thread for seconds, if any has, and which runs have one."""
        now = time.monotonic()
        if now < self._report_at:
            return
        self._report_at = now + _LOOK_EVERY_S
        waiting = [run for run in self._runs.copy().values() if now - (run.calls.waits_since or now) > _LONG_WAIT_S]
        if not waiting:
            return
        self._report_at = now + _REPORT_EVERY_S
        runs = self._runs.copy().values()
        held = [(since, run.task, run.id) for run in runs if (since := run.calls.has_since) is not None]
        holders = ", ".join(f"{task} {job_id} for {now - since:.1f} s" for since, task, job_id in sorted(held))
        first = min(waiting, key=lambda run: run.calls.waits_since or now)
        fields: dict[str, Any] = {"waiting": len(waiting), "threads": self._threads.most, "holders": holders}
        log_event(logging.WARNING, events.DATABASE_THREADS_BUSY, **identify(first.job), **fields)

    def end(self, timeout_s: float) -> None:
        """End the threads."""
        self._threads.end(timeout_s)

    def _begin(self, loop: asyncio.AbstractEventLoop, runs: Sequence[AwaitingRun]) -> None:
        for running in runs:
            self._begin_one(loop, running)

    def _begin_one(self, loop: asyncio.AbstractEventLoop, running: AwaitingRun) -> None:
        """Begin a run, again if a handler that cancels every task of the loop cancels it before it has begun."""
        task = loop.create_task(self._run(running), context=Context())
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, loop, running))

    def _ended(self, loop: asyncio.AbstractEventLoop, running: AwaitingRun, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            self._begin_one(loop, running)

    async def _run(self, running: AwaitingRun) -> None:
        try:
            with observing(running.start_trace()) if is_observed() else nullcontext():
                # For writing its end, without a store, a system task or a current job.
                around = copy_context()
                self._deadlines.begin(running, self.interrupt, self._in_flight, running.slot)
                try:
                    outcome = await self._execute(running)
                finally:
                    exit_if_forked()
                    with self._ending:
                        running.is_over = True
                    running.ended = time.monotonic()
                    self._deadlines.forget(running)
                if isinstance(outcome, Succeeded) and not size_of(running):
                    self._finisher.end(running, outcome)
                else:
                    await _on_thread(running.calls, around.run, self._finisher.end, running, outcome)
        except BaseException:  # else its place would stay occupied
            logger.exception("the end of job %s could not be written; it is given back", running.id)
            self._buffer.forget([running.job])  # a sweep gives it back
        running.forget_error()
        self._in_flight.clear(running.slot)
        del self._runs[running.id, running.job.lease]
        self._slots.append(running.slot)
        self._on_room()

    async def _execute(self, running: AwaitingRun) -> Outcome:
        """Lead a run through its life, on a thread where it may wait; return how it ended, once its code stopped."""
        calls = running.calls
        begun = await _on_thread(calls, begin, running) if begins_in_database(running) else begin(running)
        if not isinstance(begun, dict):
            return begun
        entered = enter(running)
        try:
            if starts_in_database(running):
                await _in_context(calls, partial(start, running))
            with nullcontext() if running.store_id is None else running.as_store():
                keep_result(running, await self._call(begun, running))
            running.refuse_to_go_on()
            if running.may_hold_transaction:
                await _on_thread(calls, lambda: refuse_open_transaction(running.connection))
            return SUCCEEDED[False]
        except BaseException as error:  # a handler may raise anything, even SystemExit; only the job fails
            if asks_server(running, error):
                return await _on_thread(calls, outcome_of, running, error)
            return outcome_of(running, error)
        finally:
            leave(running, entered)
            if (left := calls.end()) is not None:
                await until_done([left])

    async def _call(self, arguments: dict[str, Any], running: AwaitingRun) -> Any:
        calls, loop = running.calls, asyncio.get_running_loop()
        run = CoroutineRun(running.declaration.function(**arguments), calls)

        def cancel() -> None:
            calls.may_cancel()
            run.cancel()

        running.cancel_coroutine = partial(loop.call_soon_threadsafe, cancel)
        if running.interrupted_by is None:
            running.is_called = True
        else:  # just before the handler began
            run.cancel()
        result = (await run.ended()).result()
        if running.finished:
            await _on_thread(calls, running.recheck_finish)
        return result


async def _in_context(calls: RunCalls, function: Callable[[], object]) -> None:
    """Call a function on one of the threads in the task's context, and keep the variables that it sets.

    As with a thread per run, the handler sees what a receiver leaves in the context.
    """
    context = copy_context()
    try:
        await _on_thread(calls, context.run, function)
    finally:
        for variable, value in context.items():
            if variable.get(None) is not value:
                variable.set(value)


async def _on_thread(calls: RunCalls, function: Callable[..., R], *arguments: Any, **named: Any) -> R:
    """Call a function on one of the threads, to its end, even if the task is cancelled in the meantime."""
    future: asyncio.Future[R] = calls.submit(function, *arguments, **named)
    await until_done([future])
    try:
        return future.result()
    finally:
        del future  # it refers to its error, whose frames lead to this one
