"""Operations that give access: to the objects of salon_jobs, and to models of other apps."""

from __future__ import annotations

import re
from collections.abc import Sequence

from django.apps import apps
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.db.models import Model

from salon_jobs.access.constraints import AccessConstraint, bound_owners
from salon_jobs.access.declared_objects import FunctionAccess, grants, identifier, identifiers
from salon_jobs.access.job_tables import (
    FUNCTIONS,
    fan_out_function,
    fan_out_reads,
    history_access,
    job_function,
    own_tables,
    table_access,
)
from salon_jobs.access.operations.base import DatabaseOperation, execute, schema_of
from salon_jobs.access.policies import FAN_OUT_POLICY, OWNERS_POLICY, SUPPORT_POLICY
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError


class InstallDeclared(DatabaseOperation):
    """Operation that installs what is declared (``access.job_tables``) of these tables and functions, or of all.

    Under forced row-level security each role gets exactly what it needs; with one database user nobody needs a grant.
    Functions come with their triggers, which lock their tables. A later migration that creates a table installs it, and
    the functions that use it.
    """

    locks_tables = True

    def __init__(self, *, tables: Sequence[str] | None = None, functions: Sequence[str] = FUNCTIONS) -> None:
        self.tables, self.functions = tables, functions

    def apply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        roles = conf.roles
        for table in self._tables(state):
            execute(schema_editor, *table_access(table, roles).install(roles.runtime))
            if storage := own_tables()[table].storage:
                settings = ", ".join(f"{identifier(*name.split('.'))} = {value}" for name, value in storage.items())
                execute(schema_editor, f"ALTER TABLE {identifier(table)} SET ({settings})")
        for function in self._functions(schema_editor):
            if self._lacking(state).isdisjoint(re.findall(r"\w+", function.definition)):
                execute(schema_editor, *function.create())
        if not roles.one_user and self.tables is None:
            execute(
                schema_editor,
                *history_access(roles).install(roles.runtime),
                # Every trigger of pgtrigger, including the host's, calls it as the writing role; its schema is
                # PGTRIGGER_SCHEMA.
                "DO $$ DECLARE f regprocedure; s regnamespace; BEGIN FOR f, s IN SELECT oid, pronamespace FROM pg_proc "
                "WHERE proname = '_pgtrigger_should_ignore' LOOP "
                f"EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO {identifiers(roles.runtime)}', f); "
                f"EXECUTE format('GRANT USAGE ON SCHEMA %s TO {identifiers(roles.runtime)}', s); "
                "END LOOP; END $$",
            )

    def unapply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Keep what other apps' tables now rely on: the history of migrations and pgtrigger's function."""
        for function in self._functions(schema_editor):
            execute(schema_editor, *function.drop())
        for table in self._tables(state):
            execute(schema_editor, *table_access(table, conf.roles).remove(conf.roles.runtime))
            if storage := own_tables()[table].storage:
                names = ", ".join(identifier(*name.split(".")) for name in storage)
                execute(schema_editor, f"ALTER TABLE {identifier(table)} RESET ({names})")
        if self.tables is None:
            # Those that a later migration has left, since the functions used them.
            execute(schema_editor, *(f"DROP TABLE IF EXISTS {identifier(table)}" for table in self._lacking(state)))

    def describe(self) -> str:
        return f"Install what is declared of {', '.join((*(self.tables or ['the job tables']), *self.functions))}"

    def _tables(self, state: ProjectState) -> list[str]:
        if self.tables is not None:
            return list(self.tables)
        lacking = self._lacking(state)
        return [table for table in own_tables() if table not in lacking]

    @staticmethod
    def _lacking(state: ProjectState) -> set[str]:
        """Return the tables that a later migration creates."""
        return set(own_tables()).difference(model.options.get("db_table") for model in state.models.values())

    def _functions(self, schema_editor: BaseDatabaseSchemaEditor) -> list[FunctionAccess]:
        schema = schema_of(schema_editor, "salon_jobs_job")
        return [job_function(name, schema, conf.roles) for name in self.functions]


class ReinstallFunctions(InstallDeclared):
    """Operation that reinstalls functions with a changed text; backwards they stay, since others call them."""

    def __init__(self, *, functions: Sequence[str]) -> None:
        super().__init__(tables=(), functions=functions)

    def unapply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Do nothing."""


class InstallFanOutFunction(DatabaseOperation):
    """Operation that installs the function that lists all stores: no arguments, only ids, owned by the fan-out role.

    Does nothing without STORE_MODEL. A project that sets STORE_MODEL later first migrates the store's app, then sets it
    and puts this operation into a separate migration that depends on the store's table. Run it as the migrator, which
    may SET ROLE to the owner but inherits nothing from it. Raises ConfigurationError if the store's table is created
    later.
    """

    def allowed(self, alias: str, app_label: str, state: ProjectState) -> bool:
        """Ask the routers, also for the store model, since the function reads its table."""
        if not super().allowed(alias, app_label, state):
            return False
        return conf.store_model is None or self.allowed_for(alias, _store_model(conf.store_model, state))

    def apply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        if conf.store_model is not None:
            self.install(schema_editor, _store_model(conf.store_model, state))

    @staticmethod
    def install(schema_editor: BaseDatabaseSchemaEditor, store: type[Model]) -> None:
        """Create the function for this model as its owner, so that the owner can grant EXECUTE on it."""
        table, key = str(store._meta.db_table), str(store._meta.pk.column)
        table_schema = schema_of(schema_editor, table)
        function = fan_out_function(table=table, table_schema=table_schema, key=key, roles=conf.roles)
        if conf.roles.one_user:
            execute(schema_editor, *function.create())
            return
        owner, schema, on = conf.roles.fan_out_owner, identifier(function.schema), identifier(table_schema, table)
        bound = bound_owners(schema_editor.connection, [owner])
        reads, policies = fan_out_reads(key=key, roles=conf.roles, bound=bound)
        owner = identifier(owner)
        execute(
            schema_editor,
            f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {owner}",
            *grants(on, [reads]),
            *(statement for policy in policies for statement in (policy.drop(on), policy.create(on))),
            f"SET LOCAL ROLE {owner}",
            *function.create(),
            "RESET ROLE",
            f"REVOKE CREATE ON SCHEMA {schema} FROM {owner}",
        )

    def unapply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        if conf.store_model is None:
            return
        drop = f"DROP FUNCTION IF EXISTS {identifier(*conf.fan_out_function.split('.'))}()"
        if conf.roles.one_user:
            execute(schema_editor, drop)
            return
        owner, meta = identifier(conf.roles.fan_out_owner), state.apps.get_model(conf.store_model)._meta
        table, key = identifier(meta.db_table), identifier(str(meta.pk.column))
        bound = bound_owners(schema_editor.connection, [conf.roles.fan_out_owner])
        _, policies = fan_out_reads(key=key, roles=conf.roles, bound=bound)
        execute(
            schema_editor,
            f"SET LOCAL ROLE {owner}",
            drop,
            "RESET ROLE",
            f"REVOKE ALL ON {table} FROM {owner}",
            f"REVOKE SELECT ({key}) ON {table} FROM {owner}",
            *(policy.drop(table) for policy in policies),
        )

    def describe(self) -> str:
        return "Install the function that lists the stores for a fan-out"


def _store_model(name: str, state: ProjectState) -> type[Model]:
    try:
        return state.apps.get_model(name)
    except LookupError as error:
        raise ConfigurationError(
            f"SALON_JOBS['STORE_MODEL'] {name!r} does not exist yet at this point of the migrations: give the "
            "migration that creates it run_before = [('salon_jobs', '0003_fan_out')]"
        ) from error


class ProtectModel(DatabaseOperation):
    """Operation that gives a model outside your code the access that a ``StoreIsolation`` or ``SystemScope`` declares.

    ``model`` is "app_label.Model"; the table of a ManyToManyField is "app_label.Model_field". Let the migration depend
    on the one that creates it. To change the declaration of an earlier migration, pass that as ``instead_of``. Raises
    ConfigurationError if a policy would remain that is no longer declared.
    """

    def __init__(self, model: str, constraint: AccessConstraint, *, instead_of: AccessConstraint | None = None) -> None:
        self.model = model
        self.constraint = constraint
        self.instead_of = instead_of

    def allowed(self, alias: str, app_label: str, state: ProjectState) -> bool:
        """Ask the routers for the model, like the operation that created its table."""
        return self.allowed_for(alias, self._model(state))

    def apply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        self._put(schema_editor, self._model(state), self.constraint, self.instead_of)

    def unapply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        self._put(schema_editor, self._model(state), self.instead_of, self.constraint)

    def describe(self) -> str:
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
        # Its policies may already exist: a conversion to roles sets up the declarations of all migrations.
        policies = () if new is None else new.access(model, conf.roles, using=schema_editor.connection.alias).policies
        declared = {policy.name for policy in policies}
        there: set[str] = set()
        if not schema_editor.collect_sql:
            with schema_editor.connection.cursor() as cursor:
                cursor.execute(
                    "SELECT polname FROM pg_policy"
                    " WHERE polrelid = to_regclass(quote_ident(%s)) AND starts_with(polname, 'salon_jobs_')",
                    [model._meta.db_table],
                )
                there = {name for (name,) in cursor.fetchall()}
        if leftovers := sorted(there - declared - {OWNERS_POLICY, FAN_OUT_POLICY, SUPPORT_POLICY}):
            raise ConfigurationError(
                f"{self.model} has policies of another declaration ({', '.join(leftovers)}): pass the previous one, "
                f'ProtectModel("{self.model}", …, instead_of=…)'
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

    def apply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        super().unapply(schema_editor, state)

    def unapply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        super().apply(schema_editor, state)

    def describe(self) -> str:
        return f"Release {self.model} from {type(self.constraint).__name__}"


def declarations() -> dict[type[Model], AccessConstraint]:
    """Return the constraint that declares access to each model's table; ``Meta`` takes precedence over operations.

    The models of salon_jobs declare theirs. Reads the files of all migrations, not the database.
    """
    return {**declared_by_operations(), **declared_in_meta()}


def declared_in_meta() -> dict[type[Model], AccessConstraint]:
    return dict(
        constraint.protects(model)
        for model in apps.get_models(include_auto_created=True)
        for constraint in model._meta.constraints
        if isinstance(constraint, AccessConstraint) and not model._meta.proxy  # its table is another model's
    )


def declared_by_operations() -> dict[type[Model], AccessConstraint]:
    """Return the constraints that ``ProtectModel`` gives installed models and no ``ReleaseModel`` removes."""
    graph = MigrationLoader(None, ignore_no_migrations=True).graph
    plan = dict.fromkeys(key for leaf in graph.leaf_nodes() for key in graph.forwards_plan(leaf))
    last = {
        operation.model.lower(): operation
        for key in plan
        for operation in graph.nodes[key].operations
        if isinstance(operation, ProtectModel)
    }
    installed = {model._meta.label_lower: model for model in apps.get_models(include_auto_created=True)}
    return {
        installed[name]: operation.constraint
        for name, operation in last.items()
        if name in installed and not isinstance(operation, ReleaseModel)
    }
