"""Check whether row-level security hides rows of a table from the user of a connection."""

from __future__ import annotations

from django.db.backends.base.base import BaseDatabaseWrapper

from salon_jobs.access.declared_objects import identifier
from salon_jobs.db.connections import plain_cursor
from salon_jobs.db.statements import load


def hidden_rows(connection: BaseDatabaseWrapper, *names: str) -> tuple[str, str] | None:
    """Return the table and the user if its policies may hide rows from that user in any store; otherwise None.

    ``names`` are the name of the table and its qualifiers, which come first. One statement, past the execution wrappers
    of the connection. Raises Django's errors.
    """
    with connection.wrap_database_errors:
        found: tuple[str, str] | None = (
            plain_cursor(connection).execute(load("hidden_table"), {"name": identifier(*names)}).fetchone()
        )
    return found
