"""Let one job be enqueued when others have ended."""

from typing import ClassVar

from django.db import migrations, models
from django.db.models.functions import Now

from salon_jobs.access.operations import InstallFunction, LocksBriefly, ProtectTables
from salon_jobs.models.fields import ReadableJSONField


class Migration(LocksBriefly):
    """Processes of the release before go on: the triggers count what they end, too."""

    dependencies: ClassVar = [("salon_jobs", "0007_paused_by")]
    operations: ClassVar = [
        migrations.CreateModel(
            name="FollowUp",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("remaining", models.IntegerField(help_text="Jobs that have not ended")),
                ("task", models.CharField(max_length=255)),
                ("store_id", models.UUIDField(null=True)),
                ("queue", models.CharField(max_length=100)),
                ("priority", models.SmallIntegerField()),
                ("max_attempts", models.SmallIntegerField()),
                ("payload", ReadableJSONField()),
                ("job_key", models.CharField(max_length=512, null=True)),
                ("job_key_mode", models.CharField(max_length=16)),
                ("concurrency_key", models.CharField(max_length=255, null=True)),
                ("trace", models.JSONField(help_text="Trace headers from enqueueing", null=True)),
                ("created_at", models.DateTimeField(db_default=Now())),
            ],
            options={"db_table": "salon_jobs_follow_up"},
        ),
        ProtectTables("salon_jobs_follow_up"),
        migrations.AddField(
            model_name="job",
            name="follow_up_id",
            field=models.BigIntegerField(help_text="The follow-up that waits for its end", null=True),
        ),
        InstallFunction("salon_jobs_add_follow_up"),
        InstallFunction("salon_jobs_follow_up"),
    ]
