"""How long migrations and the doctor wait for a table lock."""

from __future__ import annotations

from typing import Final

from django.db.backends.base.base import BaseDatabaseWrapper

# While a statement waits for an ACCESS EXCLUSIVE lock, every other query on the table waits behind it.
LOCK_TIMEOUT: Final = "2s"


def lock_timeout(connection: BaseDatabaseWrapper) -> tuple[list[str], list[str]]:
    """Return the statements to run before and after those that lock a table, in one transaction.

    A failure changes nothing. They fail with PostgreSQL's 55P03 after ``LOCK_TIMEOUT``. A session with its own
    ``lock_timeout`` keeps it.
    """
    if waits_by_its_own(connection):
        return [], []
    return [f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"], ["SET LOCAL lock_timeout = 0"]


def waits_by_its_own(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the session already has a ``lock_timeout``."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('lock_timeout')")
        return bool(cursor.fetchone() != ("0",))
