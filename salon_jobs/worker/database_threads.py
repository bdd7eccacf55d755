"""Threads for the database work of coroutines: a few connections for any number of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any
from weakref import ref

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import Error as PsycopgError
from psycopg.pq import TransactionStatus

from salon_jobs.core.events import logger
from salon_jobs.core.vital import vitally
from salon_jobs.tenancy.active import ActiveContext, detach_contexts
from salon_jobs.tenancy.connections import (
    TIDY_AFTER_S,
    drop_connections,
    is_in_use,
    keep_wrappers,
    opened_connections,
    remember_connections,
    reset_sessions,
    tidy_connections,
    watch_sessions,
)
from salon_jobs.worker.deadlines import CANCEL_S
from salon_jobs.worker.forks import end_copy

# A cancel request that came between two queries is repeated after this time, in which the first would have worked.
REPEAT_S = 0.1


class DatabaseThreads:
    """Up to ``most`` threads, each with connections of its own, that make what they are given in the order given."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        # Waiting or being done.
        self._unfinished = 0

    def submit(self, work: Callable[[], None]) -> None:
        """Have a thread do the work as soon as one is free; it raises nothing."""
        with self._lock:
            self._unfinished += 1
            self._work.put(work)
            if len(self._threads) < min(self._unfinished, self.most):
                name = f"salon-jobs-database-{len(self._threads)}"
                thread = threading.Thread(target=vitally(self._run), name=name, daemon=True)
                thread.start()
                self._threads.append(thread)

    def end(self, timeout_s: float) -> None:
        """End the threads after the work that waits, and wait that long for each."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(timeout_s)

    def _run(self) -> None:
        watch_sessions(keep_all=True)
        idle_since = float("-inf")
        try:
            while (work := self._work.get()) is not None:
                if time.monotonic() - idle_since > TIDY_AFTER_S:
                    tidy_connections(after_idling=True)
                work()
                del work
                idle_since = time.monotonic()
                with self._lock:
                    self._unfinished -= 1
        finally:
            connections.close_all()


class Turns(Executor):
    """What one run asks of the database: its calls, one at a time and in order, each on a thread that is free then.

    A run keeps its thread, and so its connection, while it is in the middle of something there, such as a transaction.

    For coroutines alone: ``submit`` returns a future of the running loop, which that loop takes as it is.
    """

    def __init__(self, threads: DatabaseThreads, alias: str, on_turn: Callable[[BaseDatabaseWrapper], object]) -> None:
        """Prepare; ``on_turn`` gets the connection of each turn, to the database ``alias``."""
        self._threads, self._alias, self._on_turn = threads, alias, on_turn
        # Each with the number of interrupts before it was asked for: a cancel request may hit those before the last.
        self._calls: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any], int]] = SimpleQueue()
        self._interrupts = 0
        self._calling: int | None = None
        # When the query of this call was last to be cancelled (monotonic seconds).
        self._requested_at: float | None = None
        # The newest call, and that of those before the last interrupt: weak, or its result would be kept.
        self._newest: ref[asyncio.Future[Any]] | None = None
        self._newest_to_cancel: ref[asyncio.Future[Any]] | None = None
        self._lock = threading.Lock()
        self._has_turn = self._is_ending = False
        self._left: asyncio.Future[Any] | None = None
        # Held until the server knows of a cancel request: it hits no later call.
        self._cancelling = threading.Lock()
        self._connection: BaseDatabaseWrapper | None = None
        #: open contexts of the run that hold no connection
        self.contexts: list[ActiveContext] = []
        #: whether a thread waits for the next call of this run alone
        self.keeps_thread = False
        #: whether a query was cancelled from outside
        self.is_cancelled = False
        #: since when the run waits for a thread, and has one (monotonic seconds)
        self.waits_since: float | None = None
        self.has_since: float | None = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            self._put(future, partial(fn, *args, **kwargs))
            if self._has_turn:
                return future
            self._has_turn = True
        self._wait()
        return future

    def end(self) -> asyncio.Future[Any] | None:
        """Give the thread back, if the run has one, whatever is open on it; return what says when that is done."""
        with self._lock:
            self._is_ending = True
            if not self._has_turn:
                return None
            self._left = asyncio.get_running_loop().create_future()
            if self.keeps_thread:
                self._put(self._left.get_loop().create_future(), lambda: None)
            return self._left

    def _put(self, future: asyncio.Future[Any], call: Callable[[], Any]) -> None:
        self._newest = ref(future)
        self._calls.put((future, call, self._interrupts))

    def may_cancel(self) -> None:
        """Let ``cancel_query`` cancel the calls asked for so far; those after it may clean up."""
        with self._lock:
            self._interrupts, self._newest_to_cancel = self._interrupts + 1, self._newest

    def cancel_query(self) -> bool:
        """Cancel the query that runs now, if it may be; return when the server knows.

        Return False to be called again, as long as a call that may be cancelled has not ended, was not given up before
        it began, and has met no error: none of its queries may have begun, or the request came between two of them.
        """
        with self._cancelling:
            if self._calling == self._interrupts:
                return True
            newest = None if self._newest_to_cancel is None else self._newest_to_cancel()
            if self._calling is None and (self._is_ending or newest is None or newest.done()):
                return True
            if (connection := self._connection) is None or (raw := connection.connection) is None:
                return False
            has_failed, before = connection.errors_occurred, self._requested_at
            if before is not None and (has_failed or time.monotonic() - before < REPEAT_S):
                return has_failed
            if raw.info.transaction_status != TransactionStatus.ACTIVE:
                return False
            self.is_cancelled, self._requested_at = True, time.monotonic()
            try:
                raw.cancel_safe(timeout=CANCEL_S)
            except PsycopgError as error:
                logger.warning("could not cancel a query: %s", error)
            return has_failed

    def _wait(self) -> None:
        self.waits_since = time.monotonic()
        self._threads.submit(self._take_turn)

    def _take_turn(self) -> None:
        self.waits_since, self.has_since = None, time.monotonic()
        connection = connections[self._alias]
        if connection.execute_wrappers:  # of no run
            keep_wrappers(connection, connection.execute_wrappers)
        self._on_turn(connection)
        self._connection = connection
        self._make(*self._calls.get())
        while self.keeps_thread:
            self._make(*self._calls.get())
        with self._cancelling:
            self._connection = self.has_since = None
        self._leave()
        with self._lock:
            self._has_turn = not self._calls.empty()
            left, self._left = (self._left, None) if not self._has_turn else (None, self._left)
        if self._has_turn:
            self._wait()
        if left is not None:
            _answer(left, left.set_result, None)

    def _make(self, future: asyncio.Future[Any], call: Callable[[], Any], interrupts: int) -> None:
        """Make one call, and see whether the run keeps the thread before anybody knows that it has ended."""
        with self._cancelling:
            if future.cancelled():
                return
            self._calling, self._requested_at = interrupts, None
        for context in self.contexts:
            if context.is_open:
                context.attach(connections[context.connection.alias])
        if self.contexts:
            self.contexts = []
            remember_connections()
        try:
            result = call()
        except BaseException as error:  # it belongs to the coroutine that awaits the call
            end_copy(error)
            remember_connections()
            self._look()
            _answer(future, future.set_exception, error)
        else:
            end_copy()
            self._look()
            _answer(future, future.set_result, result)
        # Of an error, the frames lead to this one, and the future to the error: all that they hold would stay.
        del future, call

    def _look(self) -> None:
        """Keep the thread if the run needs it again."""
        self._calling = None
        in_use = any(map(is_in_use, opened_connections()))
        with self._lock:
            self.keeps_thread = in_use and not self._is_ending

    def _leave(self) -> None:
        """Leave the thread's connections as the next run may find them, whatever this one did."""
        if not self._is_ending:
            for connection in opened_connections():
                self.contexts += detach_contexts(connection)
        if self.is_cancelled:
            self.is_cancelled = False
            drop_connections()
        else:
            connection = connections[self._alias]
            if connection.execute_wrappers or connection.force_debug_cursor:
                remember_connections()
            tidy_connections(after_job=True)
            reset_sessions(wait=True)


def _answer(future: asyncio.Future[Any], end: Callable[[Any], None], value: Any) -> None:
    """End a future on its loop, unless it was cancelled."""
    with suppress(RuntimeError):  # a loop of the handler's own that is closed
        future.get_loop().call_soon_threadsafe(lambda: None if future.done() else end(value))
