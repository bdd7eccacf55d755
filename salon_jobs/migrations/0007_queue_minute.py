"""Add the history of waiting jobs, and the permission to see the dashboard that plots it."""

from typing import ClassVar

from django.db import migrations, models

from salon_jobs.access.operations import LocksBriefly, ProtectTables


class Migration(LocksBriefly):
    """Changes no existing table."""

    dependencies: ClassVar = [("salon_jobs", "0006_outbox")]
    operations: ClassVar = [
        migrations.CreateModel(
            name="QueueMinute",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "minute", "queue", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("minute", models.DateTimeField()),
                ("queue", models.CharField(max_length=100)),
                ("waiting", models.BigIntegerField(help_text="Jobs that are queued, due or not")),
                ("due", models.BigIntegerField()),
                ("oldest_due_s", models.FloatField(help_text="How long the oldest due job had been due")),
                ("exact", models.BooleanField(help_text="Whether all were counted; else it is an estimate")),
            ],
            options={"db_table": "salon_jobs_queue_minute"},
        ),
        ProtectTables("salon_jobs_queue_minute"),
        migrations.CreateModel(
            name="Dashboard",
            fields=[],
            options={
                "verbose_name": "dashboard",
                "verbose_name_plural": "dashboard",
                "proxy": True,
                "default_permissions": ("view",),
                "indexes": [],
                "constraints": [],
            },
            bases=("salon_jobs.process",),
        ),
    ]
