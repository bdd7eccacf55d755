"""Installs the functions that add, claim, end and cancel jobs, and the one that lists the stores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, LiteralString

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState
from django.db.models import Model
from psycopg import sql

from salon_jobs import sql as statements
from salon_jobs.conf import Roles
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.migration_ops.base import DatabaseOperation, execute, schema_of


class _InstallFunction(DatabaseOperation):
    """Installs one function out of ``salon_jobs/sql``; EXECUTE for some of the roles alone."""

    name: ClassVar[str]
    arguments: ClassVar[LiteralString]
    file: ClassVar[str]

    def callers(self, roles: Roles) -> Sequence[str]:
        """Return the roles that may call it."""
        return (roles.worker,)

    def text(self) -> str:
        """Return its definition, without the schema."""
        return statements.load(self.file)

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Create or replace the function and set who may call it."""
        schema = sql.Identifier(schema_of(schema_editor, "salon_jobs_job"))
        rendered = self.text().replace("__schema__", schema.as_string()).replace("__guc__", conf.store_guc)
        schema_editor.execute(rendered, params=None)
        function = sql.SQL("{}.{}").format(schema, self._signature())
        execute(schema_editor, sql.SQL("REVOKE ALL ON FUNCTION {} FROM PUBLIC").format(function))
        if conf.roles is not None:
            callers = sql.SQL(", ").join(map(sql.Identifier, self.callers(conf.roles)))
            execute(schema_editor, sql.SQL("GRANT EXECUTE ON FUNCTION {} TO {}").format(function, callers))

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Drop the function."""
        execute(schema_editor, sql.SQL("DROP FUNCTION IF EXISTS {}").format(self._signature()))

    def describe(self) -> str:
        """Describe the operation."""
        return f"Install {self.name}"

    def _signature(self) -> sql.Composed:
        return sql.SQL("{}({})").format(sql.Identifier(self.name), sql.SQL(self.arguments))


class InstallAddJobFunction(_InstallFunction):
    """Install ``salon_jobs_add_job``, by which SQL and the web role add a job; EXECUTE for web and worker."""

    name = "salon_jobs_add_job"
    arguments = "text, jsonb, uuid, text, smallint, smallint, timestamptz, timestamptz, timestamptz, text, text, text"
    file = "add_job_function"

    def callers(self, roles: Roles) -> Sequence[str]:
        """Return the roles that may call it."""
        return (roles.web, roles.worker)


class InstallAddJobsFunction(InstallAddJobFunction):
    """Install ``salon_jobs_add_jobs``, by which the web role adds many jobs of no store; EXECUTE for web and worker."""

    name = "salon_jobs_add_jobs"
    arguments = "text, text[], text, smallint, smallint, timestamptz, timestamptz, timestamptz, text[]"
    file = "add_jobs_function"


class InstallCancelFunction(_InstallFunction):
    """Install ``salon_jobs_cancel``, by which the web role cancels running jobs of its store; EXECUTE for runtimes."""

    name = "salon_jobs_cancel"
    arguments = "bigint[]"
    file = "cancel_function"

    def callers(self, roles: Roles) -> Sequence[str]:
        """Return the roles that may call it."""
        return (roles.web, roles.worker, roles.operator)


class InstallFinishFunction(_InstallFunction):
    """Install ``salon_jobs_finish``, by which a worker ends a store's job and commits at once; EXECUTE for it alone."""

    name = "salon_jobs_finish"
    arguments = "bigint, integer, bigint, boolean"
    file = "finish_function"


class InstallClaimFunction(_InstallFunction):
    """Install ``salon_jobs_claim``: ``claim_due.sql`` with a plan that is kept; EXECUTE for the worker alone."""

    name = "salon_jobs_claim"
    arguments = "bigint, text[], integer, timestamptz, text[], float8"
    file = "claim_function"

    def text(self) -> str:
        """Return its definition around the statement that it runs."""
        given = ("process_id", "tasks", "room", "now", "queues", "clock")
        statement = re.sub(r"%\((\w+)\)s", lambda name: f"${given.index(name[1]) + 1}", statements.load("claim_due"))
        return super().text().replace("__statement__", statement)


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
        key = str(meta.pk.column)
        table = sql.Identifier(schema_of(schema_editor, meta.db_table), meta.db_table)
        namespace, name = conf.fan_out_function.split(".")
        function = sql.Identifier(namespace, name)
        create = sql.SQL(
            "CREATE OR REPLACE FUNCTION {}() RETURNS TABLE (store_id uuid) LANGUAGE sql STABLE SECURITY DEFINER "
            "SET search_path = pg_catalog AS $body$ SELECT s.{} FROM {} AS s ORDER BY s.{} $body$"
        ).format(function, sql.Identifier(key), table, sql.Identifier(key))
        revoke = sql.SQL("REVOKE ALL ON FUNCTION {}() FROM PUBLIC").format(function)
        if conf.roles is None:
            execute(schema_editor, create, revoke)
            return
        owner, schema = sql.Identifier(conf.roles.fan_out_owner), sql.Identifier(namespace)
        execute(
            schema_editor,
            sql.SQL("GRANT USAGE, CREATE ON SCHEMA {} TO {}").format(schema, owner),
            sql.SQL("GRANT SELECT ({}) ON {} TO {}").format(sql.Identifier(key), table, owner),
            sql.SQL("SET LOCAL ROLE {}").format(owner),
            create,
            revoke,
            sql.SQL("GRANT EXECUTE ON FUNCTION {}() TO {}").format(function, sql.Identifier(conf.roles.worker)),
            sql.SQL("RESET ROLE"),
            sql.SQL("REVOKE CREATE ON SCHEMA {} FROM {}").format(schema, owner),
        )

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
