"""Base of all migration operations, short locks, and operations on any table."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from django.db import router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.utils import truncate_name
from django.db.migrations import Migration
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.models import Model
from pgtrigger.compiler import Trigger, UpsertTriggerSql
from pgtrigger.migrations import AddTrigger

from salon_jobs.access.constraints import VALIDATE, row_by_row, row_security_of
from salon_jobs.access.declared_objects import identifier, identifiers, literal, trigger_schema
from salon_jobs.db.connections import has_lock_timeout, holds_job_tables, lock_timeout


class DatabaseOperation(Operation):
    """Operation that changes only the database, where the routers allow it; Django's model state is unchanged.

    An operation that locks tables ACCESS EXCLUSIVE waits for them as long as ``lock_timeout``. If it fails, nothing has
    changed, and ``migrate`` can be run again.
    """

    # Also in a migration with ``atomic = False``, its statements belong together, and SET LOCAL needs a transaction.
    atomic = True
    reversible = True
    reduces_to_sql = True
    locks_tables: ClassVar[bool] = False

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Leave the state unchanged."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        self._run(self.apply, app_label, schema_editor, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        self._run(self.unapply, app_label, schema_editor, from_state)

    def _run(
        self,
        change: Callable[[BaseDatabaseSchemaEditor, ProjectState], None],
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        state: ProjectState,
    ) -> None:
        if self.allowed(schema_editor.connection.alias, app_label, state):
            before, after = lock_timeout(schema_editor.connection) if self.locks_tables else ([], [])
            execute(schema_editor, *before)
            change(schema_editor, state)
            # Not in a finally: after an error the transaction accepts no statements, and its end resets this anyway.
            execute(schema_editor, *after)

    def allowed(self, alias: str, app_label: str, state: ProjectState) -> bool:
        """Ask the routers, as RunSQL does."""
        return router.allow_migrate(alias, app_label)

    def allowed_for(self, alias: str, model: type[Model]) -> bool:
        """Ask the routers for a model, also for a protected one whose table Django does not create.

        Proxies and swapped models have no table.
        """
        if model._meta.proxy or model._meta.swapped:
            return False
        return bool(router.allow_migrate_model(alias, model))

    @abstractmethod
    def apply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Change the database; ``state`` contains the models."""

    @abstractmethod
    def unapply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Undo ``apply``; ``state`` contains the models."""


def execute(schema_editor: BaseDatabaseSchemaEditor, *statements: str) -> None:
    """Run statements, or collect them for ``sqlmigrate``."""
    for statement in statements:
        schema_editor.execute(statement, params=None)


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


# Less than PostgreSQL's deadlock_timeout (1 s): if a migration and a transaction wait for each other's tables, the
# migration gives up before the server would end the transaction.
LOCKS_MS: Final = 900


class LocksBriefly(Migration):
    """Migration that waits for locks for ``locks_ms`` in total, forwards and backwards, and then fails with 55P03.

    Then nothing has changed, and ``migrate`` can be run again. Others wait for the tables it has locked, so one budget
    covers all its statements: give a long statement its own migration. A session's own ``lock_timeout`` takes
    precedence. With ``atomic = False`` the class has no effect: an index built concurrently may wait long, since
    nothing waits for it.
    """

    locks_ms: ClassVar[int] = LOCKS_MS

    def apply(
        self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, collect_sql: bool = False
    ) -> ProjectState:
        with _locks_briefly(schema_editor, self.locks_ms):
            return super().apply(project_state, schema_editor, collect_sql)

    def unapply(
        self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, collect_sql: bool = False
    ) -> ProjectState:
        with _locks_briefly(schema_editor, self.locks_ms):
            return super().unapply(project_state, schema_editor, collect_sql)


class JobTablesMigration(LocksBriefly):
    """Migration of salon_jobs' own tables: changes nothing on any database but the PostgreSQL one they belong in.

    Django records it there all the same, as it does for models that a router excludes.
    """

    def apply(
        self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, collect_sql: bool = False
    ) -> ProjectState:
        if holds_job_tables(schema_editor.connection.alias):
            return super().apply(project_state, schema_editor, collect_sql)
        return self.mutate_state(project_state, preserve=False)

    def unapply(
        self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, collect_sql: bool = False
    ) -> ProjectState:
        if holds_job_tables(schema_editor.connection.alias):
            return super().unapply(project_state, schema_editor, collect_sql)
        return project_state


@contextmanager
def _locks_briefly(schema_editor: BaseDatabaseSchemaEditor, locks_ms: int) -> Generator[None]:
    connection = schema_editor.connection
    if not schema_editor.atomic_migration or has_lock_timeout(connection):
        yield
        return
    end = time.monotonic() + locks_ms / 1000

    def spend(run: Callable[..., Any], statement: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        """Give each statement the rest of the budget."""
        left_ms = max(1, int((end - time.monotonic()) * 1000))  # 0 would be no limit
        with connection.wrap_database_errors:
            context["cursor"].cursor.execute(f"SET LOCAL lock_timeout = {left_ms}")
        return run(statement, params, many, context)

    # Until the transaction ends, so that it applies to the statements that Django defers until then.
    schema_editor.execute(f"SET LOCAL lock_timeout = {locks_ms}", params=None)
    if not schema_editor.collect_sql:
        with connection.execute_wrapper(spend):
            yield
        return
    # Operations with their own timeout check the setting: they should collect the statements that they would run.
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {locks_ms}")
        try:
            yield
        finally:
            cursor.execute("RESET lock_timeout")


def _with_function_in(trigger: Trigger, schema: str | None) -> Trigger:
    """Return a trigger of a migration with its shared function in this schema; None for the first in the path."""
    sql: Any = trigger.sql
    name = "_pgtrigger_should_ignore" if not schema else f"{identifier(schema)}._pgtrigger_should_ignore"
    if sql.defaults["ignore_func_name"] == name:
        return trigger
    return Trigger(name=trigger.name, sql=UpsertTriggerSql(**{**sql.kwargs, "ignore_func_name": name}))


class AddGuard(AddTrigger):
    """pgtrigger's operation that, reversed, also drops the trigger's function, and pgtrigger's own with the last.

    That one is in ``PGTRIGGER_SCHEMA``, as for the project's own triggers, wherever the migration was written.
    """

    def __init__(self, model_name: str, trigger: Trigger) -> None:
        super().__init__(model_name, _with_function_in(trigger, trigger_schema()))

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        super().database_backwards(app_label, schema_editor, from_state, to_state)
        guard: Any = self.trigger
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            execute(
                schema_editor,
                f"DROP FUNCTION IF EXISTS {identifier(guard.sql.pgid)}()",
                "DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc "
                "WHERE proname = '_pgtrigger_should_ignore' AND pg_has_role(proowner, 'USAGE') "
                "AND NOT EXISTS (SELECT FROM pg_proc WHERE strpos(prosrc, '_pgtrigger_should_ignore') > 0) "
                "LOOP EXECUTE format('DROP FUNCTION %s', f); END LOOP; END $$",
            )


_DROP_KEYS: Final = (
    "DO $$ DECLARE k name; found boolean := false; BEGIN FOR k IN SELECT c.conname FROM pg_constraint AS c "
    "WHERE c.contype = 'f' AND c.conparentid = 0 AND c.conrelid = {table}::regclass "
    "AND ({to}::text IS NULL OR c.confrelid = {to}::regclass) AND ARRAY(SELECT a.attname::text "
    "FROM unnest(c.conkey) AS n JOIN pg_attribute AS a ON a.attrelid = c.conrelid AND a.attnum = n "
    'ORDER BY a.attname COLLATE "C") = ARRAY[{columns}]::text[] LOOP '
    "found := true; EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', {table}::regclass, k); END LOOP; "
    "IF NOT found THEN RAISE undefined_object USING MESSAGE = {missing}; END IF; END $$"
)


class DropForeignKey(DatabaseOperation):
    """Operation that drops the foreign keys on exactly these columns of a table, by their names in the catalogue.

    For keys that Django did not create. ``to`` is the table they refer to; keys to other tables are then left alone.
    With ``to_columns`` as well, the operation is reversible: reversing recreates the key, deferrable, validated and
    with a generated name. Fails with 42704 (a ProgrammingError) if there is no such key.
    """

    locks_tables: ClassVar[bool] = True

    def __init__(
        self, table: str, columns: Sequence[str], *, to: str | None = None, to_columns: Sequence[str] = ()
    ) -> None:
        self.table, self.columns, self.to, self.to_columns = table, tuple(columns), to, tuple(to_columns)

    @property
    def reversible(self) -> bool:  # type: ignore[override]
        return self.to is not None and bool(self.to_columns)

    def apply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        columns = ", ".join(map(literal, sorted(self.columns)))
        missing = f"no foreign key on {self.table} ({', '.join(self.columns)}), as DropForeignKey expects"
        to = "NULL" if self.to is None else literal(identifier(self.to))
        table = literal(identifier(self.table))
        execute(schema_editor, _DROP_KEYS.format(table=table, to=to, columns=columns, missing=literal(missing)))

    def unapply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Recreate a key, NOT VALID, and validate it: a check that obeys row-level security would not be enough."""
        name = identifier(truncate_name(f"{self.table}_{'_'.join(self.columns)}_fk", 63, hash_len=8))
        table, row_security = identifier(self.table), row_security_of(schema_editor.connection)
        execute(
            schema_editor,
            f"ALTER TABLE {table} ADD CONSTRAINT {name} FOREIGN KEY ({identifiers(self.columns)}) REFERENCES "
            f"{identifier(str(self.to))} ({identifiers(self.to_columns)}) DEFERRABLE INITIALLY DEFERRED NOT VALID",
            row_by_row(VALIDATE, keys="%(keys)s" if self.to == self.table else "")
            % {"table": table, "name": name, "row_security": row_security, "keys": identifiers(self.to_columns)},
        )

    def describe(self) -> str:
        return f"Drop the foreign key of {self.table} ({', '.join(self.columns)})"
