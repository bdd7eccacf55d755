"""Runs several of our own statements in one round trip."""

from __future__ import annotations

from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import OperationalError
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

_SUCCESS = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


def in_one_trip(connection: BaseDatabaseWrapper, statements: str) -> PGresult:
    """Run statements, separated by semicolons, and return the last one's result; the first that fails ends them.

    They hold their values as literals, and are handed to libpq as they are: neither psycopg's nor Django's cursors see
    them, nor begin a transaction for them. Database errors come as Django's.
    """
    raw: Any = connection.connection
    with connection.wrap_database_errors:
        return run_statements(raw, statements)


def run_statements(raw: Any, statements: str) -> PGresult:
    """Do the same on a psycopg connection; database errors come as psycopg's."""
    with raw.lock:
        if raw.closed:
            raise OperationalError("the connection is closed")
        return succeeded(raw, raw.pgconn.exec_(statements.encode()))


def succeeded(raw: Any, result: PGresult) -> PGresult:
    """Return a result, or raise the error it holds."""
    if result.status not in _SUCCESS:
        error = error_from_result(result, encoding=raw.info.encoding)
        if raw.closed and error.sqlstate is None:  # libpq's own words, which name no class
            raise OperationalError(str(error))
        raise error
    return result


def rows_in_one_trip(connection: BaseDatabaseWrapper, statement: str) -> list[Any]:
    """Run a statement as ``in_one_trip`` and return its many rows, converted as a cursor would.

    The answer is waited for and read without the GIL. A cursor takes it for every piece that arrives, each time after
    the switch interval (5 ms) where other threads are busy: of a claim of 1,000 jobs, as long as the server works.
    """
    result = in_one_trip(connection, statement)
    raw: Any = connection.connection
    transformer: Any = Transformer(raw)
    transformer.set_pgresult(result)
    rows: list[Any] = transformer.load_rows(0, result.ntuples, tuple)
    return rows
