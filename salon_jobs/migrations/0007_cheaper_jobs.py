"""Have jobs log less: leave room in pages for the versions that claims make, and add jobs without keys plainly."""

from typing import ClassVar

from django.db import migrations

from salon_jobs.access.operations.access import ReinstallFunctions
from salon_jobs.access.operations.base import JobTablesMigration


class Migration(JobTablesMigration):
    """In any order with other work: only new pages leave room, and the function does what the old one does."""

    # An autovacuum gives way to a session that has waited for a second; no other session waits for this lock.
    locks_ms: ClassVar[int] = 5000
    dependencies: ClassVar = [("salon_jobs", "0006_schedule_ticks")]
    operations: ClassVar = [
        migrations.RunSQL(
            "ALTER TABLE salon_jobs_job SET (fillfactor = 50)",
            reverse_sql="ALTER TABLE salon_jobs_job RESET (fillfactor)",
        ),
        ReinstallFunctions(functions=("salon_jobs_add_jobs",)),
    ]
