"""Note which processes have ended, and which of them died."""

from typing import ClassVar

from django.db import migrations, models

from salon_jobs.access.operations.access import InstallDeclared
from salon_jobs.access.operations.base import JobTablesMigration


class Migration(JobTablesMigration):
    """In any order with other work: processes of the release before write no such rows."""

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
    ]
