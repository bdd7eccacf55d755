"""Threads that a process cannot do without: if one dies, so does the process, and another takes its place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from threading import current_thread
from typing import ParamSpec

from salon_jobs.core import events
from salon_jobs.core.error_report import message_of
from salon_jobs.core.events import log_event

P = ParamSpec("P")
_on_death: Callable[[str, BaseException], object] | None = None


def die_by(on_death: Callable[[str, BaseException], object] | None) -> None:
    """Let ``on_death`` end this process when a vital thread dies; it gets the thread's name and its error.

    It is called on the dying thread. None: a death is only logged, and the error raised again.
    """
    global _on_death  # noqa: PLW0603 - one a process
    _on_death = on_death


@contextmanager
def vital() -> Generator[None]:
    """End the process if the block raises anything: for work on a thread that could end unnoticed."""
    try:
        yield
    except BaseException as error:
        name = current_thread().name
        log_event(logging.CRITICAL, events.THREAD_DIED, exc_info=error, thread=name, error=message_of(error)[:500])
        if _on_death is None:
            raise
        _on_death(name, error)


def exits_on_error(work: Callable[P, object]) -> Callable[P, None]:
    """Return ``work`` as the target of a vital thread."""

    @wraps(work)
    def run(*args: P.args, **named: P.kwargs) -> None:
        with vital():
            work(*args, **named)

    return run
