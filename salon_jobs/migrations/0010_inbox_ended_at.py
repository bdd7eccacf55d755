"""Add the time at which an operator dismissed an incoming message."""

from typing import ClassVar

from django.db import migrations, models

from salon_jobs.access.operations import LocksBriefly


class Migration(LocksBriefly):
    """Locks the inbox for an instant."""

    dependencies: ClassVar = [("salon_jobs", "0009_message_ended_at_rows")]
    operations: ClassVar = [
        migrations.AddField(
            model_name="inboxmessage",
            name="ended_at",
            field=models.DateTimeField(help_text="When an operator dismissed it", null=True),
        )
    ]
