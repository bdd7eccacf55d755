"""Clean-up of Django connections between two pieces of work: jobs, requests, rounds of a loop.

A connection that broke or was left in a transaction is closed; the session of any other is reset to the state in which
Django connected it. Otherwise the next job would get it with whatever SET, SET ROLE, LISTEN, a session advisory lock, a
temporary table or a cursor WITH HOLD left on it. The server does not report these, and a function can cause them behind
a plain SELECT, so every session that was used is reset. DISCARD ALL would also remove what Django and the project set
on connecting, cannot be sent along with COMMIT, and does not spare psycopg's own prepared statements.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from itertools import chain
from typing import Any, Final, cast
from weakref import WeakKeyDictionary, ref

from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg import Connection, sql
from psycopg.pq import TransactionStatus

from salon_jobs.core import events
from salon_jobs.core.errors import ConfigurationError, TenantContextError
from salon_jobs.core.events import log_event
from salon_jobs.db.connections import in_transaction
from salon_jobs.db.internals import (
    CHANGES_NOTHING,
    ENDS_TRANSACTION,
    OF_SERVER_CURSOR,
    connect_first,
    watch,
    watcher_of,
)
from salon_jobs.db.libpq import converted, exchange, last_answer, send
from salon_jobs.db.read_only import close_if_read_only
from salon_jobs.db.server_cursors import ServerCursors
from salon_jobs.db.statements import in_one_trip
from salon_jobs.tenancy.active import ActiveContext, open_store, session_context

# The session's advisory locks, each as the call that releases it.
_LOCKS: Final = """
    SELECT pg_catalog.format('SELECT pg_catalog.pg_advisory_unlock%s(%s)',
           CASE mode WHEN 'ShareLock' THEN '_shared' ELSE '' END,
           CASE objsubid WHEN 1 THEN (classid::bigint << 32 | objid::bigint)::text
           ELSE pg_catalog.format('%s, %s', classid::int, objid::int) END) AS release
      FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND pid = pg_catalog.pg_backend_pid()
"""
# What was set since the server accepted the connection: the kind, or the name of a setting, and the statement that sets
# it again; for a prepared statement its name, and for a lock the call that releases it. Settings with a custom name are
# missing, which the server does not list. Behind a pooler, the process that answers is not the one given to the
# connection: only the settings that a pooler carries over from one server connection to the next are ours.
AS_CONNECTED: Final = f"""
    SELECT 'role', CASE
           WHEN pg_catalog.pg_backend_pid() <> {{pid}} THEN 'RESET SESSION AUTHORIZATION; SET ROLE NONE'
           ELSE pg_catalog.format('SET SESSION AUTHORIZATION %I; SET ROLE ', session_user) || CASE
           WHEN pg_catalog.current_setting('role') = 'none' THEN 'NONE'
           ELSE pg_catalog.quote_ident(pg_catalog.current_setting('role')) END END
    UNION ALL
    SELECT name, pg_catalog.format('SELECT pg_catalog.set_config(%L, %L, false)', name, setting)
      FROM pg_catalog.pg_settings
     WHERE source = 'session'
       AND (pg_catalog.pg_backend_pid() = {{pid}} OR name IN (
           'TimeZone', 'DateStyle', 'IntervalStyle', 'client_encoding', 'standard_conforming_strings',
           'application_name'))
       AND name NOT IN ('role', 'transaction_isolation', 'transaction_read_only', 'transaction_deferrable')
    UNION ALL
    SELECT 'LISTEN', pg_catalog.format('LISTEN %I', channel) FROM pg_catalog.pg_listening_channels() channel
     WHERE pg_catalog.pg_backend_pid() = {{pid}}
    UNION ALL
    SELECT 'PREPARE', name FROM pg_catalog.pg_prepared_statements
     WHERE pg_catalog.pg_backend_pid() = {{pid}} AND pg_catalog.left(name, 5) <> '_pg3_'
    UNION ALL
    SELECT 'lock', release FROM ({_LOCKS}) held WHERE pg_catalog.pg_backend_pid() = {{pid}}
"""  # noqa: S608 - constants
# Settings that decide whether the statements that end a job find their tables and may change them.
_DECISIVE: Final = ("search_path", "row_security")
_DEALLOCATE: Final = (
    "DO $reset$ DECLARE prepared text; BEGIN FOR prepared IN SELECT name FROM pg_catalog.pg_prepared_statements "
    "WHERE pg_catalog.left(name, 5) <> '_pg3_' AND name <> ALL ({kept}) "
    "LOOP EXECUTE pg_catalog.format('DEALLOCATE %I', prepared); END LOOP; END $reset$"
)
# Each as often as it was taken.
_RELEASE: Final = (
    f"DO $reset$ DECLARE statement text; BEGIN LOOP SELECT release INTO statement FROM ({_LOCKS}) held "  # noqa: S608
    "WHERE release <> ALL ({kept}) LIMIT 1; EXIT WHEN NOT FOUND; EXECUTE statement; END LOOP; END $reset$"
)
_CLIENT_CHANGED: Final = "attributes of the psycopg connection were changed"
_keep_all = False
# How often a connection that jobs leave alone is checked: each check is a system call, which costs more than a small
# job and releases the interpreter's lock. A connection that its server has ended can fail one job that begins then.
_LOOK_EVERY_S: Final = 0.05
# A thread that was idle for longer tidies its connections before the next job; a busy one did so after the last.
TIDY_AFTER_S: Final = 0.05


class WatchedSession:
    """Session of one psycopg connection: the statements that reset it, and whether it has been used.

    Replaces the connection's ``wait``, through which psycopg makes every statement, including Django's. ``used`` is
    True once a statement ran since the last reset; our own statements that bypass psycopg do not count. ``cursors`` are
    the server-side cursors, which none of these may close once the session is another's.
    """

    __slots__ = ("_client_state", "_raw", "_wait", "before_end", "cursors", "reset", "used")

    def __init__(self, raw: Connection[Any], as_connected: Iterable[tuple[str, str]]) -> None:
        self._raw = ref(raw)
        self._wait = type(raw).wait
        self._client_state = _client_state(raw)
        self.used = False
        self.cursors = ServerCursors(raw)
        again: defaultdict[str, list[str]] = defaultdict(list)
        for kind, text in as_connected:
            again[kind].append(text)
        [set_role] = again.pop("role")
        channels, prepared, locks = (again.pop(kind, []) for kind in ("LISTEN", "PREPARE", "lock"))
        # Before the statement that ends a job, in its transaction.
        decisive = (again[name][0] if name in again else f"RESET {name}" for name in _DECISIVE)
        self.before_end = "; ".join((set_role, *decisive))
        deallocates_all = raw.prepare_threshold is None and not prepared
        # Afterwards. The transaction names its modes, since a default that is still set could make it wait.
        self.reset = "; ".join(
            (
                "BEGIN ISOLATION LEVEL READ COMMITTED NOT DEFERRABLE",
                "CLOSE ALL",
                set_role,
                "RESET ALL",
                *chain.from_iterable(again.values()),
                "DEALLOCATE ALL" if deallocates_all else _all_but(raw, prepared, _DEALLOCATE),
                "UNLISTEN *",
                *channels,
                _all_but(raw, locks, _RELEASE) if locks else "SELECT pg_catalog.pg_advisory_unlock_all()",
                "DISCARD TEMP",
                "DISCARD SEQUENCES",
                "COMMIT",
            )
        )

    def __call__(self, steps: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait as the connection does, and record that it was used."""
        name = steps.__name__
        if name not in CHANGES_NOTHING:  # any other counts as a use
            self.used = True
            if name in OF_SERVER_CURSOR:
                self.cursors.follow(steps)
        elif name in ENDS_TRANSACTION:
            self.cursors.end_with_transaction()
        raw: Any = self._raw()
        if raw is None:  # collected, together with a cursor that closes itself
            steps.close()
            return None
        return self._wait(raw, steps, *args, **kwargs)

    @property
    def client_changed(self) -> bool:
        """Whether attributes of the psycopg connection were changed, which no statement resets."""
        raw = self._raw()
        return raw is not None and _client_state(raw) != self._client_state


def _client_state(raw: Connection[Any]) -> tuple[object, ...]:
    modes = raw.isolation_level, raw.read_only, raw.deferrable
    return *modes, raw.row_factory, raw.cursor_factory, raw.prepare_threshold


def _all_but(raw: Connection[Any], kept: list[str], statement: str) -> str:
    return statement.replace("{kept}", f"{sql.Literal(kept).as_string(raw)}::text[]")


def watch_sessions(*, keep_all: bool = False) -> None:
    """Watch connections that Django opens or takes from a pool from now on and that outlive a job or request.

    Call this again when the process starts its work: what other receivers of ``connection_created`` set belongs to a
    new connection, and only the last receiver sees all of it. ``keep_all``: this process keeps every connection.
    """
    global _keep_all  # noqa: PLW0603 - one a process
    _keep_all = _keep_all or keep_all
    connection_created.disconnect(dispatch_uid="salon_jobs.session_reset")
    connection_created.connect(_watch, dispatch_uid="salon_jobs.session_reset")
    if keep_all:
        connect_first(connection_created, _see_wrappers, "salon_jobs.wrappers")


def watched(raw: Any) -> WatchedSession | None:
    """Return the watcher of a psycopg connection's session, or None."""
    session = watcher_of(raw)
    return session if isinstance(session, WatchedSession) else None


def _is_psycopg(raw: object) -> bool:
    return isinstance(raw, Connection)


def _outlives(connection: BaseDatabaseWrapper) -> bool:
    settings = connection.settings_dict
    return _keep_all or settings["CONN_MAX_AGE"] != 0 or bool(settings["OPTIONS"].get("pool"))


def _see_wrappers(connection: BaseDatabaseWrapper, **_: object) -> None:
    _opened.before_receivers = tuple(connection.execute_wrappers)


def _watch(connection: BaseDatabaseWrapper, **_: object) -> None:
    before, _opened.before_receivers = _opened.before_receivers, None
    if before is not None and len(connection.execute_wrappers) != len(before):
        keep_wrappers(connection, [each for each in connection.execute_wrappers if each not in before])
    raw: Any = connection.connection
    if not _is_psycopg(raw) or not _outlives(connection):
        return
    session = watched(raw)
    if session is None:
        as_connected = converted(raw, in_one_trip(connection, AS_CONNECTED.format(pid=raw.info.backend_pid)))
        watch(raw, WatchedSession(raw, as_connected))
    elif session.used and session_context(connection) is None:
        # It comes from a pool that does not reset. (A session that has just got a store comes from a pool that does.)
        reset(connection)


def reset(connection: BaseDatabaseWrapper, *, wait: bool = True) -> bool:
    """Reset the session of an idle connection in one round trip, or discard the connection if that fails.

    ``wait`` False only sends the reset; True is returned if ``finish_reset`` must be called before the next use.
    """
    raw: Any = connection.connection
    if not _is_psycopg(raw):
        return False
    session = watched(raw)
    # Between transactions Django and psycopg agree, unless it was set behind Django's back.
    changed = raw.autocommit is not connection.autocommit or (session is not None and session.client_changed)
    if session is not None and not session.used and not changed:
        return False
    try:
        if session is None:
            raise TenantContextError("it is not known how its session was connected")
        if changed:
            raise TenantContextError(_CLIENT_CHANGED)
        session.cursors.end_all()
        if wait:
            in_one_trip(connection, session.reset)
            session.used = False
        else:
            with connection.wrap_database_errors:
                send(raw, session.reset)
    except (DatabaseError, TenantContextError) as error:
        discard(connection, error)
        return False
    return not wait


def finish_reset(connection: BaseDatabaseWrapper) -> None:
    """Wait for the answer to a ``reset`` that was only sent; discard the connection if the server refused."""
    raw: Any = connection.connection
    session = watched(raw)
    if session is None or raw.info.transaction_status != TransactionStatus.ACTIVE:
        return  # closed in the meantime
    try:
        with connection.wrap_database_errors:
            last_answer(raw)
        session.used = False
    except DatabaseError as error:
        discard(connection, error)


def reset_raw(raw: Connection[Any]) -> bool:
    """Reset the session of a psycopg connection returned to its pool.

    Returns False, having done nothing, if it is not watched. Raises whatever prevents the reset.
    """
    session = watched(raw)
    if session is None:
        return False
    if session.client_changed:
        raise TenantContextError(_CLIENT_CHANGED)
    session.cursors.end_all()
    exchange(raw, raw.pgconn.exec_, session.reset.encode())
    session.used = False
    return True


def reset_after_request(connection: BaseDatabaseWrapper) -> None:
    """Reset a connection that outlives the request, unless other work continues on it.

    Discard it if the request left a transaction open that it began behind Django's back: the next request would be in
    it.
    """
    if (
        not _is_psycopg(connection.connection)
        or not _outlives(connection)
        or connection.in_atomic_block
        or open_store(connection) is not None
    ):
        return
    if not in_transaction(connection):
        reset(connection)
    elif connection.autocommit:
        discard(connection, "a request left a transaction open")


def discard(connection: BaseDatabaseWrapper, why: object) -> None:
    """Close a connection for good: a pool gets it back closed, and replaces it."""
    log_event(logging.WARNING, events.CONNECTION_DISCARDED, database=connection.alias, reason=str(why).strip())
    raw: Any = connection.connection
    if raw is not None:
        raw.close()
    connection.close()


# For a pool without a size: it opens no connection that no thread asks for.
_NO_SIZE: Final = {"min_size": 0, "max_size": 10_000}


class _Opened(threading.local):
    """Connections opened by this thread. Asking Django for all of them takes longer than a small job."""

    @cached_property
    def connections(self) -> set[BaseDatabaseWrapper]:
        return set(connections.all(initialized_only=True))

    @cached_property
    def resetting(self) -> list[BaseDatabaseWrapper]:
        return []

    # The wrappers of statements that belong to a connection, not to a job; none for most.
    @cached_property
    def wrappers(self) -> WeakKeyDictionary[BaseDatabaseWrapper, list[Any]]:
        return WeakKeyDictionary()

    # Those of a connection that is being announced, before the receivers add theirs.
    before_receivers: tuple[Any, ...] | None = None
    # When it was last seen whether their servers have ended them.
    looked_at = float("-inf")


_opened = _Opened()


def _remember(connection: BaseDatabaseWrapper, **_: object) -> None:
    # A connection that a handler creates itself is its own to close, and must not be kept alive here.
    if connection.alias in connections and connections[connection.alias] is connection:
        _opened.connections.add(connection)


connection_created.connect(_remember, dispatch_uid="salon_jobs.connections")


def remember_connections() -> None:
    """Have ``tidy_connections`` check every connection of this thread: something failed, perhaps while connecting.

    Django announces a connection once its session is set up. If the server ends it before that, it stays with Django,
    closed and unannounced, and every later statement would fail on it.
    """
    _opened.connections.update(connections.all(initialized_only=True))


def keep_wrappers(connection: BaseDatabaseWrapper, wrappers: Iterable[Any]) -> None:
    """Have ``tidy_connections(after_job=True)`` leave these wrappers of statements on this connection."""
    kept = _opened.wrappers.setdefault(connection, [])
    kept += [each for each in wrappers if each not in kept]


def _drop_left_behind(connection: BaseDatabaseWrapper) -> None:
    """Remove what a job did to Django's side of a connection: wrappers of statements, and a log of all queries."""
    connection.force_debug_cursor = False
    kept = _opened.wrappers.get(connection, ())
    # A tenant context left open is for the caller.
    connection.execute_wrappers[:] = [
        each for each in connection.execute_wrappers if each in kept or isinstance(each, ActiveContext)
    ]


def tidy_connections(*, after_idling: bool = False, after_job: bool = False) -> bool:
    """Close this thread's connections that broke, were left in a transaction, or outlived CONN_MAX_AGE.

    Returns whether it checked any. With ``after_job``, those that the job left alone are checked every 50 ms at most.

    ``after_idling`` also requests Django's health check (CONN_HEALTH_CHECKS) before the next statement: between two
    successive jobs it would be one more round trip to a server that has just answered. ``after_job`` also removes what
    the job did to Django's connections, which the next one would meet.

    Do not call this inside ``transaction.atomic()``: any block open here counts as left open by other code.

    To a web server, CONN_MAX_AGE 0 means "one request"; a worker's thread keeps such a connection between jobs.
    """
    connection: Any
    if after_idling:
        remember_connections()
    if not (found := opened_connections()):
        return False
    now = time.monotonic()
    if after_job and now - _opened.looked_at < _LOOK_EVERY_S:
        found = tuple(each for each in found if not _was_left_alone(each))
    else:
        _opened.looked_at = now
    for connection in found:
        if after_job and (connection.execute_wrappers or connection.force_debug_cursor):
            _drop_left_behind(connection)
        connection.queries_log.clear()
        if connection.connection is None and not connection.in_atomic_block:
            _opened.connections.discard(connection)
            continue
        if connection.in_atomic_block or in_transaction(connection) or open_store(connection) is not None:
            # Django keeps such a connection unusable until the block ends, which it never will: forget it. So it is
            # with one whose tenant context a generator left open, which would set its store again.
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
    return bool(found)


def is_in_use(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a connection is in the middle of something: a transaction, a context that holds it, or a
    server-side cursor. Whoever began that needs the same connection, and so the same thread, again.
    """
    if connection.in_atomic_block or in_transaction(connection):
        return True
    if any(isinstance(wrapper, ActiveContext) and wrapper.holds for wrapper in connection.execute_wrappers):
        return True
    if connection.connection is None:
        return False
    session = watched(connection.connection)
    changed = connection.autocommit is not connection.settings_dict["AUTOCOMMIT"]
    return changed or (session is not None and session.cursors.are_open)


def is_only_old(connection: BaseDatabaseWrapper) -> bool:
    """Return whether ``tidy_connections`` will close this connection for its age alone: its server still keeps it."""
    close_at: float | None = connection.close_at
    if close_at is None or connection.settings_dict["CONN_MAX_AGE"] == 0 or connection.errors_occurred:
        return False
    return time.monotonic() >= close_at and not _was_hung_up(connection)


def opened_connections() -> tuple[BaseDatabaseWrapper, ...]:
    """Return the connections that this thread has opened, and after ``remember_connections`` all that it has."""
    return tuple(_opened.connections)


def reset_sessions(*, wait: bool = False) -> None:
    """Reset the sessions that this thread's last job used; without ``wait``, call ``finish_resets`` before the next.

    Then the job does not wait for it: the server resets while the thread continues.
    """
    for connection in opened_connections():
        if reset(connection, wait=wait):
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


def give_pools_room() -> None:
    """Have Django's pools whose size is not given, of all aliases, give each thread its own permanent connection.

    psycopg's own default is four. Call this in a process of ours before it connects.
    """
    for alias in connections:
        options: dict[str, Any] = connections.settings[alias].get("OPTIONS") or {}
        if (pool := options.get("pool")) and size_of_pool(pool) is None:
            options["pool"] = {**({} if pool is True else pool), **_NO_SIZE}


def size_of_pool(pool: Any) -> int | None:
    """Return how many connections Django's ``OPTIONS["pool"]`` gives at most; None if it has no pool, or no size."""
    if not isinstance(pool, dict):
        return None
    sizes = cast("dict[str, int | None]", pool)
    return sizes.get("max_size") or sizes.get("min_size")


def refuse_small_pool(threads: int, *, using: str) -> None:
    """Raise ConfigurationError when Django's pool cannot give each of our threads its own permanent connection.

    If heartbeats waited for jobs to return a connection, a living process would be declared dead.
    """
    size = size_of_pool(connections[using].settings_dict["OPTIONS"].get("pool"))
    if size is not None and size < threads:
        raise ConfigurationError(f"{small_pool(using, size, threads)}: {SMALL_POOL_REMEDY.format(threads=threads)}")


def small_pool(using: str, size: int, threads: int) -> str:
    """Return in words that a pool is too small for a process of a worker."""
    return (
        f"DATABASES[{using!r}]['OPTIONS']['pool'] gives at most {size} connections, and a process of a worker keeps "
        f"{threads}"
    )


SMALL_POOL_REMEDY: Final = (
    "remove min_size and max_size, so that each process takes what it needs; or set max_size to {threads} or more, or "
    "lower the concurrency"
)


def _was_left_alone(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a job neither used this connection nor changed its state, in Django or psycopg."""
    raw: Any = connection.connection
    session = watched(raw) if _is_psycopg(raw) else None
    return not (
        session is None
        or session.used
        or session.client_changed
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
