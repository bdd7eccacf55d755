"""Holds migration operations: row-level security for a model, and what salon_jobs installs for itself.

All read SALON_JOBS when they run, so one migration serves a deployment with roles and one with a single database user.
Each is reversible. They take a brief ACCESS EXCLUSIVE lock on the table they name and scan no rows.
"""

from __future__ import annotations

from typing import Any

from django.apps.registry import Apps
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.models import Model
from psycopg import sql

from salon_jobs import sql as statements
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.tenancy import policy

_ADD_JOB_ARGUMENTS = "text, jsonb, uuid, text, smallint, smallint, timestamptz, timestamptz, timestamptz, text, text"
_JOB_TABLES = (
    "salon_jobs_job",
    "salon_jobs_job_error",
    "salon_jobs_process",
    "salon_jobs_cron_entry",
    "salon_jobs_cron_tick",
)
_WEB_UPDATES = (
    "payload", "queue", "priority", "max_attempts", "run_at", "attempts", "expires_at", "tick", "state", "reason",
    "finished_at",
)  # fmt: skip


class _DatabaseOperation(Operation):
    """Changes the database alone; Django's model state stays as it is."""

    reversible = True
    reduces_to_sql = True

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Change no state."""


class EnableStoreRLS(_DatabaseOperation):
    """Show and accept a model's rows for the current store only, FORCEd, for the web and worker roles.

    ``store_field`` is the model's field holding the store: ``store`` or ``store_id``, and ``id`` for the store model.
    With one database user the policy is TO PUBLIC, and the store model itself is left open to its owner (no FORCE),
    since the fan-out function belongs to that user and must list the stores.
    """

    def __init__(self, model_name: str, store_field: str = "store_id") -> None:
        self.model_name = model_name
        self.store_field = store_field

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Create the policy, then switch RLS on."""
        table, column = self._names(app_label, to_state.apps)
        condition = policy.store_condition(column)
        roles = policy.business_roles()
        create = policy.create_policy(policy.POLICY_NAME, table, "ALL", roles, using=condition, check=condition)
        enable = policy.enable(table)
        if conf.roles is None and (conf.store_model or "").lower() == f"{app_label}.{self.model_name}".lower():
            enable = enable[:1]
        _execute(schema_editor, policy.drop_policy(policy.POLICY_NAME, table), create, *enable)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Switch RLS off and drop the policy."""
        table, _ = self._names(app_label, from_state.apps)
        _execute(schema_editor, *policy.disable(table), policy.drop_policy(policy.POLICY_NAME, table))

    def describe(self) -> str:
        """Describe the operation."""
        return f"Enable row-level security by store on {self.model_name}"

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """Return how to write the operation."""
        return (type(self).__name__, [self.model_name], {"store_field": self.store_field})

    def _names(self, app_label: str, apps: Apps) -> tuple[str, str]:
        meta = apps.get_model(app_label, self.model_name)._meta
        field = next(field for field in meta.local_fields if self.store_field in (field.name, field.attname))
        return meta.db_table, str(field.column)


class ProtectJobTables(_DatabaseOperation):
    """Grant each role exactly what it needs on the job tables, under forced RLS; nothing with one database user.

    web: its current store's jobs, by row-level security, and of those only the columns that keys and cancelling change.
    worker: everything. operator: see and change jobs of all stores. migrator: the owner, for data migrations.
    """

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Revoke what default privileges gave, grant, create policies, switch RLS on."""
        if conf.roles is None:
            return
        roles = conf.roles
        runtime = sql.SQL(", ").join(map(sql.Identifier, (roles.web, roles.worker, roles.operator)))
        for table in _JOB_TABLES:
            name = sql.Identifier(table)
            sequence = sql.Literal(f"{table}_id_seq")
            _execute(
                schema_editor,
                sql.SQL("REVOKE ALL ON {} FROM PUBLIC, {}").format(name, runtime),
                sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {}").format(name, sql.Identifier(roles.worker)),
                sql.SQL("GRANT SELECT ON {} TO {}").format(name, sql.Identifier(roles.operator)),
                sql.SQL(
                    "DO $$ BEGIN IF to_regclass({0}) IS NOT NULL THEN EXECUTE format('REVOKE ALL ON SEQUENCE %s FROM "
                    "PUBLIC, {1}', to_regclass({0})); END IF; END $$"
                ).format(sequence, runtime),
                *policy.enable(table),
                policy.create_policy(
                    "salon_jobs_all", table, "ALL", (roles.worker, roles.operator, roles.migrator),
                    using=sql.SQL("true"), check=sql.SQL("true"),
                ),
            )  # fmt: skip
        web, operator = sql.Identifier(roles.web), sql.Identifier(roles.operator)
        columns = sql.SQL(", ").join(map(sql.Identifier, _WEB_UPDATES))
        own = policy.store_condition("store_id")
        to_web = (roles.web,)
        _execute(
            schema_editor,
            sql.SQL("GRANT UPDATE, DELETE ON salon_jobs_job TO {}").format(operator),
            sql.SQL("GRANT DELETE ON salon_jobs_job_error TO {}").format(operator),
            sql.SQL("GRANT SELECT, INSERT ON salon_jobs_job TO {}").format(web),
            sql.SQL("GRANT UPDATE ({}) ON salon_jobs_job TO {}").format(columns, web),
            sql.SQL("GRANT SELECT ON salon_jobs_job_error TO {}").format(web),
            policy.create_policy("salon_jobs_web_select", "salon_jobs_job", "SELECT", to_web, using=own),
            policy.create_policy("salon_jobs_web_insert", "salon_jobs_job", "INSERT", to_web, check=own),
            policy.create_policy("salon_jobs_web_update", "salon_jobs_job", "UPDATE", to_web, using=own, check=own),
            policy.create_policy("salon_jobs_web_select", "salon_jobs_job_error", "SELECT", to_web, using=own),
            # Runtimes look whether migrations are pending; none may rewrite that history.
            sql.SQL("REVOKE ALL ON django_migrations FROM PUBLIC, {}").format(runtime),
            sql.SQL("GRANT SELECT ON django_migrations TO {}").format(runtime),
            # Every trigger of pgtrigger, the host's too, calls it as the role that writes.
            sql.SQL("GRANT EXECUTE ON FUNCTION public._pgtrigger_should_ignore(name) TO {}").format(runtime),
        )

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Drop the policies and the grants."""
        if conf.roles is None:
            return
        runtime = sql.SQL(", ").join(map(sql.Identifier, (conf.roles.web, conf.roles.worker, conf.roles.operator)))
        for table in _JOB_TABLES:
            names = ["salon_jobs_all", "salon_jobs_web_select", "salon_jobs_web_insert", "salon_jobs_web_update"]
            _execute(
                schema_editor,
                *(policy.drop_policy(name, table) for name in names),
                *policy.disable(table),
                sql.SQL("REVOKE ALL ON {} FROM {}").format(sql.Identifier(table), runtime),
            )

    def describe(self) -> str:
        """Describe the operation."""
        return "Protect the job tables: grants and row-level security"


class InstallAddJobFunction(_DatabaseOperation):
    """Install ``salon_jobs_add_job``, by which SQL and the web role add jobs; EXECUTE for web and worker only."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Create or replace the function and set who may call it."""
        schema = sql.Identifier(_schema_of(schema_editor, "salon_jobs_job"))
        text = statements.load("add_job_function")
        rendered = text.replace("__schema__", schema.as_string()).replace("__guc__", conf.store_guc)
        function = sql.SQL("{}.salon_jobs_add_job({})").format(schema, sql.SQL(_ADD_JOB_ARGUMENTS))
        schema_editor.execute(rendered, params=None)
        _execute(schema_editor, sql.SQL("REVOKE ALL ON FUNCTION {} FROM PUBLIC").format(function))
        if conf.roles is not None:
            callers = sql.SQL(", ").join(map(sql.Identifier, (conf.roles.web, conf.roles.worker)))
            _execute(schema_editor, sql.SQL("GRANT EXECUTE ON FUNCTION {} TO {}").format(function, callers))

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Drop the function."""
        _execute(
            schema_editor,
            sql.SQL("DROP FUNCTION IF EXISTS salon_jobs_add_job({})").format(sql.SQL(_ADD_JOB_ARGUMENTS)),
        )

    def describe(self) -> str:
        """Describe the operation."""
        return "Install salon_jobs_add_job"


class InstallFanOutFunction(_DatabaseOperation):
    """Install the one function that lists all stores: no arguments, ids alone, owned by the fan-out role.

    Nothing happens without STORE_MODEL. A project that sets STORE_MODEL later first migrates the store's app, then sets
    it and puts this operation into a migration of its own, after the store's table. Run as the migrator, which may
    SET ROLE to the owner but inherits nothing from it. Raises ConfigurationError when the store's table comes later.
    """

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Create the function as its owner, so that its grants are the owner's to give."""
        if conf.store_model is None:
            return
        meta = _store_model(conf.store_model, to_state)._meta
        key = str(meta.pk.column)
        table = sql.Identifier(_schema_of(schema_editor, meta.db_table), meta.db_table)
        namespace, name = conf.fan_out_function.split(".")
        function = sql.Identifier(namespace, name)
        create = sql.SQL(
            "CREATE OR REPLACE FUNCTION {}() RETURNS TABLE (store_id uuid) LANGUAGE sql STABLE SECURITY DEFINER "
            "SET search_path = pg_catalog AS $body$ SELECT s.{} FROM {} AS s ORDER BY s.{} $body$"
        ).format(function, sql.Identifier(key), table, sql.Identifier(key))
        revoke = sql.SQL("REVOKE ALL ON FUNCTION {}() FROM PUBLIC").format(function)
        if conf.roles is None:
            _execute(schema_editor, create, revoke)
            return
        owner, schema = sql.Identifier(conf.roles.fan_out_owner), sql.Identifier(namespace)
        _execute(
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

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        """Drop the function as its owner and take the owner's rights on the store table away."""
        if conf.store_model is None:
            return
        namespace, name = conf.fan_out_function.split(".")
        drop = sql.SQL("DROP FUNCTION IF EXISTS {}()").format(sql.Identifier(namespace, name))
        if conf.roles is None:
            _execute(schema_editor, drop)
            return
        owner = sql.Identifier(conf.roles.fan_out_owner)
        meta = from_state.apps.get_model(conf.store_model)._meta
        _execute(
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


def _execute(schema_editor: BaseDatabaseSchemaEditor, *composed: sql.Composable) -> None:
    for statement in composed:
        schema_editor.execute(statement.as_string(), params=None)


def _schema_of(schema_editor: BaseDatabaseSchemaEditor, table: str) -> str:
    """Return the schema that holds a table as the search path finds it; the first of that path in ``sqlmigrate``."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce((SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.oid = to_regclass(quote_ident(%s))), current_schema())",
            [table],
        )
        schema: str = cursor.fetchone()[0]
    return schema
