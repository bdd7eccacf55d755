"""Clean-up of this thread's Django connections between two pieces of work, as after a request."""

from __future__ import annotations

import select
import threading
from functools import cached_property
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.db.connections import in_transaction
from salon_jobs.tenancy.active import open_store
from salon_jobs.tenancy.session_reset import finish_reset, reset

_POOL_DEFAULT = 4  # psycopg_pool's


class _Opened(threading.local):
    """Connections opened by this thread: asking Django for all of them costs more than a small job."""

    @cached_property
    def connections(self) -> set[BaseDatabaseWrapper]:
        return set(connections.all(initialized_only=True))

    @cached_property
    def resetting(self) -> list[BaseDatabaseWrapper]:
        return []


_opened = _Opened()


def _remember(connection: BaseDatabaseWrapper, **_: object) -> None:
    # A connection that a handler creates itself is its own to close, and must not be kept alive here.
    if connection.alias in connections and connections[connection.alias] is connection:
        _opened.connections.add(connection)


connection_created.connect(_remember, dispatch_uid="salon_jobs.connections")


def tidy_connections(*, after_idling: bool = False) -> None:
    """Close this thread's connections that broke, were left in a transaction, or outlived CONN_MAX_AGE.

    ``after_idling`` also requests Django's health check (CONN_HEALTH_CHECKS) before the next statement: between two
    successive jobs it would be one more round trip to a server that has just answered.

    Do not use inside ``transaction.atomic()``: any block open here counts as left open by other code.

    To a web server CONN_MAX_AGE 0 means "one request"; a worker's thread keeps such a connection between jobs.
    """
    connection: Any
    for connection in tuple(_opened.connections):
        if connection.connection is None and not connection.in_atomic_block:
            _opened.connections.discard(connection)
            continue
        if connection.in_atomic_block or in_transaction(connection) or open_store(connection) is not None:
            # Django keeps such a connection unusable until the block ends, which it never will: forget it. Likewise for
            # one whose tenant context was left open (by a generator that never ended): it would set its store again.
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
    """Reset the sessions that this thread's last job used; call ``finish_resets`` before the next use.

    The job does not wait for it: the server resets while the thread continues.
    """
    for connection in tuple(_opened.connections):
        if reset(connection, wait=False):
            _opened.resetting.append(connection)


def finish_resets() -> None:
    """Wait until the sessions of this thread are reset; discard a connection whose server refused."""
    while _opened.resetting:
        finish_reset(_opened.resetting.pop())


def drop_connections() -> None:
    """Close this thread's connections for good, and discard Django's state about them; a pool gets none back."""
    for connection in connections.all(initialized_only=True):
        raw: Any = connection.connection
        if raw is not None:
            raw.close()
        connection.close()
        _forget(connection)
    _opened.connections.clear()


def _forget(connection: BaseDatabaseWrapper) -> None:
    """Make Django create a new one for this thread, unless a handler already did."""
    _opened.connections.discard(connection)
    if connection.alias in connections and connections[connection.alias] is connection:
        del connections[connection.alias]


def refuse_small_pool(threads: int) -> None:
    """Raise ConfigurationError when Django's pool cannot give each of our threads its own permanent connection.

    If heartbeats waited for jobs to return a connection, a living process would be declared dead.
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
    """Return whether the server wrote to an idle connection: it has ended it, and the next query would fail.

    (Rarely it announces a changed setting; then a new connection costs little.) No round trip.
    """
    raw: Any = connection.connection
    if raw is None or connection.vendor != "postgresql" or raw.closed:
        return False
    poll = select.poll()
    poll.register(raw.fileno(), select.POLLIN)
    return bool(poll.poll(0))
