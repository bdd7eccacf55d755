"""Note which processes have ended, and have a retry give a job's deaths back."""

from typing import ClassVar

from django.db import migrations, models

from salon_jobs.access.operations.access import InstallDeclared, ReinstallFunctions
from salon_jobs.access.operations.base import JobTablesMigration


class Migration(JobTablesMigration):
    """Beside other releases: the functions take the same arguments, and what they do more concerns retries alone."""

    dependencies: ClassVar = [("salon_jobs", "0010_job_changes")]
    operations: ClassVar = [
        migrations.CreateModel(
            name="EndedProcess",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=16)),
                ("hostname", models.CharField(max_length=255)),
                ("pid", models.IntegerField()),
                ("ended_at", models.DateTimeField()),
                ("died", models.BooleanField()),
                ("jobs", models.JSONField(db_default=models.Value([], models.JSONField()))),
            ],
            options={"db_table": "salon_jobs_ended_process"},
        ),
        InstallDeclared(tables=("salon_jobs_ended_process",), functions=()),
        ReinstallFunctions(functions=("salon_jobs_add_jobs", "salon_jobs_note", "salon_jobs_move")),
    ]
