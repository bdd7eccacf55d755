"""Formats in which the server writes dates and intervals. psycopg reads only one of each."""

from __future__ import annotations

from typing import Any, Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg import Connection

from salon_jobs.db.connections import holds_job_tables
from salon_jobs.db.statements import in_one_trip

# Every server reports both settings when a client connects. ISO keeps the order in which dates are read.
_READABLE: Final = {b"DateStyle": b"ISO", b"IntervalStyle": b"postgres"}


def write_readably() -> None:
    """Make sessions in the database of the jobs write dates and intervals as psycopg reads them, whatever is stored.

    Otherwise ``migrate`` would fail where Django reads when migrations were applied. Costs a statement only where the
    server, the database or the role has other formats. Call it before any other receiver reads instants.
    """
    connection_created.connect(_write_readably, dispatch_uid="salon_jobs.formats")


def _write_readably(connection: BaseDatabaseWrapper, **_: object) -> None:
    raw: Any = connection.connection
    if not isinstance(raw, Connection):
        return
    wrong = [
        f"SET {name.decode()} = {wanted.decode()}"
        for name, wanted in _READABLE.items()
        # A pooler may not report both.
        if (found := raw.pgconn.parameter_status(name)) and found.split(b",")[0] != wanted
    ]
    if wrong and connection.alias in connections and holds_job_tables(connection.alias):
        in_one_trip(connection, "; ".join(wrong))
