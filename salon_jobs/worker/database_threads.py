"""Threads for the database work of coroutines: a few connections for any number of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import Error as PsycopgError
from psycopg.pq import TransactionStatus

from salon_jobs.core.events import logger
from salon_jobs.core.states import moved
from salon_jobs.core.vital import exits_on_error
from salon_jobs.db.upkeep import (
    TIDY_AFTER_S,
    clean_after_job,
    drop_connections,
    is_in_use,
    keep_wrappers,
    opened_connections,
    remember_connections,
    tidy_connections,
    watch_sessions,
)
from salon_jobs.tenancy.active import ActiveContext, detach_contexts
from salon_jobs.worker.deadlines import CANCEL_S
from salon_jobs.worker.forks import exit_if_forked

# Repeat a cancel request that came between two queries after this time; the first request would have worked by then.
REPEAT_S = 0.1


class DatabaseThreads:
    """Up to ``most`` threads, each with its own connections, that do the work submitted to them in order."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        # Works that wait or run.
        self._unfinished = 0

    def submit(self, work: Callable[[], None]) -> None:
        """Queue work, which raises nothing, for the next free thread."""
        with self._lock:
            self._unfinished += 1
            self._work.put(work)
            if len(self._threads) < min(self._unfinished, self.most):
                name = f"salon-jobs-database-{len(self._threads)}"
                thread = threading.Thread(target=exits_on_error(self._run), name=name, daemon=True)
                thread.start()
                self._threads.append(thread)

    def end(self, timeout_s: float) -> None:
        """End the threads after the waiting work; wait up to ``timeout_s`` for each."""
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


class Turn(Enum):
    """State of a run in relation to the threads.

    =====  =========================================================  ===========================
    State  Meaning                                                    Goes on to
    =====  =========================================================  ===========================
    NONE   it asks for nothing                                        WAITS
    WAITS  it has asked for a call, and no thread is free yet         HAS
    HAS    a thread makes one call                                    KEEPS, NONE, WAITS
    KEEPS  the thread makes its calls alone, or waits for the next:   HAS
           one has left something open there, such as a transaction
    =====  =========================================================  ===========================
    """

    NONE = "none"
    WAITS = "waits"
    HAS = "has"
    KEEPS = "keeps"


_NEXT: Final = {
    Turn.NONE: (Turn.WAITS,),
    Turn.WAITS: (Turn.HAS,),
    Turn.HAS: (Turn.HAS, Turn.KEEPS, Turn.NONE, Turn.WAITS),
    Turn.KEEPS: (Turn.KEEPS, Turn.HAS),
}


@dataclass(slots=True, eq=False)
class _Call:
    """A database call of a coroutine: waiting, then current; or given up before it began."""

    future: asyncio.Future[Any]
    function: Callable[[], Any]
    # Whether the run was interrupted after this call was asked for, so that its query may be cancelled.
    is_interrupted: bool = False
    # When cancelling its query was last tried (monotonic seconds).
    cancelled_at: float | None = None


class RunCalls(Executor):
    """Database calls of one coroutine: one at a time and in order, each on the next free pooled thread.

    A run keeps its thread, and so its connection, while it has something open there, such as a transaction.

    For coroutines only: ``submit`` returns a future of the running loop, which that loop takes as it is.
    """

    def __init__(self, threads: DatabaseThreads, alias: str, on_turn: Callable[[BaseDatabaseWrapper], object]) -> None:
        """Prepare; ``on_turn`` gets the connection of each turn, to the database ``alias``."""
        self._threads, self._alias, self._on_turn = threads, alias, on_turn
        self._lock = threading.Lock()
        self._turn = Turn.NONE
        self._asked: SimpleQueue[_Call] = SimpleQueue()
        # Calls that have not ended, and the current one.
        self._open: list[_Call] = []
        self._current: _Call | None = None
        self._is_ending = False
        self._left: asyncio.Future[Any] | None = None
        # Held until the server has received a cancel request: it cannot hit a later call.
        self._cancelling = threading.Lock()
        self._connection: BaseDatabaseWrapper | None = None
        #: open contexts of the run that hold no connection
        self.contexts: list[ActiveContext] = []
        #: whether a query was cancelled from outside
        self.is_cancelled = False
        #: since when the run waits for a thread, and has one (monotonic seconds)
        self.waits_since: float | None = None
        self.has_since: float | None = None

    @property
    def keeps_thread(self) -> bool:
        """Whether a thread waits for the next call of this run only."""
        return self._turn is Turn.KEEPS

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            self._put(_Call(future, partial(fn, *args, **kwargs)))
            if self._turn is not Turn.NONE:
                return future
            self._go_on_to(Turn.WAITS)
        self._wait()
        return future

    def end(self) -> asyncio.Future[Any] | None:
        """Give the thread back, if the run has one, whatever is open on it; return a future of that."""
        with self._lock:
            self._is_ending = True
            if self._turn is Turn.NONE:
                return None
            self._left = asyncio.get_running_loop().create_future()
            if self._turn is Turn.KEEPS:
                self._put(_Call(self._left.get_loop().create_future(), lambda: None))
            return self._left

    def _put(self, call: _Call) -> None:
        self._open.append(call)
        self._asked.put(call)

    def _go_on_to(self, turn: Turn) -> None:
        self._turn = moved(self._turn, turn, _NEXT)

    def may_cancel(self) -> None:
        """Let ``cancel_query`` cancel the calls asked for so far; later calls may clean up, or write the end."""
        with self._lock:
            for call in () if self._is_ending else self._open:
                call.is_interrupted = True

    def cancel_query(self) -> bool:
        """Cancel the current query, if it may be. Return True once nothing is left to cancel; otherwise call again.

        Call again while a call that may be cancelled has neither ended, nor been given up before it began, nor met an
        error: its query may not have begun, or the request came between two queries. Returns when the server has
        received the request.
        """
        with self._cancelling:
            if (call := self._current) is None:
                with self._lock:
                    is_left = any(each.is_interrupted and not each.future.done() for each in self._open)
                return self._is_ending or not is_left
            if not call.is_interrupted:
                return True
            if (connection := self._connection) is None or (raw := connection.connection) is None:
                return False
            has_failed, before = connection.errors_occurred, call.cancelled_at
            if before is not None and (has_failed or time.monotonic() - before < REPEAT_S):
                return has_failed
            if raw.info.transaction_status != TransactionStatus.ACTIVE:
                return False
            self.is_cancelled, call.cancelled_at = True, time.monotonic()
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
        with self._lock:
            self._go_on_to(Turn.HAS)
        connection = connections[self._alias]
        if connection.execute_wrappers:  # they belong to no run
            keep_wrappers(connection, connection.execute_wrappers)
        self._on_turn(connection)
        self._connection = connection
        self._call(self._asked.get())
        while self._turn is Turn.KEEPS:
            self._call(self._asked.get())
        with self._cancelling:
            self._connection = self.has_since = None
        self._clean_connections()
        with self._lock:
            is_last = self._asked.empty()
            self._go_on_to(Turn.NONE if is_last else Turn.WAITS)
            left, self._left = (self._left, None) if is_last else (None, self._left)
        if not is_last:
            self._wait()
        if left is not None:
            _answer(left, left.set_result, None)

    def _call(self, call: _Call) -> None:
        """Make one call, and decide whether the run keeps the thread before anyone learns that the call has ended."""
        future = call.future
        with self._cancelling:
            if future.cancelled():
                self._end(call)
                return
            self._current = call
        for context in self.contexts:
            if context.is_open:
                context.attach(connections[context.connection.alias])
        if self.contexts:
            self.contexts = []
            remember_connections()
        try:
            result = call.function()
        except BaseException as error:  # raised to the coroutine that awaits the call
            exit_if_forked(error)
            remember_connections()
            self._look(call)
            _answer(future, future.set_exception, error)
        else:
            exit_if_forked()
            self._look(call)
            _answer(future, future.set_result, result)
        # The frames of an error lead to this one, and the future to the error: a cycle would keep all that they hold.
        del future, call

    def _look(self, call: _Call) -> None:
        """End a call, and keep the thread if the run needs it again."""
        self._current = None
        in_use = any(map(is_in_use, opened_connections()))
        with self._lock:
            self._go_on_to(Turn.KEEPS if in_use and not self._is_ending else Turn.HAS)
        self._end(call)

    def _end(self, call: _Call) -> None:
        with self._lock:
            self._open.remove(call)

    def _clean_connections(self) -> None:
        """Leave the thread's connections clean for the next run, whatever this one did."""
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
            clean_after_job(wait=True)


def _answer(future: asyncio.Future[Any], end: Callable[[Any], None], value: Any) -> None:
    """End a future on its loop, unless it was cancelled."""
    with suppress(RuntimeError):  # a loop that a handler created, now closed
        future.get_loop().call_soon_threadsafe(lambda: None if future.done() else end(value))
