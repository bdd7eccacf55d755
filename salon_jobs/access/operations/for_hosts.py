"""Migration operations for the models and rows of a host project."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final
from uuid import UUID

from django.apps import apps
from django.db import connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.signals import connection_created
from django.db.backends.utils import truncate_name
from django.db.migrations import RunPython
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState, StateApps
from django.db.models import Model
from psycopg import sql

from salon_jobs.access.constraints import VALIDATE, AccessConstraint, row_security_of
from salon_jobs.access.operations.base import DatabaseOperation, execute
from salon_jobs.access.policies import DEMAND_GUC, NO_STORE
from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.core.events import log_event
from salon_jobs.db.connections import can_run, plain_cursor
from salon_jobs.tenancy import guc
from salon_jobs.tenancy.context import tenant_context


class RunForEachStore(RunPython):
    """Operation that calls ``code(apps, schema_editor, store_id)`` in the tenant context of each store, ordered by id.

    Each call sees and changes only that store's rows, even as the migrator. In an ordinary migration all of them are
    one transaction; with ``atomic = False`` each store has its own, and after a failure, whose note names the store,
    ``migrate`` starts with the first store again: ``code`` must skip what is done. ``reverse_code`` is called the same
    way, ``RunForEachStore.noop`` does nothing; without one the migration cannot be reversed.

    The stores are those listed by the fan-out function: make the migration depend on ("salon_jobs", "0003_fan_out").
    Raises ConfigurationError without it.
    """

    def __init__(
        self,
        code: Callable[[Any, Any, UUID], object],
        reverse_code: Callable[[Any, Any, UUID], object] | None = None,
        *,
        hints: Mapping[str, Any] | None = None,
        elidable: bool = False,
    ) -> None:
        self.each, self.reverse_each = code, reverse_code
        # The same except for the third argument; RunPython calls neither, since both directions are overridden.
        plain: tuple[Any, Any] = (code, reverse_code)
        super().__init__(*plain, hints=dict(hints or {}), elidable=elidable)

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Call ``code`` for each store, where the routers allow it."""
        from_state.clear_delayed_apps_cache()
        self._run(self.each, app_label, schema_editor, from_state.apps)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Call ``reverse_code`` for each store, where the routers allow it."""
        if self.reverse_each is None:
            raise NotImplementedError("this operation has no reverse_code")
        self._run(self.reverse_each, app_label, schema_editor, from_state.apps)

    def describe(self) -> str:
        """Describe the operation."""
        return f"Run {getattr(self.each, '__name__', 'code')} for each store"

    @staticmethod
    def noop(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor, store_id: UUID | None = None) -> None:
        """Do nothing, in one direction."""

    def _run(
        self,
        code: Callable[[Any, Any, UUID], object],
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        apps: StateApps,
    ) -> None:
        connection = schema_editor.connection
        if code is RunForEachStore.noop or not router.allow_migrate(connection.alias, app_label, **self.hints):
            return
        stores = list_stores(connection)
        for done, store_id in enumerate(stores, start=1):
            try:
                with tenant_context(store_id, using=connection.alias):
                    code(apps, schema_editor, store_id)
            except Exception as error:
                error.add_note(f"in store {store_id}, number {done} of {len(stores)}")
                raise
            log_event(logging.INFO, events.STORE_MIGRATED, store_id=store_id, done=done, stores=len(stores))


def list_stores(connection: BaseDatabaseWrapper) -> list[UUID]:
    """Return the ids of all stores, as the migrator: by the fan-out function, as its owner for this one statement."""
    if conf.store_model is None:
        raise ConfigurationError("RunForEachStore needs SALON_JOBS['STORE_MODEL']: set it to the model of your stores")
    schema, name = conf.fan_out_function.split(".")
    function = sql.SQL("{}()").format(sql.Identifier(schema, name))
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        cursor.execute("SELECT to_regprocedure(%s), current_setting('role')", [function.as_string()])
        found, role = cursor.fetchone()
        if found is None:
            raise ConfigurationError(
                f"RunForEachStore lists the stores by {conf.fan_out_function}, which is not there yet: let the "
                'migration depend on ("salon_jobs", "0003_fan_out")'
            )
        if conf.roles is not None:
            cursor.execute("SELECT set_config('role', %s, true)", [conf.roles.fan_out_owner])
        cursor.execute(sql.SQL("SELECT store_id FROM {}").format(function).as_string())
        stores = [store_id for (store_id,) in cursor.fetchall()]
        cursor.execute("SELECT set_config('role', %s, true)", [role])
    return stores


_DROP: Final = sql.SQL(
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

    For keys that Django did not create. ``to`` is the table they refer to: other keys are then left alone. With
    ``to_columns`` as well, the operation is reversible: reversing recreates the key, deferrable, correctly validated
    and with a generated name. Fails with 42704 (a ProgrammingError) if there is no such key.
    """

    locks_tables: ClassVar[bool] = True

    def __init__(
        self, table: str, columns: Sequence[str], *, to: str | None = None, to_columns: Sequence[str] = ()
    ) -> None:
        self.table, self.columns, self.to, self.to_columns = table, tuple(columns), to, tuple(to_columns)

    @property
    def reversible(self) -> bool:  # type: ignore[override]
        """Whether the key can be recreated."""
        return self.to is not None and bool(self.to_columns)

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Drop the keys found at run time."""
        columns = sql.SQL(", ").join(map(sql.Literal, sorted(self.columns)))
        missing = f"no foreign key on {self.table} ({', '.join(self.columns)}), as DropForeignKey expects"
        to = None if self.to is None else sql.Identifier(self.to).as_string()
        table = sql.Literal(sql.Identifier(self.table).as_string())
        drop = _DROP.format(table=table, to=sql.Literal(to), columns=columns, missing=sql.Literal(missing))
        execute(schema_editor, drop)

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Recreate a key, NOT VALID, and validate it: a query that obeys row-level security would not be enough."""
        name = sql.Identifier(truncate_name(f"{self.table}_{'_'.join(self.columns)}_fk", 63, hash_len=8))
        table, to = sql.Identifier(self.table), sql.Identifier(str(self.to))
        add = sql.SQL(
            "ALTER TABLE {} ADD CONSTRAINT {} FOREIGN KEY ({}) REFERENCES {} ({}) "
            "DEFERRABLE INITIALLY DEFERRED NOT VALID"
        ).format(table, name, _listed(self.columns), to, _listed(self.to_columns))
        execute(schema_editor, add)
        words = {"table": table.as_string(), "name": name.as_string()}
        validate = VALIDATE % {**words, "row_security": row_security_of(schema_editor.connection)}
        schema_editor.execute(validate, params=None)

    def describe(self) -> str:
        """Describe the operation."""
        return f"Drop the foreign key of {self.table} ({', '.join(self.columns)})"


def _listed(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


class ProtectModel(DatabaseOperation):
    """Operation that gives a model outside your code the access a ``StoreIsolation`` or ``SystemScope`` declares.

    ``model`` is "app_label.Model"; the table of a ManyToManyField is "app_label.Model_field". The migration depends on
    the one that creates it. To change what an earlier migration declared, pass that as ``instead_of``. Raises
    ConfigurationError when a policy would remain that is no longer declared.
    """

    def __init__(self, model: str, constraint: AccessConstraint, *, instead_of: AccessConstraint | None = None) -> None:
        self.model = model
        self.constraint = constraint
        self.instead_of = instead_of

    def allowed(self, alias: str, app_label: str, state: ProjectState) -> bool:
        """Ask the routers for the model, as the operation that created its table did."""
        return self.allow_migrate_model(alias, self._model(state))

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Give the access, replacing what was declared before."""
        self._put(schema_editor, self._model(state), self.constraint, self.instead_of)

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Remove the access, and restore what was declared before."""
        self._put(schema_editor, self._model(state), self.instead_of, self.constraint)

    def describe(self) -> str:
        """Describe the operation."""
        return f"Protect {self.model} by {type(self.constraint).__name__}"

    def _put(
        self,
        schema_editor: BaseDatabaseSchemaEditor,
        model: type[Model],
        new: AccessConstraint | None,
        old: AccessConstraint | None,
    ) -> None:
        if old is not None:
            schema_editor.remove_constraint(model, old)
        access = None if new is None else new.access(model, conf.roles)
        # Its own may already exist: a conversion to roles sets up what all migrations declare.
        declared: set[str] = set() if access is None else {policy.name for policy in access.policies}
        left = [] if schema_editor.collect_sql else sorted(_policies(schema_editor, model) - declared)
        if left:
            raise ConfigurationError(
                f"{self.model} has policies of another declaration ({', '.join(left)}): name the one that holds so "
                f'far, ProtectModel("{self.model}", …, instead_of=…)'
            )
        if new is not None:
            schema_editor.add_constraint(model, new)

    def _model(self, state: ProjectState) -> type[Model]:
        return state.apps.get_model(self.model)


class ReleaseModel(ProtectModel):
    """Operation that undoes a ``ProtectModel`` with the same ``constraint``; reversing restores it.

    It leaves a table without row-level security, with the default privileges.
    """

    def __init__(self, model: str, constraint: AccessConstraint) -> None:
        super().__init__(model, constraint)

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Remove the access."""
        super().unapply(app_label, schema_editor, state)

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Restore the access."""
        super().apply(app_label, schema_editor, state)

    def describe(self) -> str:
        """Describe the operation."""
        return f"Release {self.model} from {type(self.constraint).__name__}"


def _policies(schema_editor: BaseDatabaseSchemaEditor, model: type[Model]) -> set[str]:
    """Return the names of the declared policies that a table has."""
    query = (
        "SELECT polname FROM pg_policy"
        " WHERE polrelid = to_regclass(quote_ident(%s)) AND starts_with(polname, 'salon_jobs_')"
    )
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(query, [model._meta.db_table])
        return {name for (name,) in cursor.fetchall()}


@contextmanager
def require_store(alias: str) -> Generator[None]:
    """Inside, make statements on this alias that access a store's rows fail unless a store is set.

    It is set on each session, both the open one and those opened inside. Behind a pooler nothing is set: it would
    remain on a session that others use next.
    """

    def demand(connection: BaseDatabaseWrapper, **_: Any) -> None:
        if connection.alias == alias:
            _set(connection, NO_STORE)

    connection = connections[alias]
    connection_created.connect(demand)
    try:
        if connection.connection is not None:
            _set(connection, NO_STORE)
        yield
    finally:
        connection_created.disconnect(demand)
        if can_run(connection):  # an aborted transaction reverts it itself, or with its connection
            _set(connection, "")


def _set(connection: BaseDatabaseWrapper, value: str) -> None:
    raw: Any = connection.connection
    with connection.wrap_database_errors:
        plain_cursor(connection).execute(guc.SET_SESSION, (raw.info.backend_pid, DEMAND_GUC, value))


def declarations() -> dict[type[Model], AccessConstraint]:
    """Return the constraint that declares access to each model's table; ``Meta`` takes precedence over operations.

    salon_jobs' own tables are declared in ``access.job_tables``. Reads the files of all migrations, not the database.
    """
    return {**declared_by_operations(), **declared_in_meta()}


def declared_in_meta() -> dict[type[Model], AccessConstraint]:
    """Return the constraints in the models' own ``Meta``."""
    return {
        model: constraint
        for model in apps.get_models(include_auto_created=True)
        for constraint in model._meta.constraints
        if isinstance(constraint, AccessConstraint) and not model._meta.proxy  # its table is another model's
    }


def declared_by_operations() -> dict[type[Model], AccessConstraint]:
    """Return the constraints given by ``ProtectModel``, and not removed by ``ReleaseModel``, of installed models."""
    graph = MigrationLoader(None, ignore_no_migrations=True).graph
    plan = dict.fromkeys(key for leaf in graph.leaf_nodes() for key in graph.forwards_plan(leaf))
    last = {
        operation.model.lower(): operation
        for key in plan
        for operation in graph.nodes[key].operations
        if isinstance(operation, ProtectModel)
    }
    return {
        model: operation.constraint
        for operation in last.values()
        if not isinstance(operation, ReleaseModel) and (model := _installed(operation.model)) is not None
    }


def _installed(name: str) -> type[Model] | None:
    try:
        return apps.get_model(name)
    except LookupError:
        return None
