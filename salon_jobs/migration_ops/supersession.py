"""Holds the triggers by which a new job supersedes the runs under its key."""

from __future__ import annotations

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState
from psycopg import sql

from salon_jobs.conf import settings as conf
from salon_jobs.migration_ops.base import DatabaseOperation, execute, schema_of
from salon_jobs.tenancy.job_functions import job_function


class InstallSupersession(DatabaseOperation):
    """Install ``salon_jobs_supersede`` and its two triggers; jobs without a key never call it."""

    locks_tables = True

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Create or replace function and triggers."""
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
        """Drop function and triggers."""
        execute(
            schema_editor,
            sql.SQL("DROP TRIGGER IF EXISTS salon_jobs_supersede ON salon_jobs_job"),
            sql.SQL("DROP TRIGGER IF EXISTS salon_jobs_superseded ON salon_jobs_job"),
            sql.SQL("DROP FUNCTION IF EXISTS salon_jobs_supersede()"),
        )

    def describe(self) -> str:
        """Describe the operation."""
        return "Install the triggers by which a new job supersedes the runs under its key"
