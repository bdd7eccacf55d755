"""Keep runs of schedules by hand until they have ended, and have a resumed schedule fire at its own instants alone."""

from typing import ClassVar

from salon_jobs.access.operations.access import ReinstallFunctions
from salon_jobs.access.operations.base import JobTablesMigration


class Migration(JobTablesMigration):
    """In any order with other work: the function takes the same arguments."""

    dependencies: ClassVar = [("salon_jobs", "0012_run_of_own_job")]
    operations: ClassVar = [ReinstallFunctions(functions=("salon_jobs_change_schedules",))]
