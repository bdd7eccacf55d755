"""Install the function that moves flows again: retried jobs wait for all their predecessors that will end."""

from typing import ClassVar

from salon_jobs.access.operations.access import ReinstallFunctions
from salon_jobs.access.operations.base import JobTablesMigration


class Migration(JobTablesMigration):
    """In any order with other work: the new text does the same with the same tables as the old one, and more."""

    dependencies: ClassVar = [("salon_jobs", "0003_fan_out")]
    operations: ClassVar = [ReinstallFunctions(functions=("salon_jobs_move_flow",))]
