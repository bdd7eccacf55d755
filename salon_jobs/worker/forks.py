"""Guard against copies of a worker process, made with ``os.fork`` by a handler, that continue as a second worker.

A copy has the sockets of this process: the server would take what the copy writes, even a farewell, for ours.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, Final
from weakref import WeakSet

from django.db import connections
from django.db.backends.signals import connection_created
from psycopg import Connection, Error

from salon_jobs.core.events import logger

_opened: Final[WeakSet[Connection[Any]]] = WeakSet()
# Keeps them from being collected, which would warn.
_inherited: Final[list[Connection[Any]]] = []
_is_copy = False


def guard_copies() -> None:
    """Make every process forked from now on give up our connections, and end where a handler returns."""
    connection_created.connect(_remember, dispatch_uid="salon_jobs.forks")
    os.register_at_fork(before=_flush, after_in_child=_become_copy)


def exit_if_forked(error: BaseException | None = None) -> None:
    """End this process if it is a copy, with the status that ``error`` asks for; do nothing in the worker itself."""
    if not _is_copy:
        return
    status: Any = 0 if error is None else error.code if isinstance(error, SystemExit) else 1
    if error is not None and not isinstance(error, SystemExit):
        logger.error("a process forked by a handler raised an error", exc_info=error)
    _flush()
    os._exit(status if isinstance(status, int) else 0 if status is None else 1)


def _remember(connection: Any, **_: object) -> None:
    if connection.vendor == "postgresql":
        _opened.add(connection.connection)


def _become_copy() -> None:
    global _is_copy  # noqa: PLW0603 - a fact about the process
    _is_copy = True
    _inherited.extend(_opened)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for raw in _inherited:
        with suppress(Error, OSError):  # closed already
            os.dup2(nowhere, raw.pgconn.socket, inheritable=False)
    os.close(nowhere)
    # The copy's own code may use the database, on its own connections.
    for connection in connections.all(initialized_only=True):
        connection.connection = None


def _flush() -> None:
    # The buffered output would be written twice after the fork.
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a handler may have closed or replaced them
            stream.flush()
