"""Lets a whole migration wait for locks only briefly, Django's own operations in it too."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import Migration
from django.db.migrations.state import ProjectState

from salon_jobs.tenancy.brief_locks import waits_by_its_own

# Less than PostgreSQL's deadlock_timeout (1 s): where a migration that holds one table and a transaction that holds
# another wait for each other, it is the migration that gives up, before the server would end the transaction.
LOCKS_MS: Final = 900


class LocksBriefly(Migration):
    """Is a migration that waits for locks ``LOCKS_MS`` in all, forwards and backwards, and then fails with 55P03.

    Nothing has changed then, and ``migrate`` can be run again. Others wait for a table that it has locked already, so
    one budget is for all its statements, from the first on: give a long one a migration of its own. A session with a
    ``lock_timeout`` of its own keeps that. With ``atomic = False`` nothing is different: an index that is built
    concurrently may wait long, since nobody waits for it.
    """

    def apply(
        self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, collect_sql: bool = False
    ) -> ProjectState:
        """Apply it, or write it down for ``sqlmigrate``."""
        with _locks_briefly(schema_editor):
            return super().apply(project_state, schema_editor, collect_sql)

    def unapply(
        self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, collect_sql: bool = False
    ) -> ProjectState:
        """Take it back, or write that down for ``sqlmigrate``."""
        with _locks_briefly(schema_editor):
            return super().unapply(project_state, schema_editor, collect_sql)


@contextmanager
def _locks_briefly(schema_editor: BaseDatabaseSchemaEditor) -> Generator[None]:
    connection = schema_editor.connection
    if not schema_editor.atomic_migration or waits_by_its_own(connection):
        yield
        return
    # Until the transaction ends, so that it holds for the statements that Django puts off until then.
    schema_editor.execute(f"SET LOCAL lock_timeout = {LOCKS_MS}", params=None)
    if not schema_editor.collect_sql:
        with connection.execute_wrapper(_spend(LOCKS_MS / 1000)):
            yield
        return
    # Operations with a timeout of their own look what is set: they shall write down what they would do.
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {LOCKS_MS}")
        try:
            yield
        finally:
            cursor.execute("RESET lock_timeout")


def _spend(budget_s: float) -> Callable[..., Any]:
    """Return an execute wrapper that leaves each statement what those before it left."""
    end = time.monotonic() + budget_s

    def run(execute: Callable[..., Any], statement: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        left_ms = max(1, int((end - time.monotonic()) * 1000))  # 0 would be no limit
        with context["connection"].wrap_database_errors:
            context["cursor"].cursor.execute(f"SET LOCAL lock_timeout = {left_ms}")
        return execute(statement, params, many, context)

    return run
