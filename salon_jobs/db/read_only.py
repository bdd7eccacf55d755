"""Servers that accept no writes: standbys, demoted primaries, and those that are read-only by their settings.

Such a server answers ``SELECT 1``, so Django keeps a connection to it forever. A long-running process refuses it when
it connects (``refuse_read_only_servers``); any other leaves it between two pieces of work. Only the alias of the job
tables is meant to lead to the primary.
"""

from __future__ import annotations

import time
from typing import Any, Final

from django.db import Error, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg import Connection
from psycopg.errors import ReadOnlySqlTransaction
from psycopg.pq.abc import PGconn

from salon_jobs.db.connections import in_transaction, is_of_jobs
from salon_jobs.db.statements import in_one_trip


class ServerReadOnly(OperationalError):
    """The connection leads to a server that accepts no writes. Carries the remedy."""

    def __init__(self) -> None:
        super().__init__(
            "the server is read-only: it is a standby, or default_transaction_read_only is on; connect to the primary,"
            " where DATABASES names several hosts or an address that moves with 'target_session_attrs': 'read-write' in"
            " the OPTIONS"
        )


# PostgreSQL 14 and newer report both when a client connects, and then with the first answer after a change.
_REPORTED: Final = (b"in_hot_standby", b"default_transaction_read_only")
# A session that was made read-only by its client is no reason to leave the server.
_REFUSES_WRITES: Final = (
    "SELECT pg_catalog.pg_is_in_recovery() OR reset_val::boolean"
    " FROM pg_catalog.pg_settings WHERE name = 'default_transaction_read_only'"
)
# Attributes of psycopg connections: a pool gave it to another user before; its server accepts writes, despite its
# report.
_HANDED_OUT: Final = "salon_jobs_handed_out"
_ACCEPTS_WRITES: Final = "salon_jobs_accepts_writes"
_refuse = False
# A handler's own exceptions can be chained in a circle.
_LONGEST_CHAIN: Final = 20


def reports_read_only(server: PGconn) -> bool:
    """Return whether the server, as far as it told this client, accepts no writes. Costs no round trip.

    Only a hint: a pooler repeats an earlier report of some server.
    """
    first, second = _REPORTED
    return server.parameter_status(first) == b"on" or server.parameter_status(second) == b"on"


def refuses_writes(connection: BaseDatabaseWrapper) -> bool:
    """Ask the server of an idle connection whether it accepts no writes: a standby, or read-only by its settings.

    Connects if needed; one round trip. Raises database errors.
    """
    try:
        connection.ensure_connection()
    except ServerReadOnly:
        return True
    return in_one_trip(connection, _REFUSES_WRITES).get_value(0, 0) == b"t"


def failed_read_only(error: BaseException | None) -> bool:
    """Return whether a write was refused as read-only, in this error or in one of its causes.

    Also the fault of code that begins READ ONLY transactions: ask the server (``refuses_writes``).
    """
    for _ in range(_LONGEST_CHAIN):
        if error is None:
            break
        if isinstance(error, (ServerReadOnly, ReadOnlySqlTransaction)):
            return True
        error = error.__cause__ or error.__context__
    return False


def leave_read_only_servers() -> None:
    """Make this process leave such servers when a request ends, a health check fails, or a pool hands them out.

    With a healthy server, a request makes no further statement and runs no code of ours.
    """
    connection_created.connect(_examine, dispatch_uid="salon_jobs.read_only")


def refuse_read_only_servers() -> None:
    """Make this process refuse each new connection to a read-only server with ServerReadOnly, as it would an outage.

    Call it in processes that need the primary. Idempotent.
    """
    global _refuse  # noqa: PLW0603 - one a process
    _refuse = True


def _examine(connection: BaseDatabaseWrapper, **_: object) -> None:
    """Close a new connection, or one from a pool, if this process should not use its server."""
    raw: Any = connection.connection
    if not isinstance(raw, Connection) or not is_of_jobs(connection.alias):
        return
    # A web process may read from a standby; but a pool must not give it the same connection forever.
    if (_refuse or _HANDED_OUT in vars(raw)) and close_if_read_only(connection):
        if _refuse:
            raise ServerReadOnly
        connection.connect()
    elif connection.settings_dict["OPTIONS"].get("pool"):
        vars(raw)[_HANDED_OUT] = True
    elif connection.settings_dict["CONN_MAX_AGE"] != 0 and _is_read_only(connection):
        connection.close_at = time.monotonic()  # at the end of the request
    if "is_usable" not in vars(connection):
        # Django's health check, which it also makes after an error, is to fail on a server that accepts no writes.
        answers = connection.is_usable
        vars(connection)["is_usable"] = lambda: answers() and not _is_read_only(connection)


def close_if_read_only(connection: BaseDatabaseWrapper) -> bool:
    """Close an idle connection to a server that accepts no writes, so that the next may lead elsewhere; return whether.

    Otherwise a standby, or a primary that was demoted, would be kept forever. The server is asked if it reported to be
    read-only, or after an error, in place of Django's health check; so a connection without either costs no round trip.
    """
    if not _is_read_only(connection):
        return False
    connection.connection.close()
    connection.close()
    return True


def _is_read_only(connection: BaseDatabaseWrapper) -> bool:
    raw: Any = connection.connection
    if not isinstance(raw, Connection) or raw.closed or not is_of_jobs(connection.alias):
        return False
    if not connection.errors_occurred and (_ACCEPTS_WRITES in vars(raw) or not reports_read_only(raw.pgconn)):
        return False
    if in_transaction(connection):
        return False
    try:
        if refuses_writes(connection):
            return True
    except Error:
        return True  # it is useless, too
    vars(raw)[_ACCEPTS_WRITES] = True
    connection.errors_occurred = False
    return False
