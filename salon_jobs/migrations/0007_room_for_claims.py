"""Leave room in the pages of jobs for the versions that claims make: an update logs less that stays in its page."""

from typing import ClassVar

from django.db import migrations

from salon_jobs.access.operations.base import JobTablesMigration


class Migration(JobTablesMigration):
    """In any order with other work: nobody who reads or writes waits for it. Only new pages leave room."""

    dependencies: ClassVar = [("salon_jobs", "0006_schedule_ticks")]
    operations: ClassVar = [
        migrations.RunSQL(
            "ALTER TABLE salon_jobs_job SET (fillfactor = 50)",
            reverse_sql="ALTER TABLE salon_jobs_job RESET (fillfactor)",
        )
    ]
