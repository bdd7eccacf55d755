"""Give jobs an unguessable id by which their results are read, and install the functions that use it."""

from typing import ClassVar

from django.db import migrations, models

from salon_jobs.access.operations import InstallFunction, LocksBriefly


class Migration(LocksBriefly):
    """Processes of the release before go on: what they call and write is as it was."""

    dependencies: ClassVar = [("salon_jobs", "0004_results")]
    operations: ClassVar = [
        migrations.AddField(
            model_name="job",
            name="public_id",
            field=models.UUIDField(help_text="Unguessable id, by which anybody who has it reads the result", null=True),
        ),
        migrations.AlterField(
            model_name="job",
            name="trace",
            field=models.JSONField(
                help_text="What travels with the job: trace headers from enqueueing, and what differs from its task",
                null=True,
            ),
        ),
        InstallFunction("salon_jobs_enqueue"),
        InstallFunction("salon_jobs_get_result"),
    ]
