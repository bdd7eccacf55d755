"""Holds migration operations: row-level security for others' models, and what salon_jobs installs for itself.

All read SALON_JOBS when they run, so one migration serves a deployment with roles and one with a single database user.
Each is reversible, asks the database routers as Django's own operations do, and scans no rows. Those that lock a table
ACCESS EXCLUSIVE hold it briefly and wait for it briefly: see ``DatabaseOperation``, and for a whole migration
``LocksBriefly``.
"""

from salon_jobs.migration_ops.each_store import RunForEachStore
from salon_jobs.migration_ops.foreign_key import DropForeignKey
from salon_jobs.migration_ops.functions import InstallFanOutFunction, InstallFunction
from salon_jobs.migration_ops.job_tables import ProtectTables, ShareWithDjango
from salon_jobs.migration_ops.migration import LocksBriefly
from salon_jobs.migration_ops.protect_model import ProtectModel, ReleaseModel
from salon_jobs.migration_ops.storage import SetStorageParameters
from salon_jobs.migration_ops.supersession import InstallSupersession

__all__ = [
    "DropForeignKey",
    "InstallFanOutFunction",
    "InstallFunction",
    "InstallSupersession",
    "LocksBriefly",
    "ProtectModel",
    "ProtectTables",
    "ReleaseModel",
    "RunForEachStore",
    "SetStorageParameters",
    "ShareWithDjango",
]
