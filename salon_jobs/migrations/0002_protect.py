"""Grant each role its rights on the tables under row-level security, and install functions, triggers and parameters."""

from typing import ClassVar

from salon_jobs.access.operations.access import InstallDeclared
from salon_jobs.access.operations.base import JobTablesMigration


class Migration(JobTablesMigration):
    """Right after the tables are created, before anybody else can use them."""

    dependencies: ClassVar = [("salon_jobs", "0001_initial")]
    operations: ClassVar = [InstallDeclared()]
