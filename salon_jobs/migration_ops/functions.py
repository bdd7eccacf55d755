"""Installs the functions that add, claim, end and cancel jobs, and the one that lists the stores."""

from __future__ import annotations

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState
from django.db.models import Model
from psycopg import sql

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.migration_ops.base import DatabaseOperation, execute, schema_of
from salon_jobs.tenancy.functions import FunctionAccess
from salon_jobs.tenancy.job_functions import fan_out_function, fan_out_reads, job_function


class InstallFunction(DatabaseOperation):
    """Install one function of ``tenancy.job_functions``; EXECUTE for the roles declared there alone.

    ``file`` names the definition in ``salon_jobs/sql`` when a later migration replaces it. That later one gives it as
    ``before``, which the way back installs again.
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
        """Drop the function, or install the definition before."""
        function = self._function(schema_editor, self.before)
        for statement in [function.drop()] if self.before is None else function.create():
            schema_editor.execute(statement, params=None)

    def describe(self) -> str:
        """Describe the operation."""
        return f"Install {self.name}"

    def _function(self, schema_editor: BaseDatabaseSchemaEditor, file: str | None) -> FunctionAccess:
        return job_function(self.name, schema_of(schema_editor, "salon_jobs_job"), conf.roles, file=file)


class InstallFanOutFunction(DatabaseOperation):
    """Install the one function that lists all stores: no arguments, ids alone, owned by the fan-out role.

    Nothing happens without STORE_MODEL. A project that sets STORE_MODEL later first migrates the store's app, then sets
    it and puts this operation into a migration of its own, after the store's table. Run as the migrator, which may
    SET ROLE to the owner but inherits nothing from it. Raises ConfigurationError when the store's table comes later.
    """

    def allowed(self, alias: str, app_label: str, state: ProjectState) -> bool:
        """Ask the routers, for the store model too: the function reads its table."""
        if not super().allowed(alias, app_label, state):
            return False
        return conf.store_model is None or self.allow_migrate_model(alias, _store_model(conf.store_model, state))

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Create the function as its owner, so that its grants are the owner's to give."""
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
            create += [
                "RESET ROLE",
                sql.SQL("REVOKE CREATE ON SCHEMA {} FROM {}").format(schema, owner).as_string(),
            ]
        for statement in create:
            schema_editor.execute(statement, params=None)

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Drop the function as its owner and take the owner's rights on the store table away."""
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
