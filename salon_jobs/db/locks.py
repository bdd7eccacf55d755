"""Says how long migrations and the doctor wait for a table's lock."""

from __future__ import annotations

from typing import Final

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import sql

# Behind whoever waits for an ACCESS EXCLUSIVE lock every other query of that table waits too.
LOCK_TIMEOUT: Final = "2s"


def lock_timeout(connection: BaseDatabaseWrapper) -> tuple[list[sql.Composable], list[sql.Composable]]:
    """Return what goes before and after statements that lock a table, in one transaction; nothing changes on failure.

    They fail with PostgreSQL's 55P03 after ``LOCK_TIMEOUT``. A session with a ``lock_timeout`` of its own keeps that.
    """
    if waits_by_its_own(connection):
        return [], []
    before = sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(LOCK_TIMEOUT))
    return [before], [sql.SQL("SET LOCAL lock_timeout = 0")]


def waits_by_its_own(connection: BaseDatabaseWrapper) -> bool:
    """Tell whether the session has a ``lock_timeout`` already."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('lock_timeout')")
        return bool(cursor.fetchone() != ("0",))
