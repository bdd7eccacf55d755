"""Holds the trigger by which whoever writes messages holds the relay's gate."""

from __future__ import annotations

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState
from psycopg import sql

from salon_jobs.conf import settings as conf
from salon_jobs.migration_ops.base import DatabaseOperation, execute, schema_of
from salon_jobs.tenancy.job_functions import job_function


class InstallGate(DatabaseOperation):
    """Install ``salon_jobs_hold_gate`` and its trigger on the message table."""

    locks_tables = True

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Create or replace function and trigger."""
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
        """Drop trigger and function."""
        execute(
            schema_editor,
            sql.SQL("DROP TRIGGER IF EXISTS salon_jobs_hold_gate ON salon_jobs_message"),
            sql.SQL("DROP FUNCTION IF EXISTS salon_jobs_hold_gate()"),
        )

    def describe(self) -> str:
        """Describe the operation."""
        return "Install the trigger by which whoever writes messages holds the relay's gate"
