"""Sessions that outlive a piece of work: whether it used them, and their reset to their state after connecting.

Otherwise the next job would get the session with any SET, SET ROLE, LISTEN, session advisory lock, temporary table or
cursor WITH HOLD left on it. The server does not report these, and a function can cause them behind a plain SELECT, so
every session that was used is reset. DISCARD ALL would also remove the settings that Django and the project make on
connecting, cannot be sent along with COMMIT, and does not spare psycopg's own prepared statements.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final
from weakref import ref

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import Connection, sql
from psycopg.pq import TransactionStatus

from salon_jobs.core import events
from salon_jobs.core.errors import TenantContextError
from salon_jobs.core.events import log_event
from salon_jobs.db.internals import CHANGES_NOTHING, ENDS_TRANSACTION, OF_SERVER_CURSOR, watch, watcher_of
from salon_jobs.db.libpq import converted, exchange, last_answer, send
from salon_jobs.db.server_cursors import ServerCursors
from salon_jobs.db.statements import in_one_trip

# The session's advisory locks, each as the call that releases it.
_LOCKS: Final = """
    SELECT pg_catalog.format('SELECT pg_catalog.pg_advisory_unlock%s(%s)',
           CASE mode WHEN 'ShareLock' THEN '_shared' ELSE '' END,
           CASE objsubid WHEN 1 THEN (classid::bigint << 32 | objid::bigint)::text
           ELSE pg_catalog.format('%s, %s', classid::int, objid::int) END) AS release
      FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND pid = pg_catalog.pg_backend_pid()
"""
# Settings made since the server accepted the connection: the kind, or the name of a setting, and the statement that
# sets it again; for a prepared statement its name, and for a lock the call that releases it. Settings with a custom
# name are missing, which the server does not list. Behind a pooler, the process that answers is not the one given to
# the connection: only the settings that a pooler carries over from one server connection to the next are ours.
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
_ALTERED: Final = "attributes of the psycopg connection were changed"


class SessionGuard:
    """Session of one psycopg connection: the statements that reset it, and whether it has been used.

    Replaces the connection's ``wait``, through which psycopg makes every statement, including Django's. ``used`` is
    True once a statement ran since the last reset; our own statements that bypass psycopg do not count. ``cursors`` are
    the server-side cursors, which must not be closed once the session has another user.
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

    def clean(self, *, wait: bool = True) -> None:
        """Reset the session in one round trip, between transactions; without ``wait`` only send that.

        Raises psycopg's errors; TenantContextError if no statement can reset it, which is not an outage.
        """
        if self.is_altered:
            raise TenantContextError(_ALTERED)
        raw: Any = self._raw()
        self.cursors.end_all()
        if wait:
            exchange(raw, raw.pgconn.exec_, self.reset.encode())
            self.used = False
        else:
            send(raw, self.reset)

    def commit(self, connection: BaseDatabaseWrapper, statement: str, *, cleans: bool) -> None:
        """Run the last statement of a transaction and COMMIT in one round trip; with ``cleans``, the reset too.

        A session that was not used, or that no statement can reset, is left as it is. Raises Django's errors.
        """
        self.cursors.end_with_transaction()
        if not (cleans and self.used) or self.is_altered:
            in_one_trip(connection, f"{statement}; COMMIT")
            return
        self.cursors.end_all()
        in_one_trip(connection, f"{self.before_end}; {statement}; COMMIT; {self.reset}")
        self.used = False

    @property
    def is_altered(self) -> bool:
        """Whether attributes of the psycopg connection were changed, which no statement resets."""
        raw = self._raw()
        return raw is not None and _client_state(raw) != self._client_state


def _client_state(raw: Connection[Any]) -> tuple[object, ...]:
    modes = raw.isolation_level, raw.read_only, raw.deferrable
    return *modes, raw.row_factory, raw.cursor_factory, raw.prepare_threshold


def _all_but(raw: Connection[Any], kept: list[str], statement: str) -> str:
    return statement.replace("{kept}", f"{sql.Literal(kept).as_string(raw)}::text[]")


def is_psycopg(connection: BaseDatabaseWrapper) -> bool:
    """Return whether there is an open connection, and psycopg made it."""
    return isinstance(connection.connection, Connection)


def guard_session(connection: BaseDatabaseWrapper) -> None:
    """Guard the session of a new connection; resets restore its present state."""
    raw: Any = connection.connection
    as_connected = converted(raw, in_one_trip(connection, AS_CONNECTED.format(pid=raw.info.backend_pid)))
    watch(raw, SessionGuard(raw, as_connected))


def guard_of(raw: object) -> SessionGuard | None:
    """Return the guard of a psycopg connection's session, or None."""
    guard = watcher_of(raw)
    return guard if isinstance(guard, SessionGuard) else None


def clean(connection: BaseDatabaseWrapper, *, wait: bool = True) -> bool:
    """Clean the session of an idle connection if it was used; discard the connection if that fails, or it has no guard.

    ``wait`` False only sends the reset; True is returned if ``finish_cleaning`` must be called before the next use.
    """
    raw: Any = connection.connection
    if not is_psycopg(connection):
        return False
    guard = guard_of(raw)
    # Between transactions Django and psycopg agree, unless code bypassed Django.
    is_switched = raw.autocommit is not connection.autocommit
    if guard is not None and not (guard.used or is_switched or guard.is_altered):
        return False
    with _discarding(connection):
        if guard is None:
            raise TenantContextError("it is not known how its session was connected")
        if is_switched:
            raise TenantContextError(_ALTERED)
        guard.clean(wait=wait)
        return not wait
    return False


def finish_cleaning(connection: BaseDatabaseWrapper) -> None:
    """Wait for the answer to a ``clean`` that was only sent; discard the connection if the server refused."""
    raw: Any = connection.connection
    guard = guard_of(raw)
    if guard is None or raw.info.transaction_status != TransactionStatus.ACTIVE:
        return  # closed in the meantime
    with _discarding(connection):
        last_answer(raw)
        guard.used = False


@contextmanager
def _discarding(connection: BaseDatabaseWrapper) -> Generator[None]:
    try:
        with connection.wrap_database_errors:
            yield
    except (DatabaseError, TenantContextError) as error:
        discard(connection, error)


def discard(connection: BaseDatabaseWrapper, why: object) -> None:
    """Close a connection for good: a pool gets it back closed, and replaces it."""
    log_event(logging.WARNING, events.CONNECTION_DISCARDED, database=connection.alias, reason=str(why).strip())
    raw: Any = connection.connection
    if raw is not None:
        raw.close()
    connection.close()
