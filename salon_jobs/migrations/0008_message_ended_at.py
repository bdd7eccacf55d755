"""Add ``ended_at`` to messages: ``sent_at`` becomes the time of the publish alone, whichever release writes."""

from typing import ClassVar

import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

from salon_jobs.access.operations import InstallFunction, LocksBriefly


class Migration(LocksBriefly):
    """Locks the message table for an instant. Migration 0009 updates the rows that ended before."""

    dependencies: ClassVar = [("salon_jobs", "0007_queue_minute")]
    operations: ClassVar = [
        migrations.AddField(
            model_name="message",
            name="ended_at",
            field=models.DateTimeField(help_text="When it failed or was skipped", null=True),
        ),
        migrations.AlterField(
            model_name="message",
            name="sent_at",
            field=models.DateTimeField(help_text="When it was published; null unless it was", null=True),
        ),
        InstallFunction("salon_jobs_skip_messages", before="skip_messages_function_0006"),
        pgtrigger.migrations.AddTrigger(
            model_name="message",
            trigger=pgtrigger.compiler.Trigger(
                name="times_fit_status",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    condition="WHEN ((NEW.status = 'published') <> (NEW.sent_at IS NOT NULL) OR (NEW.status IN ('failed', 'skipped')) <> (NEW.ended_at IS NOT NULL))",
                    func="\nIF NEW.status = 'published' THEN\n    NEW.sent_at := coalesce(NEW.sent_at, clock_timestamp());\n    NEW.ended_at := NULL;\nELSIF NEW.status = 'pending' THEN\n    NEW.sent_at := NULL;\n    NEW.ended_at := NULL;\nELSE\n    NEW.ended_at := coalesce(NEW.sent_at, NEW.ended_at, clock_timestamp());\n    NEW.sent_at := NULL;\nEND IF;\nRETURN NEW;\n",
                    hash="9a653c14768911bd73146aa3ada7e56847641ec6",
                    operation='UPDATE OF "status"',
                    pgid="pgtrigger_times_fit_status_cbb79",
                    table="salon_jobs_message",
                    when="BEFORE",
                ),
            ),
        ),
    ]
