"""Holds who may do what on the job tables."""

from __future__ import annotations

from typing import Final

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState
from psycopg import sql

from salon_jobs.conf import Roles
from salon_jobs.conf import settings as conf
from salon_jobs.migration_ops.base import DatabaseOperation, execute
from salon_jobs.tenancy import policy

_JOB_TABLES: Final = (
    "salon_jobs_job",
    "salon_jobs_job_error",
    "salon_jobs_process",
    "salon_jobs_cron_entry",
    "salon_jobs_cron_tick",
    "salon_jobs_superseded",
    "salon_jobs_limit",
)
# What an enqueue gives. Not id, state, lease and what else the workers trust: SQL smuggled into a web process could
# stop them with it, for all stores.
_WEB_INSERTS: Final = (
    "task", "store_id", "queue", "priority", "max_attempts", "run_at", "expires_at", "payload", "tick", "job_key",
    "concurrency_key",
)  # fmt: skip
_WEB_UPDATES: Final = (
    "payload", "queue", "priority", "max_attempts", "run_at", "attempts", "expires_at", "tick", "state", "reason",
    "finished_at", "concurrency_key", "cancel_requested_at",
)  # fmt: skip
_POLICIES: Final = ("salon_jobs_all", "salon_jobs_web_select", "salon_jobs_web_insert", "salon_jobs_web_update")


class ProtectJobTables(DatabaseOperation):
    """Grant each role exactly what it needs on the job tables, under forced RLS; nothing with one database user.

    web: its current store's jobs, by row-level security; it gives what an enqueue gives, changes what keys, cancelling
    and retrying change, never a running job, and leaves none in another state than queued or cancelled.
    worker: everything. operator: see and change jobs of all stores. migrator: the owner, for data migrations.
    """

    locks_tables = True

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Revoke what default privileges gave, grant, create policies, switch RLS on."""
        if conf.roles is None:
            return
        for table in _JOB_TABLES:
            execute(schema_editor, *_close(table, conf.roles))
        execute(schema_editor, *_open_to_web_and_operator(conf.roles), *_shared_with_django(conf.roles))

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Drop the policies and the grants."""
        if conf.roles is None:
            return
        for table in _JOB_TABLES:
            execute(schema_editor, *_reopen(table, conf.roles))

    def describe(self) -> str:
        """Describe the operation."""
        return "Protect the job tables: grants and row-level security"


class ProtectTables(DatabaseOperation):
    """Leave tables that a later migration makes to the worker, and to the operator for reading, as the first ones."""

    locks_tables = True

    def __init__(self, *tables: str) -> None:
        self.tables = tables

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Revoke what default privileges gave, grant, create the policy, switch RLS on; nothing with one user."""
        if conf.roles is not None:
            for table in self.tables:
                execute(schema_editor, *_close(table, conf.roles))

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Drop the policy and the grants."""
        if conf.roles is not None:
            for table in self.tables:
                execute(schema_editor, *_reopen(table, conf.roles))

    def describe(self) -> str:
        """Describe the operation."""
        return f"Protect {', '.join(self.tables)}: grants and row-level security"


def _runtime(roles: Roles) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, (roles.web, roles.worker, roles.operator)))


def _close(table: str, roles: Roles) -> list[sql.Composable]:
    """Return what leaves a table to the worker, and to the operator for reading."""
    name, runtime = sql.Identifier(table), _runtime(roles)
    return [
        sql.SQL("REVOKE ALL ON {} FROM PUBLIC, {}").format(name, runtime),
        sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {}").format(name, sql.Identifier(roles.worker)),
        sql.SQL("GRANT SELECT ON {} TO {}").format(name, sql.Identifier(roles.operator)),
        sql.SQL(
            "DO $$ BEGIN IF to_regclass({0}) IS NOT NULL THEN EXECUTE format('REVOKE ALL ON SEQUENCE %s FROM "
            "PUBLIC, {1}', to_regclass({0})); END IF; END $$"
        ).format(sql.Literal(f"{table}_id_seq"), runtime),
        *policy.enable(table),
        policy.create_policy(
            "salon_jobs_all", table, "ALL", (roles.worker, roles.operator, roles.migrator),
            using=sql.SQL("true"), check=sql.SQL("true"),
        ),
    ]  # fmt: skip


def _reopen(table: str, roles: Roles) -> list[sql.Composable]:
    return [
        *(policy.drop_policy(name, table) for name in _POLICIES),
        *policy.disable(table),
        sql.SQL("REVOKE ALL ON {} FROM {}").format(sql.Identifier(table), _runtime(roles)),
    ]


def _open_to_web_and_operator(roles: Roles) -> list[sql.Composable]:
    web, operator = sql.Identifier(roles.web), sql.Identifier(roles.operator)
    given, changed = (sql.SQL(", ").join(map(sql.Identifier, names)) for names in (_WEB_INSERTS, _WEB_UPDATES))
    own = policy.store_condition("store_id")
    resting = sql.SQL("{} AND state IN ('queued', 'failed', 'cancelled')").format(own)
    changed_to = sql.SQL("{} AND state IN ('queued', 'cancelled')").format(own)
    job, to_web = "salon_jobs_job", (roles.web,)
    return [
        sql.SQL("GRANT UPDATE, DELETE ON salon_jobs_job TO {}").format(operator),
        sql.SQL("GRANT DELETE ON salon_jobs_job_error TO {}").format(operator),
        sql.SQL("GRANT INSERT, UPDATE, DELETE ON salon_jobs_limit TO {}").format(operator),
        sql.SQL("GRANT SELECT ON salon_jobs_job TO {}").format(web),
        sql.SQL("GRANT INSERT ({}) ON salon_jobs_job TO {}").format(given, web),
        sql.SQL("GRANT UPDATE ({}) ON salon_jobs_job TO {}").format(changed, web),
        sql.SQL("GRANT SELECT ON salon_jobs_job_error TO {}").format(web),
        policy.create_policy("salon_jobs_web_select", job, "SELECT", to_web, using=own),
        policy.create_policy("salon_jobs_web_insert", job, "INSERT", to_web, check=own),
        policy.create_policy("salon_jobs_web_update", job, "UPDATE", to_web, using=resting, check=changed_to),
        policy.create_policy("salon_jobs_web_select", "salon_jobs_job_error", "SELECT", to_web, using=own),
    ]


def _shared_with_django(roles: Roles) -> list[sql.Composable]:
    runtime = _runtime(roles)
    return [
        # Runtimes look whether migrations are pending; none may rewrite that history.
        sql.SQL("REVOKE ALL ON django_migrations FROM PUBLIC, {}").format(runtime),
        sql.SQL("GRANT SELECT ON django_migrations TO {}").format(runtime),
        # Every trigger of pgtrigger, the host's too, calls it as the role that writes; PGTRIGGER_SCHEMA says where.
        sql.SQL(
            "DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc WHERE proname = "
            "'_pgtrigger_should_ignore' LOOP "
            "EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO {}', f); END LOOP; END $$"
        ).format(runtime),
    ]
