"""Runs a step on the thread where Django's async methods run, to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

from asgiref.sync import sync_to_async


async def run_to_its_end(step: Callable[[], None]) -> None:
    """Call ``step`` once on the thread-sensitive thread and wait until it ended, whoever cancels the task meanwhile.

    asgiref lets go of a call whose task is cancelled: it may be waiting, running or done then. The thread makes one
    call at a time, so a second call comes after the first. Raises what the step raised; CancelledError, after the step
    has ended, when the task was cancelled.
    """
    ended: Future[None] = Future()

    def once() -> None:
        if ended.done():
            return
        try:
            step()
        except BaseException as error:  # it belongs to whoever awaits the step
            ended.set_exception(error)
        else:
            ended.set_result(None)

    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await sync_to_async(once)()
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from ended.exception()
    ended.result()
