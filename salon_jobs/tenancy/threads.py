"""Threads for coroutines' blocks that hold a connection: on the shared thread, each block would refuse the others.

Django passes the database work of a coroutine to one thread, and so to one connection. A request of an ASGI server and
an async job have their own thread; consumers of Django Channels and the tasks of a script all share one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from django.db import connections

from salon_jobs.core.errors import TenantContextError
from salon_jobs.db.internals import give_thread, has_shared_thread, shared_thread, take_thread_back

R = TypeVar("R")
# Each has a connection. More blocks wait for their turn, so that a message to a thousand sockets does not open a
# thousand.
AT_ONCE: Final = 10
# Long for work on a database. Blocks that wait for each other would wait forever.
PATIENCE_S = 30.0


class _Turns:
    """Blocks of one event loop: how many may begin now, and how many have ended."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(AT_ONCE)
        self._ended = 0

    async def take(self) -> None:
        """Wait for a turn. Raises TenantContextError if none ends for long."""
        while True:
            ended = self._ended
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._free.acquire()
                return
            except TimeoutError:
                if self._ended == ended:
                    raise TenantContextError(
                        f"{AT_ONCE} contexts with a transaction or session are open, and none has ended for "
                        f"{PATIENCE_S:g} s: do not wait for other tasks or services in them, or hold none "
                        "(atomic=False)"
                    ) from None

    def give_back(self) -> None:
        self._ended += 1
        self._free.release()


_turns: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns]] = WeakKeyDictionary()


class OwnThread(Executor):
    """Thread of one block, which ``sync_to_async`` uses inside. Calls that outlive the block use the shared one."""

    @classmethod
    async def taken(cls) -> OwnThread | None:
        """Return a thread for the current task, in its turn; None where it shares none with others.

        Changes the context of the task.
        """
        if not has_shared_thread():
            return None
        loop = asyncio.get_running_loop()
        turns = _turns.setdefault(loop, _Turns())
        await turns.take()
        return cls(loop, turns)

    def __init__(self, loop: asyncio.AbstractEventLoop, turns: _Turns) -> None:
        self._loop, self._turns = loop, turns
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tenant-context", initializer=self._begin)
        self._ident = 0
        self._has_ended = False
        self._given = give_thread(self)

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        thread = shared_thread() if self._has_ended else self._thread
        return thread.submit(fn, *args, **kwargs)

    def call(self, function: Callable[[], R]) -> R:
        """Call a function on the thread, from any, and wait for it."""
        if threading.get_ident() == self._ident:
            return function()
        return self._thread.submit(copy_context().run, function).result()

    def end(self) -> None:
        """Close the thread's connections and end it, without waiting; the task goes back to the shared one."""
        if self._has_ended:
            return
        self._has_ended = True
        take_thread_back(self._given)
        self._thread.submit(connections.close_all).add_done_callback(self._give_back)
        self._thread.shutdown(wait=False)

    def _begin(self) -> None:
        self._ident = threading.get_ident()

    def _give_back(self, closing: Future[None]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nothing waits
            self._loop.call_soon_threadsafe(self._turns.give_back)
        closing.result()  # an error would be logged
