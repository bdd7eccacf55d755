"""Runs one statement of an overview."""

from __future__ import annotations

from typing import Any

from django.db import connections

from salon_jobs import sql


def rows(statement: str, *, using: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """Return the rows of the statement in ``sql/<statement>.sql``. Raises database errors."""
    with connections[using].cursor() as cursor:
        cursor.execute(sql.load(statement), parameters)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found
