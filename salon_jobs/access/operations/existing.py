"""Operations that give tables with rows their store during normal writes: no writer waits long for any of them."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from django.db import IntegrityError, OperationalError, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.utils import truncate_name
from django.db.migrations.state import ProjectState
from django.db.models import Exists, Model, OuterRef, Subquery

from salon_jobs.access.constraints import column_of
from salon_jobs.access.declared_objects import identifier, literal
from salon_jobs.access.operations.base import DatabaseOperation, execute, schema_of
from salon_jobs.core import events
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.core.events import log_event
from salon_jobs.db.statements import is_lock_conflict
from salon_jobs.tenancy.active import expect_no_rows

R = TypeVar("R")
# Others wait behind a statement that waits for a lock: this long; then they have their turn before the next try.
WAIT_MS: Final = 200
ATTEMPTS: Final = 100
_PROGRESS_EVERY_S: Final = 2.0


class _StoreField(DatabaseOperation):
    """Base of operations on ``field``, which holds the store of the rows of ``model`` ("app_label.Model")."""

    def __init__(self, model: str, field: str) -> None:
        self.model, self.field = model, field

    def allowed(self, alias: str, app_label: str, state: ProjectState) -> bool:
        """Ask the routers for the model, like the operation that created its table."""
        return self.allowed_for(alias, self._model(state))

    def _model(self, state: ProjectState) -> type[Model]:
        return state.apps.get_model(self.model)

    def _commits_as_it_goes(self, schema_editor: BaseDatabaseSchemaEditor) -> None:
        if schema_editor.atomic_migration:
            raise ConfigurationError(
                f"{type(self).__name__} commits as it goes: give it a migration of its own with atomic = False"
            )


class _ThroughParent(_StoreField):
    """Base of operations that take the store from the row to which the foreign key ``through`` refers.

    There ``parent_field`` holds it, by default the field of the same name.
    """

    def __init__(self, model: str, field: str, *, through: str, parent_field: str = "") -> None:
        super().__init__(model, field)
        self.through, self.parent_field = through, parent_field

    def _parent(self, state: ProjectState) -> tuple[Any, Any, Any]:
        """Return the foreign key, the field it refers to, and the parent's field with the store."""
        key: Any = self._model(state)._meta.get_field(self.through)
        return key, key.target_field, key.related_model._meta.get_field(self.parent_field or self.field)


class FillStore(_ThroughParent):
    """Operation that adds a trigger, which fills the column for old code that does not know it.

    A new row without a store gets its parent's; so does a row that gets another parent, unless the same statement
    changes its store. Put it into the migration that adds the column; ``StopFillingStore`` ends it.
    """

    locks_tables = True

    def apply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        key, target, source = self._parent(state)
        model, column = self._model(state), identifier(str(source.column))
        table, parent = model._meta.db_table, key.related_model._meta.db_table
        store, to = identifier(column_of(model, self.field)), identifier(key.column)
        function, trigger = self._function(schema_editor, state)
        body = (
            f"BEGIN IF NEW.{store} IS NULL OR (TG_OP = 'UPDATE' AND NEW.{store} IS NOT DISTINCT FROM OLD.{store} "
            f"AND NEW.{to} IS DISTINCT FROM OLD.{to}) THEN NEW.{store} := (SELECT parent.{column} FROM "
            f"{identifier(schema_of(schema_editor, parent), parent)} AS parent "
            f"WHERE parent.{identifier(target.column)} = NEW.{to}); END IF; RETURN NEW; END"
        )
        execute(
            schema_editor,
            f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS {literal(body)}",
            f"CREATE TRIGGER {trigger} BEFORE INSERT OR UPDATE OF {to} ON {identifier(table)} "
            f"FOR EACH ROW EXECUTE FUNCTION {function}()",
        )

    def unapply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        function, trigger = self._function(schema_editor, state)
        execute(
            schema_editor,
            f"DROP TRIGGER {trigger} ON {identifier(self._model(state)._meta.db_table)}",
            f"DROP FUNCTION {function}()",
        )

    def describe(self) -> str:
        return f"Fill {self.field} of {self.model} through {self.through}"

    def _function(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> tuple[str, str]:
        """Return the function's name and the trigger's."""
        model = self._model(state)
        table = model._meta.db_table
        name = truncate_name(f"{table}_fill_{column_of(model, self.field)}", 63, hash_len=8)
        return identifier(schema_of(schema_editor, table), name), identifier(name)


class StopFillingStore(FillStore):
    """Operation that undoes a ``FillStore`` with the same arguments; reversing restores it."""

    def apply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        super().unapply(schema_editor, state)

    def unapply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        super().apply(schema_editor, state)

    def describe(self) -> str:
        return f"No longer fill {self.field} of {self.model}"


class BackfillStore(_ThroughParent):
    """Operation that fills the column in rows without a store, ``batch`` keys in a transaction.

    Needs a migration with ``atomic = False``. Run again after a failure, it continues: it changes only rows without a
    store. Every two seconds it reports its progress, on a terminal and as a log event. Rows remain if their parent has
    no store; at the end it says on stderr how many, and how to find them. It vacuums the table at the end. Reversing
    changes nothing.

    Raises ConfigurationError if row-level security hides rows.
    """

    atomic = False
    reduces_to_sql = False

    def __init__(self, model: str, field: str, *, through: str, parent_field: str = "", batch: int = 1000) -> None:
        super().__init__(model, field, through=through, parent_field=parent_field)
        self.batch = batch

    def apply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        self._commits_as_it_goes(schema_editor)
        key, target, source = self._parent(state)
        model, alias = self._model(state), schema_editor.connection.alias
        self._refuse_hidden_rows(schema_editor, model, key.related_model)
        parents = key.related_model._base_manager.using(alias).filter(**{target.attname: OuterRef(key.attname)})
        store = Subquery(parents.values(source.attname)[:1])
        rows: Any = model._base_manager.using(alias).order_by("pk")
        missing = rows.filter(**{f"{self.field}__isnull": True})
        fillable = missing.filter(Exists(parents.filter(**{f"{source.name}__isnull": False})))
        filled, reported_at, more = 0, time.monotonic(), True
        with expect_no_rows():  # the newest models may declare the isolation that a later migration adds
            while more:
                # By the key only: the new column has no statistics for the choice of a plan.
                ends = list(rows.values_list("pk", flat=True)[self.batch - 1 : self.batch])
                part = fillable.filter(pk__lte=ends[0]) if ends else fillable
                filled += _briefly(schema_editor, partial(part.order_by().update, **{self.field: store}))
                if more := bool(ends):
                    rows, fillable = rows.filter(pk__gt=ends[0]), fillable.filter(pk__gt=ends[0])
                if more and time.monotonic() - reported_at >= _PROGRESS_EVERY_S:
                    reported_at = time.monotonic()
                    self._report(model, filled=filled)
            self._report(model, filled=filled, missing=missing.count())
        # Plans need to know the new column, and autovacuum would soon be in the way of the next migrations.
        execute(schema_editor, f"VACUUM (ANALYZE) {identifier(model._meta.db_table)}")

    def unapply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Leave the column; reversing the migration that added it drops it."""

    def describe(self) -> str:
        return f"Backfill {self.field} of {self.model} through {self.through}"

    def _refuse_hidden_rows(self, schema_editor: BaseDatabaseSchemaEditor, *models: type[Model]) -> None:
        with schema_editor.connection.cursor() as cursor:
            for model in models:
                cursor.execute("SELECT row_security_active(quote_ident(%s))", [model._meta.db_table])
                if cursor.fetchone()[0]:
                    raise ConfigurationError(
                        f"BackfillStore sees no rows of {model._meta.db_table}, which is isolated already: backfill "
                        "before you isolate, or fill each store's rows with RunForEachStore"
                    )

    def _report(self, model: type[Model], **fields: Any) -> None:
        log_event(logging.INFO, events.STORE_BACKFILLED, table=model._meta.db_table, **fields)
        # A deployment log has no terminal, and by default no events either.
        if (missing := fields.get("missing", 0)) or sys.stderr.isatty():
            table = model._meta.db_table
            find = f"SELECT * FROM {identifier(table)} WHERE {identifier(column_of(model, self.field))} IS NULL"
            left = f", {missing:,} without a parent's remain: {find}" if missing else ""
            sys.stderr.write(f"\n    {table}: {fields['filled']:,} rows filled{left}\n")


class RequireStore(_StoreField):
    """Operation that makes the column NOT NULL, instead of ``AlterField``, in the model's state too.

    Needs a migration with ``atomic = False``. No writer waits while the rows are read, and foreign keys, which
    ``AlterField`` re-creates, are left alone. If a row has no store, the migration fails and leaves the table as it
    was.
    """

    atomic = False

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        label, name = self.model.lower().split(".")
        field: Any = state.models[label, name].get_field(self.field).clone()
        field.null = False
        state.alter_field(label, name, self.field, field, preserve_default=True)

    def apply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        self._commits_as_it_goes(schema_editor)
        model = self._model(state)
        column = column_of(model, self.field)
        check = identifier(truncate_name(f"{model._meta.db_table}_{column}_given", 63, hash_len=8))
        table, column = identifier(model._meta.db_table), identifier(column)
        alter = partial(_alter, schema_editor, table)
        alter(f"DROP CONSTRAINT IF EXISTS {check}, ADD CONSTRAINT {check} CHECK ({column} IS NOT NULL) NOT VALID")
        try:
            alter(f"VALIDATE CONSTRAINT {check}")
        except IntegrityError as error:
            alter(f"DROP CONSTRAINT {check}")
            error.add_note(f"rows have no store, and nothing has changed: SELECT * FROM {table} WHERE {column} IS NULL")
            raise
        # With the valid constraint, PostgreSQL need not read the rows under its lock.
        alter(f"ALTER COLUMN {column} SET NOT NULL, DROP CONSTRAINT {check}")

    def unapply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        model = self._model(state)
        table, column = identifier(model._meta.db_table), identifier(column_of(model, self.field))
        _alter(schema_editor, table, f"ALTER COLUMN {column} DROP NOT NULL")

    def describe(self) -> str:
        return f"Require {self.field} of {self.model}"


def _alter(schema_editor: BaseDatabaseSchemaEditor, table: str, action: str) -> None:
    _briefly(schema_editor, lambda: execute(schema_editor, f"ALTER TABLE {table} {action}"), alters=table)


def _briefly(schema_editor: BaseDatabaseSchemaEditor, change: Callable[[], R], *, alters: str = "") -> R:
    """Make a change in a transaction that waits only briefly for locks, and again while others have them.

    A session's own ``lock_timeout`` takes precedence. The table that it ``alters`` is first locked against autovacuum
    only, which may run for long after a backfill, and gives way only to a session that waits for a second. Raises
    OperationalError after ``ATTEMPTS``.
    """
    connection = schema_editor.connection
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        [own] = cursor.fetchone()
    before = [f"SET LOCAL lock_timeout = '{WAIT_MS if own == '0' else own}'"]
    if alters:
        before = ["SET LOCAL lock_timeout = 0", f"LOCK TABLE {alters} IN SHARE UPDATE EXCLUSIVE MODE", *before]
    if schema_editor.collect_sql:
        execute(schema_editor, "BEGIN", *before)
        done = change()
        execute(schema_editor, "COMMIT")
        return done
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with transaction.atomic(using=connection.alias):
                execute(schema_editor, *before)
                return change()
        except OperationalError as error:
            if attempt == ATTEMPTS or not is_lock_conflict(error):
                raise
    raise AssertionError("unreachable")
