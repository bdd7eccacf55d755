"""Install the functions that enqueue again: they take how long from now a job expires."""

from typing import ClassVar

from salon_jobs.access.operations.access import ReinstallFunctions
from salon_jobs.access.operations.base import JobTablesMigration


class Migration(JobTablesMigration):
    """In any order with other work: the new text does the same with the same options as the old one, and more."""

    dependencies: ClassVar = [("salon_jobs", "0004_flow_retry")]
    operations: ClassVar = [ReinstallFunctions(functions=("salon_jobs_enqueue", "salon_jobs_add_jobs"))]
