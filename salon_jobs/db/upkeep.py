"""Upkeep of a thread's connections between two pieces of work: jobs, requests, rounds of a loop.

A connection that broke or was left in a transaction is closed; the session of any other is cleaned (``db/session.py``).
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final
from weakref import WeakKeyDictionary

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from salon_jobs.db.connections import StatementGuard, guards_of, in_transaction
from salon_jobs.db.internals import connect_first
from salon_jobs.db.read_only import close_if_read_only
from salon_jobs.db.session import clean, discard, finish_cleaning, guard_of, guard_session, is_psycopg

_keep_all = False
# How often a connection that jobs leave alone is checked: each check is a system call, which costs more than a small
# job and releases the interpreter's lock. A connection that its server has ended can fail one job that begins then.
_LOOK_EVERY_S: Final = 0.05
# A thread that was idle for longer tidies its connections before the next job; a busy one did so after the last.
TIDY_AFTER_S: Final = 0.05


def watch_sessions(*, keep_all: bool = False) -> None:
    """Watch connections that Django opens or takes from a pool from now on and that outlive a job or request.

    Call this again when the process starts its work: changes by other receivers of ``connection_created`` belong to a
    new connection, and only the last receiver sees all of them. ``keep_all``: this process keeps every connection.
    """
    global _keep_all  # noqa: PLW0603 - one a process
    _keep_all = _keep_all or keep_all
    connection_created.disconnect(dispatch_uid="salon_jobs.session_reset")
    connection_created.connect(_watch, dispatch_uid="salon_jobs.session_reset")
    if keep_all:
        connect_first(connection_created, _see_wrappers, "salon_jobs.wrappers")


def _outlives(connection: BaseDatabaseWrapper) -> bool:
    settings = connection.settings_dict
    return _keep_all or settings["CONN_MAX_AGE"] != 0 or bool(settings["OPTIONS"].get("pool"))


def _see_wrappers(connection: BaseDatabaseWrapper, **_: object) -> None:
    _opened.before_receivers = tuple(connection.execute_wrappers)


def _watch(connection: BaseDatabaseWrapper, **_: object) -> None:
    before, _opened.before_receivers = _opened.before_receivers, None
    if before is not None and len(connection.execute_wrappers) != len(before):
        keep_wrappers(connection, [each for each in connection.execute_wrappers if each not in before])
    if not is_psycopg(connection) or not _outlives(connection):
        return
    guard = guard_of(connection.connection)
    if guard is None:
        guard_session(connection)
    elif guard.used and not any(each.in_session for each in guards_of(connection)):
        # It comes from a pool that does not reset. (A session that has just got a store comes from a pool that does.)
        clean(connection)


def clean_after_request(connection: BaseDatabaseWrapper) -> None:
    """Clean the session of a connection that outlives the request, unless other work continues on it.

    Discard it if the request left a transaction open that it began without Django: the next request would be in
    it.
    """
    if not is_psycopg(connection) or not _outlives(connection) or connection.in_atomic_block or guards_of(connection):
        return
    if not in_transaction(connection):
        clean(connection)
    elif connection.autocommit:
        discard(connection, "a request left a transaction open")


class _Opened(threading.local):
    """Connections opened by this thread. Asking Django for all of them takes longer than a small job."""

    @cached_property
    def connections(self) -> set[BaseDatabaseWrapper]:
        return set(connections.all(initialized_only=True))

    @cached_property
    def cleaning(self) -> list[BaseDatabaseWrapper]:
        return []

    # Statement wrappers that belong to a connection, not to a job; none for most.
    @cached_property
    def wrappers(self) -> WeakKeyDictionary[BaseDatabaseWrapper, list[Any]]:
        return WeakKeyDictionary()

    # Those of a connection that is being announced, before the receivers add theirs.
    before_receivers: tuple[Any, ...] | None = None
    # When the thread last checked whether their servers have ended them.
    looked_at = float("-inf")


_opened = _Opened()


def _remember(connection: BaseDatabaseWrapper, **_: object) -> None:
    # A connection that a handler creates itself is the handler's to close, and must not be kept alive here.
    if connection.alias in connections and connections[connection.alias] is connection:
        _opened.connections.add(connection)


connection_created.connect(_remember, dispatch_uid="salon_jobs.connections")


def remember_connections() -> None:
    """Make ``tidy_connections`` check every connection of this thread: an error occurred, perhaps while connecting.

    Django announces a connection once its session is set up. If the server ends it before that, it stays with Django,
    closed and unannounced, and every later statement would fail on it.
    """
    _opened.connections.update(connections.all(initialized_only=True))


def keep_wrappers(connection: BaseDatabaseWrapper, wrappers: Iterable[Any]) -> None:
    """Make ``clean_after_job`` keep these wrappers of statements on this connection."""
    kept = _opened.wrappers.setdefault(connection, [])
    kept += [each for each in wrappers if each not in kept]


def _drop_left_behind(connection: BaseDatabaseWrapper) -> None:
    """Remove a job's changes to Django's side of a connection: wrappers of statements, and a log of all queries."""
    connection.force_debug_cursor = False
    kept = _opened.wrappers.get(connection, ())
    # A guard left open is for the caller.
    wrappers: list[Any] = connection.execute_wrappers
    wrappers[:] = [each for each in wrappers if each in kept or isinstance(each, StatementGuard)]


def tidy_connections(*, after_idling: bool = False) -> None:
    """Close this thread's connections that broke, were left in a transaction, or outlived CONN_MAX_AGE.

    ``after_idling`` also requests Django's health check (CONN_HEALTH_CHECKS) before the next statement: between two
    successive jobs it would be one more round trip to a server that has just answered.

    Do not call this inside ``transaction.atomic()``: any block open here counts as left open by other code.

    To a web server, CONN_MAX_AGE 0 means "one request"; a worker's thread keeps such a connection between jobs.
    """
    if after_idling:
        remember_connections()
    _tidy(opened_connections(), after_idling=after_idling)


def clean_after_job(*, wait: bool) -> bool:
    """Tidy this thread's connections, clean their sessions, and remove the job's changes to Django's side of them.

    Connections that the job left alone are checked every 50 ms at most. Without ``wait``, the server resets the
    sessions while the thread continues; True is returned if ``finish_cleaning_all`` must be called before the next job.
    """
    if not (found := opened_connections()):
        return False
    if time.monotonic() - _opened.looked_at < _LOOK_EVERY_S:
        found = tuple(each for each in found if not _was_left_alone(each))
    for connection in found:
        if connection.execute_wrappers or connection.force_debug_cursor:
            _drop_left_behind(connection)
    _tidy(found)
    _opened.cleaning += [connection for connection in found if clean(connection, wait=wait)]
    return bool(_opened.cleaning)


def _tidy(found: Iterable[BaseDatabaseWrapper], *, after_idling: bool = False) -> None:
    connection: Any
    for connection in found:
        connection.queries_log.clear()
        if connection.connection is None and not connection.in_atomic_block:
            _opened.connections.discard(connection)
            continue
        if connection.in_atomic_block or in_transaction(connection) or guards_of(connection):
            # Django keeps such a connection unusable until the block ends, which it never will: forget it. The same
            # holds for one with a tenant context that a generator left open, which would set its store again.
            connection.close()
            _forget(connection)
            continue
        if connection.settings_dict["CONN_MAX_AGE"] == 0:
            connection.close_at = None
        if _was_hung_up(connection):
            connection.close()
        close_if_read_only(connection)
        connection.close_if_unusable_or_obsolete()
        connection.health_check_done = not after_idling


def is_in_use(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a transaction, a context or a server-side cursor is open on a connection.

    The code that opened it needs the same connection, and so the same thread, again.
    """
    if connection.in_atomic_block or in_transaction(connection):
        return True
    if any(guard.holds for guard in guards_of(connection)):
        return True
    if connection.connection is None:
        return False
    guard = guard_of(connection.connection)
    changed = connection.autocommit is not connection.settings_dict["AUTOCOMMIT"]
    return changed or (guard is not None and guard.cursors.are_open)


def is_only_old(connection: BaseDatabaseWrapper) -> bool:
    """Return whether ``tidy_connections`` will close this connection only for its age: its server still keeps it."""
    close_at: float | None = connection.close_at
    if close_at is None or connection.settings_dict["CONN_MAX_AGE"] == 0 or connection.errors_occurred:
        return False
    return time.monotonic() >= close_at and not _was_hung_up(connection)


def opened_connections() -> tuple[BaseDatabaseWrapper, ...]:
    """Return the connections that this thread has opened or, after ``remember_connections``, all of its connections."""
    return tuple(_opened.connections)


def finish_cleaning_all() -> None:
    """Wait until the sessions of this thread are clean; discard a connection if its server refused."""
    while _opened.cleaning:
        finish_cleaning(_opened.cleaning.pop())


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


def _was_left_alone(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a job neither used this connection nor changed its state, in Django or psycopg."""
    raw: Any = connection.connection
    guard = guard_of(raw) if is_psycopg(connection) else None
    return not (
        guard is None
        or guard.used
        or guard.is_altered
        or connection.execute_wrappers
        or connection.force_debug_cursor
        or connection.in_atomic_block
        or connection.errors_occurred
        or raw.autocommit is not connection.autocommit
        or connection.autocommit is not connection.settings_dict["AUTOCOMMIT"]
        or in_transaction(connection)
    )


def _was_hung_up(connection: BaseDatabaseWrapper) -> bool:
    """Return, without a round trip, whether the server has ended an idle connection, by whether it wrote to it.

    (Rarely it wrote that a setting changed; then a new connection costs little.)
    """
    raw: Any = connection.connection
    if raw is None or connection.vendor != "postgresql" or raw.closed:
        return False
    poll = select.poll()
    poll.register(raw.fileno(), select.POLLIN)
    return bool(poll.poll(0))
