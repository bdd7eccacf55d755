"""Cleans this thread's Django connections between two pieces of work, as a request would."""

from __future__ import annotations

import logging
import select
import threading
from functools import cached_property
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.core.events import log_event
from salon_jobs.db.connections import in_transaction
from salon_jobs.tenancy.active import open_store
from salon_jobs.tenancy.session_reset import finish_reset, reset_soon

_POOL_DEFAULT = 4  # psycopg_pool's


class _Opened(threading.local):
    """Holds the connections that this thread opened: to ask Django for all of them costs more than a small job."""

    @cached_property
    def connections(self) -> set[BaseDatabaseWrapper]:
        return set(connections.all(initialized_only=True))

    @cached_property
    def resetting(self) -> list[BaseDatabaseWrapper]:
        return []


_opened = _Opened()


def _remember(connection: BaseDatabaseWrapper, **_: object) -> None:
    # One that a handler makes for itself is its own to close, and not to be kept alive here.
    if connections[connection.alias] is connection:
        _opened.connections.add(connection)


connection_created.connect(_remember, dispatch_uid="salon_jobs.connections")


def tidy_connections(*, after_idling: bool = False) -> None:
    """Close this thread's connections that broke, were left in a transaction, or outlived CONN_MAX_AGE.

    ``after_idling`` asks for Django's health check too (CONN_HEALTH_CHECKS), before the next statement: between two
    jobs that follow each other it would be one more round trip, to a server that has just answered.

    Not for use inside ``transaction.atomic()``: whatever block is open here was left open by somebody else.

    CONN_MAX_AGE 0 means "one request" to a web server; a worker's thread keeps such a connection between jobs.
    """
    connection: Any
    for connection in tuple(_opened.connections):
        if connection.connection is None and not connection.in_atomic_block:
            _opened.connections.discard(connection)
            continue
        if connection.in_atomic_block or in_transaction(connection) or open_store(connection) is not None:
            # Django keeps such a connection unusable until the block ends, which it never will: forget it. So we do
            # with one whose tenant context was left open (by a generator that nobody ended): it sets its store anew.
            connection.close()
            _forget(connection)
            continue
        if connection.settings_dict["CONN_MAX_AGE"] == 0:
            connection.close_at = None
        connection.queries_log.clear()
        if _was_hung_up(connection):
            connection.close()
        connection.close_if_unusable_or_obsolete()
        connection.health_check_done = not after_idling


def reset_sessions() -> None:
    """Reset the sessions that this thread's last job has used; call ``finish_resets`` before the next use.

    The job does not wait for it: the server resets while the thread goes on.
    """
    for connection in tuple(_opened.connections):
        if reset_soon(connection):
            _opened.resetting.append(connection)


def finish_resets() -> None:
    """Wait until the sessions of this thread are reset; discard a connection whose server refused it."""
    while _opened.resetting:
        finish_reset(_opened.resetting.pop())


def log_lost(error: Exception, *, loop: str) -> None:
    """Log that a loop lost the database, and have this thread's connection looked at before its next use."""
    log_event(logging.WARNING, events.DATABASE_LOST, loop=loop, error=str(error).strip())
    connections[conf.database].errors_occurred = True


def drop_connections() -> None:
    """Close this thread's connections for good, and forget what Django keeps about them; a pool gets none back."""
    for connection in connections.all(initialized_only=True):
        raw: Any = connection.connection
        if raw is not None:
            raw.close()
        connection.close()
        _forget(connection)
    _opened.connections.clear()


def _forget(connection: BaseDatabaseWrapper) -> None:
    """Have Django make another one for this thread, unless a handler saw to that already."""
    _opened.connections.discard(connection)
    if connections[connection.alias] is connection:
        del connections[connection.alias]


def refuse_small_pool(threads: int) -> None:
    """Raise ConfigurationError when Django's pool can not give each of our threads the connection that it keeps.

    A heartbeat that waited for jobs to give a connection back would get a living process buried.
    """
    pool: Any = connections[conf.database].settings_dict["OPTIONS"].get("pool")
    if not pool:
        return
    size: int = _POOL_DEFAULT if pool is True else pool.get("max_size") or pool.get("min_size", _POOL_DEFAULT)
    if size < threads:
        raise ConfigurationError(
            f"DATABASES[{conf.database!r}]['OPTIONS']['pool'] gives at most {size} connections and this process keeps "
            f"{threads}: set max_size to {threads} or more, or lower the concurrency"
        )


def _was_hung_up(connection: BaseDatabaseWrapper) -> bool:
    """Tell whether the server spoke on an idle connection: it has ended it, and the next job's first query would fail.

    (Rarely it announces a changed setting; then a new connection costs little.) No round trip.
    """
    raw: Any = connection.connection
    if raw is None or raw.closed:
        return False
    poll = select.poll()
    poll.register(raw.fileno(), select.POLLIN)
    return bool(poll.poll(0))
