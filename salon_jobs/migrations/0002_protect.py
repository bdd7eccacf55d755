"""Grants each role what it needs on the job tables, under row-level security, and installs its functions."""

from typing import ClassVar

from django.db import migrations

from salon_jobs.migration_ops import (
    InstallAddJobFunction,
    InstallAddJobsFunction,
    InstallCancelFunction,
    InstallClaimFunction,
    InstallFinishFunction,
    InstallSupersession,
    ProtectJobTables,
)


class Migration(migrations.Migration):
    """Runs right after the tables are created, before anybody else can use them."""

    dependencies: ClassVar = [("salon_jobs", "0001_initial")]
    operations: ClassVar = [
        ProtectJobTables(),
        InstallAddJobFunction(),
        InstallAddJobsFunction(),
        InstallCancelFunction(),
        InstallClaimFunction(),
        InstallFinishFunction(),
        InstallSupersession(),
    ]
