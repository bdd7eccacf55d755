"""The SQL files in ``db/sql``, and how they are run on Django's connections."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import ClientCursor, OperationalError
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from salon_jobs.conf import settings as conf
from salon_jobs.db.connections import raw_cursor


@cache
def load(name: str) -> str:
    """Return the statement in ``<name>.sql`` without its header comment, cached for the process."""
    text = resources.files("salon_jobs.db").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip()


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


def rows_of(statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Run one of our statements and return its rows; database errors come as Django's."""
    connection = connections[conf.database]
    with connection.wrap_database_errors:
        cursor = raw_cursor(connection)
        cursor.execute(load(statement), parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def many_rows_of(statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Run as ``rows_of`` a statement that gives hundreds of rows, while other threads are busy."""
    connection = connections[conf.database]
    with connection.wrap_database_errors:
        cursor = raw_cursor(connection)
        if isinstance(cursor, ClientCursor) and cursor.connection.autocommit:
            return rows_in_one_trip(connection, cursor.mogrify(load(statement).encode(), parameters))
    return rows_of(statement, parameters)


def rows_changed(statement: str, parameters: dict[str, Any]) -> int:
    """Run one of our statements and return how many rows it changed; database errors come as Django's."""
    connection = connections[conf.database]
    with connection.wrap_database_errors:
        cursor = raw_cursor(connection)
        cursor.execute(load(statement), parameters)
        count: int = cursor.rowcount
        return count


def rows(statement: str, *, using: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """Return the rows of the statement in ``sql/<statement>.sql``. Raises database errors."""
    with connections[using].cursor() as cursor:
        cursor.execute(load(statement), parameters)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found
