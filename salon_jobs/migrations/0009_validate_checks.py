"""Validate the checks of the last migration: it reads the table, and nobody waits for it."""

from typing import ClassVar

from django.db import migrations

from salon_jobs.access.operations.base import JobTablesMigration


class Migration(JobTablesMigration):
    # An autovacuum gives way to a session that has waited for a second; no other session waits for this lock.
    locks_ms: ClassVar[int] = 5000
    dependencies: ClassVar = [("salon_jobs", "0008_shorter_checks")]
    operations: ClassVar = [
        migrations.RunSQL(
            "ALTER TABLE salon_jobs_job"
            " VALIDATE CONSTRAINT salon_jobs_job_state, VALIDATE CONSTRAINT salon_jobs_job_instants",
            reverse_sql=migrations.RunSQL.noop,
        )
    ]
