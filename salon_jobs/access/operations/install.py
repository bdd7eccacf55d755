"""Operations that install the functions, triggers and privileges of salon_jobs itself."""

from __future__ import annotations

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState
from django.db.models import Model
from psycopg import sql

from salon_jobs.access.functions import FunctionAccess
from salon_jobs.access.job_tables import fan_out_function, fan_out_reads, history_access, job_function, table_access
from salon_jobs.access.operations.base import DatabaseOperation, execute, schema_of
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError


class InstallFunction(DatabaseOperation):
    """Operation that installs one function of ``access.job_tables`` and its triggers, which lock their tables."""

    locks_tables = True

    def __init__(self, name: str) -> None:
        self.name = name

    def apply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        execute(schema_editor, *self._function(schema_editor).create())

    def unapply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        execute(schema_editor, *self._function(schema_editor).drop())

    def describe(self) -> str:
        return f"Install {self.name}"

    def _function(self, schema_editor: BaseDatabaseSchemaEditor) -> FunctionAccess:
        return job_function(self.name, schema_of(schema_editor, "salon_jobs_job"), conf.roles)


class InstallFanOutFunction(DatabaseOperation):
    """Operation that installs the function that lists all stores: no arguments, only ids, owned by the fan-out role.

    Does nothing without STORE_MODEL. A project that sets STORE_MODEL later first migrates the store's app, then sets it
    and puts this operation into a migration of its own, after the store's table. Run as the migrator, which may SET
    ROLE to the owner but inherits nothing from it. Raises ConfigurationError when the store's table is created later.
    """

    def allowed(self, alias: str, app_label: str, state: ProjectState) -> bool:
        """Ask the routers, for the store model too: the function reads its table."""
        if not super().allowed(alias, app_label, state):
            return False
        return conf.store_model is None or self.allow_migrate_model(alias, _store_model(conf.store_model, state))

    def apply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Create the function as its owner, so that the owner can grant EXECUTE on it."""
        if conf.store_model is None:
            return
        meta = _store_model(conf.store_model, state)._meta
        table, key = str(meta.db_table), str(meta.pk.column)
        table_schema = schema_of(schema_editor, table)
        function = fan_out_function(table=table, table_schema=table_schema, key=key, roles=conf.roles)
        if conf.roles is None:
            execute(schema_editor, *function.create())
            return
        owner, schema = sql.Identifier(conf.roles.fan_out_owner), sql.Identifier(function.schema)
        execute(
            schema_editor,
            sql.SQL("GRANT USAGE, CREATE ON SCHEMA {} TO {}").format(schema, owner),
            fan_out_reads(key=key, roles=conf.roles).statement(sql.Identifier(table_schema, table)),
            sql.SQL("SET LOCAL ROLE {}").format(owner),
            *function.create(),
            "RESET ROLE",
            sql.SQL("REVOKE CREATE ON SCHEMA {} FROM {}").format(schema, owner),
        )

    def unapply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        if conf.store_model is None:
            return
        namespace, name = conf.fan_out_function.split(".")
        drop = sql.SQL("DROP FUNCTION IF EXISTS {}()").format(sql.Identifier(namespace, name))
        if conf.roles is None:
            execute(schema_editor, drop)
            return
        owner = sql.Identifier(conf.roles.fan_out_owner)
        meta = state.apps.get_model(conf.store_model)._meta
        execute(
            schema_editor,
            sql.SQL("SET LOCAL ROLE {}").format(owner),
            drop,
            sql.SQL("RESET ROLE"),
            sql.SQL("REVOKE ALL ON {} FROM {}").format(sql.Identifier(meta.db_table), owner),
            sql.SQL("REVOKE SELECT ({}) ON {} FROM {}").format(
                sql.Identifier(str(meta.pk.column)), sql.Identifier(meta.db_table), owner
            ),
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


class ProtectTables(DatabaseOperation):
    """Operation that grants each role exactly what it needs on these tables, under forced row-level security.

    Does nothing with one database user.
    """

    locks_tables = True

    def __init__(self, *tables: str) -> None:
        self.tables = tables

    def apply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        if conf.roles is not None:
            for table in self.tables:
                access = table_access(table, conf.roles)
                execute(schema_editor, *access.grant(conf.roles.runtime), *access.protect())

    def unapply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        if conf.roles is not None:
            for table in self.tables:
                access = table_access(table, conf.roles)
                execute(schema_editor, *access.unprotect(), *access.revoke(conf.roles.runtime))

    def describe(self) -> str:
        return f"Protect {', '.join(self.tables)}: grants and row-level security"


class ShareWithDjango(DatabaseOperation):
    """Operation that lets the runtime roles use what they need of Django and pgtrigger.

    Does nothing with one database user.
    """

    def apply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        if conf.roles is None:
            return
        runtime = sql.SQL(", ").join(map(sql.Identifier, conf.roles.runtime))
        execute(
            schema_editor,
            *history_access(conf.roles).grant(conf.roles.runtime),
            # Every trigger of pgtrigger, including the host's, calls it as the writing role; its schema is
            # PGTRIGGER_SCHEMA.
            sql.SQL(
                "DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc WHERE proname = "
                "'_pgtrigger_should_ignore' LOOP "
                "EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO {}', f); END LOOP; END $$"
            ).format(runtime),
        )

    def unapply(self, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Do nothing: by now, other apps' tables rely on it."""

    def describe(self) -> str:
        return "Let the runtimes read the history of migrations and call pgtrigger's function"
