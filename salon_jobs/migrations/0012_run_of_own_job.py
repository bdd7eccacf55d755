"""Have a run of a schedule name no job of another store, whose outcome its history would show."""

from typing import ClassVar

from salon_jobs.access.operations.access import ReinstallFunctions
from salon_jobs.access.operations.base import JobTablesMigration


class Migration(JobTablesMigration):
    """In any order with other work: the function takes the same arguments."""

    dependencies: ClassVar = [("salon_jobs", "0011_ended_processes")]
    operations: ClassVar = [ReinstallFunctions(functions=("salon_jobs_change_schedules",))]
