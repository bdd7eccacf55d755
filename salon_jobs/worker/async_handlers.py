"""Execution of ``async def`` handlers: one event loop per process; an executor of the run makes the synchronous calls.

What a handler passes to ``sync_to_async``, and the ORM's async methods, run on that executor: in a worker on one of the
``database_threads``; in a test, or by ``EAGER``, on the thread that waits for the run, with its connection and its
transaction.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar
from weakref import WeakSet, WeakValueDictionary

from salon_jobs.core.vital import exits_on_error
from salon_jobs.db.internals import thread_sensitive, without_a_loop_afterwards
from salon_jobs.db.upkeep import clean_after_job
from salon_jobs.worker.forks import exit_if_forked

R = TypeVar("R")


def run_coroutine(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine on the process's event loop, in a copy of the caller's context, and wait for its end.

    Its synchronous parts run on the calling thread. Returns and raises what the coroutine does.
    """
    thread = _WaitingThread()
    with without_a_loop_afterwards():
        ended = asyncio.run_coroutine_threadsafe(CoroutineRun(coroutine, thread).ended(), running_loop())
        ended.add_done_callback(thread.release)
        thread.serve()
    result: R = ended.result().result()
    return result


class CoroutineRun:
    """One coroutine, and the tasks it starts. ``executor`` makes the synchronous calls of all of them."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], executor: Executor) -> None:
        self._coroutine = coroutine
        self._cancelled = False
        self._main: asyncio.Task[Any] | None = None
        #: None once it has ended
        self.executor: Executor | None = executor
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.context = Context()

    def cancel(self) -> None:
        """Cancel it on its loop, even before it runs."""
        self._cancelled = True
        if self._main is None:
            return
        # Tasks still running were cancelled when it ended; one that continues anyway is cancelled again.
        for task in [self._main] if not self._main.done() else self._left():
            task.cancel()

    def _left(self) -> list[asyncio.Task[Any]]:
        return [task for task in self.tasks if not task.done()]

    async def ended(self) -> asyncio.Task[Any]:
        """Run it; cancel the tasks it leaves running, and return its task once all of them have ended."""
        self.context = copy_context()
        self.context.run(_enter, self)
        self._main = self.context.run(asyncio.create_task, self._coroutine)
        if self._cancelled:
            self._main.cancel()
        await until_done([self._main])
        # A task that continued would read as this job's store after the job has ended.
        while left := self._left():
            for task in left:
                task.cancel()
            await until_done(left)
        # Breaks the reference cycles, so that all of it is freed without waiting for the garbage collector.
        main, self._main, self.executor, self.context = self._main, None, None, Context()
        return main


async def until_done(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Wait for tasks, even if cancelled: a handler can cancel all tasks of the loop before its own have ended."""
    for task in tasks:
        while not task.done():
            waiter: asyncio.Future[None] = task.get_loop().create_future()
            task.add_done_callback(partial(_wake, waiter))
            with suppress(asyncio.CancelledError):  # ours
                await waiter


def _wake(waiter: asyncio.Future[None], _: object) -> None:
    if not waiter.done():
        waiter.set_result(None)


class _ExecutorOfTheRun(Executor):
    """Executor that passes each call to that of the current run. Entering one per run took a tenth of the loop."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        run = _run.get()
        if run is None or run.executor is None:
            raise RuntimeError("The job has ended in which this was begun; its database calls end with it.")
        return run.executor.submit(fn, *args, **kwargs)


def _enter(run: CoroutineRun) -> None:
    """Send what the current context passes to ``sync_to_async`` to the run's executor."""
    _run.set(run)
    for variable, value in _in_runs.items():
        variable.set(value)


async def _enter_runs() -> None:
    await thread_sensitive(_ExecutorOfTheRun()).__aenter__()  # type: ignore[no-untyped-call]


class _WaitingThread(Executor):
    """Executor that runs calls on the thread waiting in ``serve``, one at a time."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.put((future, lambda: fn(*args, **kwargs)))
        return future

    def release(self, _: object) -> None:
        """Make ``serve`` return after the calls queued so far."""
        self._calls.put(None)

    def serve(self) -> None:
        while (work := self._calls.get()) is not None:
            future, call = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:  # raised to the coroutine that awaits the call
                exit_if_forked(error)
                future.set_exception(error)
            else:
                exit_if_forked()
                future.set_result(result)
            # Keep no reference to this call while waiting for the next.
            del future, call, work


class _CleanThreads(ThreadPoolExecutor):
    """Threads for ``asyncio.to_thread`` and the like. They outlive the job; each call leaves its connections clean."""

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        return super().submit(_call_cleanly, partial(fn, *args, **kwargs))


def _call_cleanly(call: Callable[[], R]) -> R:
    try:
        return call()
    finally:
        exit_if_forked()
        clean_after_job(wait=True)


_run: ContextVar[CoroutineRun | None] = ContextVar("salon_jobs_async_run", default=None)
_LOOP: Final = "salon-jobs-event-loop"
_starting = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_in_runs: Final = Context()


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the process's event loop. The first coroutine starts it; it runs until the process ends."""
    global _loop  # noqa: PLW0603 - one per process, which clients and pools that keep their loop rely on
    with _starting:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            _loop.set_task_factory(_new_task)
            _loop.set_default_executor(_CleanThreads(thread_name_prefix=_LOOP))
            _loop.create_task(_enter_runs(), context=_in_runs)  # noqa: RUF006 - it ends with its first step
            threading.Thread(target=exits_on_error(_run_for_ever), args=(_loop,), name=_LOOP, daemon=True).start()
        return _loop


def _run_for_ever(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    while True:
        loop.call_soon(_end_generators_where_they_began, loop)
        # asyncio raises these two in any code that awaits the task that raised them, and here: they end only that job.
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
        exit_if_forked()


def stop_copied_loop() -> None:
    """Stop the loop in a copy of the process that a coroutine forked, after which the copy ends."""
    if _loop is not None and threading.current_thread().name == _LOOP:
        for step in getattr(_loop, "_ready", ()):  # of other jobs, which continue in the worker only
            step.cancel()
        _loop.stop()


def _end_generators_where_they_began(loop: asyncio.AbstractEventLoop) -> None:
    """Run the ``finally`` of a collected async generator as the job that began it.

    asyncio would end it in the context of whatever runs when it is collected: another job's, with another store.
    """
    # By id: when a run is collected, weak references to it are already gone.
    began: WeakValueDictionary[int, CoroutineRun] = WeakValueDictionary()
    first, _ = sys.get_asyncgen_hooks()

    def begin(generator: AsyncGenerator[Any, Any]) -> None:
        began.pop(id(generator), None)
        if (run := _run.get()) is not None:
            began[id(generator)] = run
        if first is not None:
            first(generator)

    def end(generator: AsyncGenerator[Any, Any]) -> None:
        run = began.pop(id(generator), None)
        context = Context() if run is None else run.context
        loop.call_soon_threadsafe(loop.create_task, generator.aclose(), context=context)

    sys.set_asyncgen_hooks(begin, end)


def _new_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    context = options.get("context")  # an empty one is false, and starts a task without a job
    run = _run.get() if context is None else context.get(_run)
    if run is not None:
        run.tasks.add(task)
    return task
