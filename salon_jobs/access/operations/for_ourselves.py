"""Migration operations that install the functions, triggers and privileges of salon_jobs itself."""

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
    """Operation that installs one function of ``access.job_tables``, with EXECUTE only for the roles declared there.

    ``file`` is the definition in ``db/sql`` if a later migration replaces it. That later one passes it as ``before``,
    which reversing installs again.
    """

    def __init__(self, name: str, *, file: str | None = None, before: str | None = None) -> None:
        self.name = name
        self.file = file
        self.before = before

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Create or replace the function and set who may call it."""
        for statement in self._function(schema_editor, self.file).create():
            schema_editor.execute(statement, params=None)

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Drop the function, or install the previous definition."""
        function = self._function(schema_editor, self.before)
        for statement in [function.drop()] if self.before is None else function.create():
            schema_editor.execute(statement, params=None)

    def describe(self) -> str:
        """Describe the operation."""
        return f"Install {self.name}"

    def _function(self, schema_editor: BaseDatabaseSchemaEditor, file: str | None) -> FunctionAccess:
        return job_function(self.name, schema_of(schema_editor, "salon_jobs_job"), conf.roles, file=file)


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

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Create the function as its owner, so that the owner can grant EXECUTE on it."""
        if conf.store_model is None:
            return
        meta = _store_model(conf.store_model, state)._meta
        table, key = str(meta.db_table), str(meta.pk.column)
        table_schema = schema_of(schema_editor, table)
        function = fan_out_function(table=table, table_schema=table_schema, key=key, roles=conf.roles)
        create = [*function.create()]
        if conf.roles is not None:
            owner, schema = sql.Identifier(conf.roles.fan_out_owner), sql.Identifier(function.schema)
            execute(
                schema_editor,
                sql.SQL("GRANT USAGE, CREATE ON SCHEMA {} TO {}").format(schema, owner),
                fan_out_reads(key=key, roles=conf.roles).statement(sql.Identifier(table_schema, table)),
                sql.SQL("SET LOCAL ROLE {}").format(owner),
            )
            create += ["RESET ROLE", sql.SQL("REVOKE CREATE ON SCHEMA {} FROM {}").format(schema, owner).as_string()]
        for statement in create:
            schema_editor.execute(statement, params=None)

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Drop the function as its owner and revoke the owner's rights on the store table."""
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
        """Describe the operation."""
        return "Install the function that lists the stores for a fan-out"


def _store_model(name: str, state: ProjectState) -> type[Model]:
    try:
        return state.apps.get_model(name)
    except LookupError as error:
        raise ConfigurationError(
            f"SALON_JOBS['STORE_MODEL'] {name!r} does not exist yet at this point of the migrations: give the "
            "migration that creates it run_before = [('salon_jobs', '0003_fan_out')]"
        ) from error


class InstallGate(DatabaseOperation):
    """Operation that installs ``salon_jobs_hold_gate`` and its trigger on the message table."""

    locks_tables = True

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Create or replace the function and the trigger."""
        name = schema_of(schema_editor, "salon_jobs_message")
        for statement in job_function("salon_jobs_hold_gate", name, conf.roles).create():
            schema_editor.execute(statement, params=None)
        execute(
            schema_editor,
            sql.SQL(
                "CREATE OR REPLACE TRIGGER salon_jobs_hold_gate BEFORE INSERT ON {0}.salon_jobs_message "
                "FOR EACH STATEMENT EXECUTE FUNCTION {0}.salon_jobs_hold_gate()"
            ).format(sql.Identifier(name)),
        )

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Drop the trigger and the function."""
        execute(
            schema_editor,
            sql.SQL("DROP TRIGGER IF EXISTS salon_jobs_hold_gate ON salon_jobs_message"),
            sql.SQL("DROP FUNCTION IF EXISTS salon_jobs_hold_gate()"),
        )

    def describe(self) -> str:
        """Describe the operation."""
        return "Install the trigger by which whoever writes messages holds the relay's gate"


class ProtectTables(DatabaseOperation):
    """Operation that grants each role exactly what it needs on these tables, under forced row-level security.

    Does nothing with one database user.
    """

    locks_tables = True

    def __init__(self, *tables: str) -> None:
        self.tables = tables

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Revoke the default privileges, grant, create the policies, enable RLS."""
        if conf.roles is not None:
            for table in self.tables:
                access = table_access(table, conf.roles)
                execute(schema_editor, *access.give(conf.roles.runtime), *access.protect())

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Drop the policies and the grants."""
        if conf.roles is not None:
            for table in self.tables:
                access = table_access(table, conf.roles)
                execute(schema_editor, *access.unprotect(), *access.take(conf.roles.runtime))

    def describe(self) -> str:
        """Describe the operation."""
        return f"Protect {', '.join(self.tables)}: grants and row-level security"


class ShareWithDjango(DatabaseOperation):
    """Operation that lets the runtime roles use what they need of Django and pgtrigger.

    Does nothing with one database user.
    """

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Grant SELECT on the migration history, and EXECUTE on pgtrigger's function."""
        if conf.roles is None:
            return
        runtime = sql.SQL(", ").join(map(sql.Identifier, conf.roles.runtime))
        execute(
            schema_editor,
            *history_access(conf.roles).give(conf.roles.runtime),
            # Every trigger of pgtrigger, including the host's, calls it as the writing role; its schema is
            # PGTRIGGER_SCHEMA.
            sql.SQL(
                "DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc WHERE proname = "
                "'_pgtrigger_should_ignore' LOOP "
                "EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO {}', f); END LOOP; END $$"
            ).format(runtime),
        )

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Do nothing: by now, other apps' tables rely on it."""

    def describe(self) -> str:
        """Describe the operation."""
        return "Let the runtimes read the history of migrations and call pgtrigger's function"


class InstallSupersession(DatabaseOperation):
    """Operation that installs ``salon_jobs_supersede`` and its two triggers; jobs without a key never call it."""

    locks_tables = True

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Create or replace the function and the triggers."""
        name = schema_of(schema_editor, "salon_jobs_job")
        for statement in job_function("salon_jobs_supersede", name, conf.roles).create():
            schema_editor.execute(statement, params=None)
        schema = sql.Identifier(name)
        execute(
            schema_editor,
            sql.SQL(
                "CREATE OR REPLACE TRIGGER salon_jobs_supersede AFTER INSERT ON {0}.salon_jobs_job FOR EACH ROW "
                "WHEN (NEW.job_key IS NOT NULL) EXECUTE FUNCTION {0}.salon_jobs_supersede()"
            ).format(schema),
            sql.SQL(
                "CREATE OR REPLACE TRIGGER salon_jobs_superseded AFTER UPDATE OF state ON {0}.salon_jobs_job "
                "FOR EACH ROW WHEN (OLD.state = 'running' AND NEW.state = 'queued' AND NEW.job_key IS NOT NULL) "
                "EXECUTE FUNCTION {0}.salon_jobs_supersede()"
            ).format(schema),
        )

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Drop the function and the triggers."""
        execute(
            schema_editor,
            sql.SQL("DROP TRIGGER IF EXISTS salon_jobs_supersede ON salon_jobs_job"),
            sql.SQL("DROP TRIGGER IF EXISTS salon_jobs_superseded ON salon_jobs_job"),
            sql.SQL("DROP FUNCTION IF EXISTS salon_jobs_supersede()"),
        )

    def describe(self) -> str:
        """Describe the operation."""
        return "Install the triggers by which a new job supersedes the runs under its key"
