"""Servers that accept no writes: standbys, demoted primaries, and those that are read-only by their settings.

Such a server answers ``SELECT 1``, so Django keeps a connection to it for ever. A long-running process refuses it when
it connects (``tenancy.connections.refuse_read_only_servers``); any other leaves it between two pieces of work.
"""

from __future__ import annotations

from typing import Final

from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.errors import ReadOnlySqlTransaction
from psycopg.pq.abc import PGconn

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
# A handler's own exceptions can be chained in a circle.
_LONGEST_CHAIN: Final = 20


def reports_read_only(server: PGconn) -> bool:
    """Return whether the server, as far as it told this client, accepts no writes. Costs no round trip.

    Only a hint: a pooler repeats what some server reported once.
    """
    return any(server.parameter_status(name) == b"on" for name in _REPORTED)


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
    """Return whether a write was refused as read-only, in this error or in what it followed from.

    Also the fault of code that begins READ ONLY transactions: ask the server (``refuses_writes``).
    """
    for _ in range(_LONGEST_CHAIN):
        if error is None:
            break
        if isinstance(error, (ServerReadOnly, ReadOnlySqlTransaction)):
            return True
        error = error.__cause__ or error.__context__
    return False
