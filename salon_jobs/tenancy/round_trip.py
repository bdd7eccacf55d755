"""Runs several of our own statements in one round trip."""

from __future__ import annotations

from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import OperationalError
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

_SUCCESS = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


def in_one_trip(connection: BaseDatabaseWrapper, statements: str) -> PGresult:
    """Run statements, separated by semicolons, and return the last one's result; the first that fails ends them.

    They hold their values as literals (of integers and uuids alone), and are handed to libpq as they are: neither
    psycopg's nor Django's cursors see them, nor begin a transaction for them. Database errors come as Django's.
    """
    raw: Any = connection.connection
    with connection.wrap_database_errors, raw.lock:
        if raw.closed:
            raise OperationalError("the connection is closed")
        result: PGresult = raw.pgconn.exec_(statements.encode())
        if result.status not in _SUCCESS:
            error = error_from_result(result, encoding=raw.info.encoding)
            if raw.closed and error.sqlstate is None:  # libpq's own words, which name no class
                raise OperationalError(str(error))
            raise error
        return result
