"""Add the statistics by task and minute, and set the vacuum and storage parameters of the hot tables."""

from typing import ClassVar

from django.db import migrations, models

from salon_jobs.access.operations import LocksBriefly, ProtectTables, SetStorageParameters
from salon_jobs.models.statistics import IntegerArrayField


class Migration(LocksBriefly):
    """Changes no existing row."""

    dependencies: ClassVar = [("salon_jobs", "0004_fan_out_record")]
    operations: ClassVar = [
        migrations.CreateModel(
            name="TaskMinute",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "minute", "task", "queue", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("minute", models.DateTimeField()),
                ("task", models.CharField(max_length=255)),
                ("queue", models.CharField(max_length=100)),
                ("succeeded", models.IntegerField()),
                ("retried", models.IntegerField()),
                ("failed", models.IntegerField()),
                ("cancelled", models.IntegerField()),
                ("snoozed", models.IntegerField()),
                ("released", models.IntegerField(help_text="Runs that a shutdown interrupted")),
                (
                    "rescued",
                    models.IntegerField(help_text="Jobs queued again after their process died, started or not"),
                ),
                ("duration_s", models.FloatField(help_text="Sum over the runs that ended by themselves")),
                ("durations", IntegerArrayField()),
                ("wait_s", models.FloatField(help_text="Sum of how long they had been due")),
                ("waits", IntegerArrayField()),
            ],
            options={"db_table": "salon_jobs_task_minute"},
        ),
        ProtectTables("salon_jobs_task_minute"),
        # Each row of the current minute is updated by every process every few seconds, and never afterwards. No indexed
        # column changes: with free space in its page such an update touches no index and leaves nothing to vacuum.
        SetStorageParameters("salon_jobs_task_minute", {"fillfactor": 70}),
        # A job is three row versions within seconds: inserted, claimed, deleted. By the server's defaults a table that
        # once held a million rows is vacuumed after 200,000 dead ones, and deliberately slowly; until then each claim
        # reads past them. So: a fixed number, and at full speed. The TOAST table holds the long payloads. fillfactor
        # stays at 100: a claim changes indexed columns, so free space in the page would not make it cheaper.
        SetStorageParameters(
            "salon_jobs_job",
            {
                "autovacuum_vacuum_scale_factor": 0,
                "autovacuum_vacuum_threshold": 5000,
                "autovacuum_vacuum_cost_delay": 0,
                "autovacuum_analyze_scale_factor": 0,
                "autovacuum_analyze_threshold": 5000,
                "toast.autovacuum_vacuum_scale_factor": 0,
                "toast.autovacuum_vacuum_threshold": 5000,
                "toast.autovacuum_vacuum_cost_delay": 0,
            },
        ),
    ]
