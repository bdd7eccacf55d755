"""Grant each role its rights on the job tables, under row-level security, and install the functions."""

from typing import ClassVar

from salon_jobs.access.operations import (
    InstallFunction,
    InstallSupersession,
    LocksBriefly,
    ProtectTables,
    ShareWithDjango,
)


class Migration(LocksBriefly):
    """Right after the tables are created, before anybody else can use them."""

    dependencies: ClassVar = [("salon_jobs", "0001_initial")]
    operations: ClassVar = [
        ProtectTables(
            "salon_jobs_job",
            "salon_jobs_job_error",
            "salon_jobs_process",
            "salon_jobs_cron_entry",
            "salon_jobs_cron_tick",
            "salon_jobs_superseded",
            "salon_jobs_limit",
        ),
        ShareWithDjango(),
        InstallFunction("salon_jobs_add_job"),
        InstallFunction("salon_jobs_add_jobs"),
        InstallFunction("salon_jobs_cancel"),
        InstallFunction("salon_jobs_claim"),
        InstallFunction("salon_jobs_finish"),
        InstallSupersession(),
    ]
