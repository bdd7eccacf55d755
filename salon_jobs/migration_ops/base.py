"""Declares what all operations share: they ask the routers, and wait for a table's lock only briefly."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from typing import ClassVar

from django.db import router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from psycopg import sql

from salon_jobs.tenancy.brief_locks import brief_locks


class DatabaseOperation(Operation):
    """Changes the database alone, where the routers allow it; Django's model state stays as it is.

    An operation that locks tables ACCESS EXCLUSIVE waits for them as ``brief_locks`` says: when it fails nothing has
    changed, and ``migrate`` can be run again.
    """

    # Several statements that belong together, some of them for this transaction alone (SET LOCAL): in a migration with
    # ``atomic = False`` each operation gets a transaction of its own.
    atomic = True
    reversible = True
    reduces_to_sql = True
    locks_tables: ClassVar[bool] = False

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Change no state."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Apply it, where the routers allow it."""
        if self.allowed(schema_editor.connection.alias, app_label, to_state):
            with self._brief_locks(schema_editor):
                self.apply(app_label, schema_editor, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Take it back, where the routers allow it."""
        if self.allowed(schema_editor.connection.alias, app_label, from_state):
            with self._brief_locks(schema_editor):
                self.unapply(app_label, schema_editor, from_state)

    def allowed(self, alias: str, app_label: str, state: ProjectState) -> bool:
        """Ask the routers, as RunSQL does."""
        return router.allow_migrate(alias, app_label)

    @abstractmethod
    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Change the database; ``state`` is the one that holds the models."""

    @abstractmethod
    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Undo ``apply``; ``state`` is the one that holds the models."""

    @contextmanager
    def _brief_locks(self, schema_editor: BaseDatabaseSchemaEditor) -> Generator[None]:
        before, after = brief_locks(schema_editor.connection) if self.locks_tables else ([], [])
        execute(schema_editor, *before)
        yield
        # Not in a finally: after an error the transaction takes no statement, and its end resets it anyway.
        execute(schema_editor, *after)


def execute(schema_editor: BaseDatabaseSchemaEditor, *composed: sql.Composable) -> None:
    """Run composed statements, or write them down for ``sqlmigrate``."""
    for statement in composed:
        schema_editor.execute(statement.as_string(), params=None)


def schema_of(schema_editor: BaseDatabaseSchemaEditor, table: str) -> str:
    """Return the schema that holds a table as the search path finds it; the first of that path in ``sqlmigrate``."""
    query = (
        "SELECT coalesce((SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.oid = to_regclass(quote_ident(%s))), current_schema())"
    )
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(query, [table])
        schema: str = cursor.fetchone()[0]
    return schema
