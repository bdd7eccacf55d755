"""Unique rows of every table, each of one store where the table has stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from functools import cache, partial
from itertools import count
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
from psycopg import sql

from tests.support import seen
from tests.tenancy.matrix import MATRIX

NOW: Final = datetime(2026, 5, 6, tzinfo=UTC)


def number() -> int:
    return uuid4().int % (2**31 - 1)


_VALUES: Final[dict[str, Callable[[], Any]]] = {
    "uuid": uuid4,
    "text": lambda: f"canary-{uuid4().hex}",
    "smallint": partial(next, count(100)),  # too few values for random ones to differ
    "integer": number,
    "bigint": number,
    "numeric": lambda: 1,
    "double precision": lambda: 0.0,
    "boolean": lambda: False,
    "date": lambda: date.fromordinal(1 + number() % 3_000_000),
    "timestamp with time zone": lambda: NOW,
    "interval": lambda: timedelta(hours=1),
    "jsonb": lambda: "{}",
    "bigint[]": lambda: [0],
    "integer[]": lambda: [0],
}
# Values that constraints and other columns require.
_DEMANDED: Final = {
    ("parse_task", "status"): "PENDING",
    ("reservation", "status"): "confirmed",
    ("salon_jobs_blocked_aggregate", "status"): "parked",
    ("salon_jobs_inbox", "status"): "enqueued",
    ("salon_jobs_limit", "kind"): "queue",
    ("salon_jobs_message", "aggregate_type"): "rn::memory:::canaries",
    ("salon_jobs_message", "payload"): "{}",
}
# Tables that migrations fill, and the column that identifies a canary there.
_FILLED_BY_MIGRATIONS: Final = {
    "auth_permission": "codename",
    "django_content_type": "model",
    "django_migrations": "name",
}


@cache
def _columns(table: str) -> dict[str, tuple[str, int | None]]:
    """Return the type and length of the columns that need a value, and of the one with the store."""
    rows = seen(
        "SELECT attname::text, format_type(atttypid, NULL), nullif(atttypmod, -1) - 4 FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
        " AND (attnotnull AND NOT atthasdef AND attidentity = '' OR attname = %s) ORDER BY attnum",
        table,
        MATRIX[table].store,
    )
    return {name: (type_, length) for name, type_, length in rows}


def make(table: str, store: UUID) -> dict[str, Any]:
    """Return a new row's values by column; a table without stores ignores ``store``."""
    row: dict[str, Any] = {}
    for name, (type_, length) in _columns(table).items():
        is_text = type_ == "character varying"
        value = _DEMANDED.get((table, name)) or _VALUES["text" if is_text else type_]()
        row[name] = value[-length:] if is_text and length else value
    if (column := MATRIX[table].store) is not None:
        row[column] = store
    return row


def fill(connection: psycopg.Connection[Any], stores: list[UUID], tables: Iterable[str] = MATRIX) -> None:
    """Insert a row of each store into every table, as the superuser, without foreign keys and triggers."""
    with connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")
        for table in tables:
            for store in stores:
                statement, parameters = insert(table, make(table, store))
                # The store table has one row per store.
                connection.execute(statement + sql.SQL(" ON CONFLICT DO NOTHING"), parameters)


def clear(connection: psycopg.Connection[Any]) -> None:
    """Delete the rows of ``fill`` and of the tests, but not those of migrations."""
    with connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")
        for table in MATRIX:
            everything = sql.SQL("DELETE FROM {}").format(sql.Identifier(table))
            if table in _FILLED_BY_MIGRATIONS:
                column = sql.Identifier(_FILLED_BY_MIGRATIONS[table])
                everything += sql.SQL(" WHERE {} LIKE 'canary-%'").format(column)
            connection.execute(everything)


def insert(table: str, values: dict[str, Any]) -> tuple[sql.Composed, list[Any]]:
    statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, values)),
        sql.SQL(", ").join(sql.Placeholder() * len(values)),
    )
    return statement, list(values.values())
