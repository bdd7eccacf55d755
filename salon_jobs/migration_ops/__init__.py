"""Holds migration operations: for models and rows of stores, and what salon_jobs installs for itself.

All read SALON_JOBS when they run, so one migration serves a deployment with roles and one with a single database user,
and ask the database routers as Django's own operations do. Those that lock a table ACCESS EXCLUSIVE wait for it only
briefly: see ``DatabaseOperation``, and for a whole migration ``LocksBriefly``.
"""

from salon_jobs.migration_ops.each_store import RunForEachStore
from salon_jobs.migration_ops.foreign_key import DropForeignKey
from salon_jobs.migration_ops.functions import InstallFanOutFunction, InstallFunction
from salon_jobs.migration_ops.gate import InstallGate
from salon_jobs.migration_ops.job_tables import ProtectTables, ShareWithDjango
from salon_jobs.migration_ops.migration import LocksBriefly
from salon_jobs.migration_ops.protect_model import ProtectModel, ReleaseModel
from salon_jobs.migration_ops.storage import SetStorageParameters
from salon_jobs.migration_ops.supersession import InstallSupersession

__all__ = [
    "DropForeignKey",
    "InstallFanOutFunction",
    "InstallFunction",
    "InstallGate",
    "InstallSupersession",
    "LocksBriefly",
    "ProtectModel",
    "ProtectTables",
    "ReleaseModel",
    "RunForEachStore",
    "SetStorageParameters",
    "ShareWithDjango",
]
