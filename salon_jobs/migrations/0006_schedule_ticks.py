"""Have Django delete the ticks of a schedule with it, and a run by hand keep the state of the last tick's job."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models

from salon_jobs.access.operations.access import ReinstallFunctions
from salon_jobs.access.operations.base import JobTablesMigration


class Migration(JobTablesMigration):
    """In any order with other work: no column changes, and the function takes the same arguments."""

    dependencies: ClassVar = [("salon_jobs", "0005_expires_in")]
    operations: ClassVar = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveConstraint(model_name="scheduletick", name="salon_jobs_schedule_tick_number"),
                migrations.RemoveField(model_name="scheduletick", name="schedule_id"),
                migrations.AddField(
                    model_name="scheduletick",
                    name="schedule",
                    field=models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        default=0,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="salon_jobs.schedule",
                    ),
                    preserve_default=False,
                ),
                migrations.AddConstraint(
                    model_name="scheduletick",
                    constraint=models.UniqueConstraint(
                        fields=("schedule", "number"), name="salon_jobs_schedule_tick_number"
                    ),
                ),
            ]
        ),
        ReinstallFunctions(functions=("salon_jobs_change_schedules",)),
    ]
