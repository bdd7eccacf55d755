"""Common parts of all migration operations: database routers, short locks, storage parameters."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from django.db import router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import Migration
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from psycopg import sql

from salon_jobs.db.locks import lock_timeout, waits_by_its_own


class DatabaseOperation(Operation):
    """Operation that changes only the database, where the routers allow it; Django's model state is unchanged.

    An operation that locks tables ACCESS EXCLUSIVE waits for them as long as ``lock_timeout``: if it fails, nothing has
    changed, and ``migrate`` can be run again.
    """

    # Several statements that belong together, some of them for this transaction only (SET LOCAL): in a migration with
    # ``atomic = False`` each operation gets its own transaction.
    atomic = True
    reversible = True
    reduces_to_sql = True
    locks_tables: ClassVar[bool] = False

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Leave the state unchanged."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Apply the operation, where the routers allow it."""
        if self.allowed(schema_editor.connection.alias, app_label, to_state):
            with self._brief_locks(schema_editor):
                self.apply(app_label, schema_editor, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Reverse the operation, where the routers allow it."""
        if self.allowed(schema_editor.connection.alias, app_label, from_state):
            with self._brief_locks(schema_editor):
                self.unapply(app_label, schema_editor, from_state)

    def allowed(self, alias: str, app_label: str, state: ProjectState) -> bool:
        """Ask the routers, as RunSQL does."""
        return router.allow_migrate(alias, app_label)

    @abstractmethod
    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Change the database; ``state`` contains the models."""

    @abstractmethod
    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Undo ``apply``; ``state`` contains the models."""

    @contextmanager
    def _brief_locks(self, schema_editor: BaseDatabaseSchemaEditor) -> Generator[None]:
        before, after = lock_timeout(schema_editor.connection) if self.locks_tables else ([], [])
        execute(schema_editor, *before)
        yield
        # Not in a finally: after an error the transaction accepts no statements, and its end resets it anyway.
        execute(schema_editor, *after)


def execute(schema_editor: BaseDatabaseSchemaEditor, *composed: sql.Composable) -> None:
    """Run composed statements, or collect them for ``sqlmigrate``."""
    for statement in composed:
        schema_editor.execute(statement.as_string(), params=None)


def schema_of(schema_editor: BaseDatabaseSchemaEditor, table: str) -> str:
    """Return the schema in which the search path finds a table; the first of that path in ``sqlmigrate``."""
    query = (
        "SELECT coalesce((SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.oid = to_regclass(quote_ident(%s))), current_schema())"
    )
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(query, [table])
        schema: str = cursor.fetchone()[0]
    return schema


# Less than PostgreSQL's deadlock_timeout (1 s): if a migration that holds one table and a transaction that holds
# another wait for each other, the migration gives up before the server would end the transaction.
LOCKS_MS: Final = 900


class LocksBriefly(Migration):
    """Migration that waits for locks for ``LOCKS_MS`` in total, forwards and backwards, and then fails with 55P03.

    Then nothing has changed, and ``migrate`` can be run again. Others wait for tables it has already locked, so one
    budget covers all its statements, from the first on: give a long statement its own migration. A session's own
    ``lock_timeout`` takes precedence. With ``atomic = False`` the class has no effect: an index built concurrently may
    wait long, since nobody waits for it.
    """

    def apply(
        self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, collect_sql: bool = False
    ) -> ProjectState:
        """Apply it, or collect its SQL for ``sqlmigrate``."""
        with _locks_briefly(schema_editor):
            return super().apply(project_state, schema_editor, collect_sql)

    def unapply(
        self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, collect_sql: bool = False
    ) -> ProjectState:
        """Reverse it, or collect its SQL for ``sqlmigrate``."""
        with _locks_briefly(schema_editor):
            return super().unapply(project_state, schema_editor, collect_sql)


@contextmanager
def _locks_briefly(schema_editor: BaseDatabaseSchemaEditor) -> Generator[None]:
    connection = schema_editor.connection
    if not schema_editor.atomic_migration or waits_by_its_own(connection):
        yield
        return
    # Until the transaction ends, so that it applies to the statements that Django defers until then.
    schema_editor.execute(f"SET LOCAL lock_timeout = {LOCKS_MS}", params=None)
    if not schema_editor.collect_sql:
        with connection.execute_wrapper(_spend(LOCKS_MS / 1000)):
            yield
        return
    # Operations with their own timeout check what is set: they should collect what they would do.
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {LOCKS_MS}")
        try:
            yield
        finally:
            cursor.execute("RESET lock_timeout")


def _spend(budget_s: float) -> Callable[..., Any]:
    """Return an execute wrapper that gives each statement what the previous ones left of the budget."""
    end = time.monotonic() + budget_s

    def run(execute: Callable[..., Any], statement: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        left_ms = max(1, int((end - time.monotonic()) * 1000))  # 0 would be no limit
        with context["connection"].wrap_database_errors:
            context["cursor"].cursor.execute(f"SET LOCAL lock_timeout = {left_ms}")
        return execute(statement, params, many, context)

    return run


class SetStorageParameters(DatabaseOperation):
    """Operation that sets a table's storage parameters (fillfactor, autovacuum); reversing restores the defaults.

    SHARE UPDATE EXCLUSIVE: it waits for a VACUUM of that table, but no reader or writer waits for it.
    """

    def __init__(self, table: str, parameters: dict[str, float]) -> None:
        self.table = table
        self.parameters = parameters

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Set the parameters."""
        settings = sql.SQL(", ").join(
            sql.SQL("{} = {}").format(_name(name), sql.Literal(value)) for name, value in self.parameters.items()
        )
        execute(schema_editor, sql.SQL("ALTER TABLE {} SET ({})").format(sql.Identifier(self.table), settings))

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Reset the parameters."""
        names = sql.SQL(", ").join(map(_name, self.parameters))
        execute(schema_editor, sql.SQL("ALTER TABLE {} RESET ({})").format(sql.Identifier(self.table), names))

    def describe(self) -> str:
        """Describe the operation."""
        return f"Set storage parameters of {self.table}"


def _name(parameter: str) -> sql.Composable:
    """Return a parameter as SQL; parameters of the TOAST table have a namespace."""
    return sql.SQL(".").join(map(sql.Identifier, parameter.split(".")))
