"""Index the public ids of jobs, without making anybody wait."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Built concurrently: it waits for transactions that are open, and nobody waits for it. Can be run again."""

    atomic = False
    dependencies: ClassVar = [("salon_jobs", "0005_public_id")]
    operations: ClassVar = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                # An attempt that ended early leaves an invalid index.
                migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS salon_jobs_job_public_id", migrations.RunSQL.noop),
                migrations.RunSQL(
                    "CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS salon_jobs_job_public_id ON salon_jobs_job (public_id)"
                    " WHERE public_id IS NOT NULL",
                    "DROP INDEX CONCURRENTLY IF EXISTS salon_jobs_job_public_id",
                ),
            ],
            state_operations=[
                migrations.AddConstraint(
                    model_name="job",
                    constraint=models.UniqueConstraint(
                        condition=models.Q(("public_id__isnull", False)),
                        fields=("public_id",),
                        name="salon_jobs_job_public_id",
                    ),
                )
            ],
        )
    ]
