"""Runs the statements of ``salon_jobs/sql`` by raw cursors on Django's connection; errors come as Django's."""

from __future__ import annotations

from typing import Any

from django.db import connections
from psycopg import ClientCursor

from salon_jobs import sql
from salon_jobs.conf import settings as conf
from salon_jobs.tenancy.block import raw_cursor
from salon_jobs.tenancy.round_trip import rows_in_one_trip


def rows_of(statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Run one of our statements and return its rows; database errors come as Django's."""
    connection = connections[conf.database]
    with connection.wrap_database_errors:
        cursor = raw_cursor(connection)
        cursor.execute(sql.load(statement), parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def many_rows_of(statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Run as ``rows_of`` a statement that gives hundreds of rows, while other threads are busy."""
    connection = connections[conf.database]
    with connection.wrap_database_errors:
        cursor = raw_cursor(connection)
        if isinstance(cursor, ClientCursor) and cursor.connection.autocommit:
            return rows_in_one_trip(connection, cursor.mogrify(sql.load(statement).encode(), parameters))
    return rows_of(statement, parameters)


def rows_changed(statement: str, parameters: dict[str, Any]) -> int:
    """Run one of our statements and return how many rows it changed; database errors come as Django's."""
    connection = connections[conf.database]
    with connection.wrap_database_errors:
        cursor = raw_cursor(connection)
        cursor.execute(sql.load(statement), parameters)
        count: int = cursor.rowcount
        return count
