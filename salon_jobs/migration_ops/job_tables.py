"""Puts the tables of salon_jobs under what ``tenancy.job_access`` declares of them."""

from __future__ import annotations

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState
from psycopg import sql

from salon_jobs.conf import settings as conf
from salon_jobs.migration_ops.base import DatabaseOperation, execute
from salon_jobs.tenancy.job_access import history_access, table_access


class ProtectTables(DatabaseOperation):
    """Grant each role exactly what it needs on these tables, under forced RLS; nothing with one database user."""

    locks_tables = True

    def __init__(self, *tables: str) -> None:
        self.tables = tables

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Take back what default privileges gave, grant, create the policies, switch RLS on."""
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
    """Let the runtimes use what Django and pgtrigger made and they need; nothing with one database user."""

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Grant SELECT on the history of migrations, and EXECUTE on pgtrigger's function."""
        if conf.roles is None:
            return
        runtime = sql.SQL(", ").join(map(sql.Identifier, conf.roles.runtime))
        execute(
            schema_editor,
            *history_access(conf.roles).give(conf.roles.runtime),
            # Every trigger of pgtrigger, the host's too, calls it as the role that writes; PGTRIGGER_SCHEMA says where.
            sql.SQL(
                "DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc WHERE proname = "
                "'_pgtrigger_should_ignore' LOOP "
                "EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO {}', f); END LOOP; END $$"
            ).format(runtime),
        )

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Leave it: other apps' tables rely on it by now."""

    def describe(self) -> str:
        """Describe the operation."""
        return "Let the runtimes read the history of migrations and call pgtrigger's function"
