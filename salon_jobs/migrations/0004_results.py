"""Keep what jobs return, and which process ran an attempt that failed."""

from typing import ClassVar

from django.db import migrations, models

from salon_jobs.access.operations import LocksBriefly, ProtectTables
from salon_jobs.models.fields import ReadableJSONField


class Migration(LocksBriefly):
    dependencies: ClassVar = [("salon_jobs", "0003_fan_out")]
    operations: ClassVar = [
        migrations.CreateModel(
            name="JobResult",
            fields=[
                ("job_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("public_id", models.UUIDField(null=True, unique=True)),
                ("store_id", models.UUIDField(null=True)),
                ("task", models.CharField(max_length=255)),
                ("queue", models.CharField(max_length=100)),
                ("priority", models.SmallIntegerField()),
                ("payload", ReadableJSONField()),
                ("value", ReadableJSONField(help_text="What the handler returned")),
                ("attempts", models.SmallIntegerField(help_text="Runs, the successful one included")),
                ("worker_id", models.BigIntegerField(help_text="The process that ran it last")),
                ("run_at", models.DateTimeField()),
                ("created_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(help_text="When the successful run was claimed")),
                ("finished_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(help_text="When it may be deleted")),
            ],
            options={
                "db_table": "salon_jobs_job_result",
                "indexes": [models.Index(fields=["expires_at"], name="salon_jobs_job_result_expires")],
            },
        ),
        ProtectTables("salon_jobs_job_result"),
        migrations.AddField(
            model_name="joberror",
            name="worker_id",
            field=models.BigIntegerField(help_text="The process that ran it", null=True),
        ),
        migrations.AddField(
            model_name="joberror",
            name="started_at",
            field=models.DateTimeField(help_text="When the attempt was claimed", null=True),
        ),
    ]
