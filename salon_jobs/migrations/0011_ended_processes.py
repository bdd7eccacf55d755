"""Note which processes have ended, and have a retry give a job's deaths back."""

from typing import ClassVar

from django.db import migrations, models
from pgtrigger.compiler import Trigger, UpsertTriggerSql

from salon_jobs.access.operations.access import InstallDeclared, ReinstallFunctions
from salon_jobs.access.operations.base import AddGuard, JobTablesMigration


class Migration(JobTablesMigration):
    """In any order with other work: the trigger acts on retries alone, and the function takes the same arguments."""

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
        AddGuard(
            model_name="job",
            trigger=Trigger(
                name="retry_forgives_deaths",
                sql=UpsertTriggerSql(
                    condition=(
                        "WHEN (NEW.rescues > 0 AND NEW.state = 'queued' AND OLD.state IN ('failed', 'cancelled'))"
                    ),
                    func="NEW.rescues = 0; RETURN NEW;",
                    hash="1f9df0370f234f5f0e6d52723f3614627e1bfbdb",
                    operation='UPDATE OF "state"',
                    pgid="pgtrigger_retry_forgives_deaths_51958",
                    table="salon_jobs_job",
                    when="BEFORE",
                ),
            ),
        ),
        ReinstallFunctions(functions=("salon_jobs_add_jobs",)),
    ]
