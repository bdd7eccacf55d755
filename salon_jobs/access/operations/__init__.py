"""Migration operations: for models and rows of stores, and for what salon_jobs installs for itself.

All read SALON_JOBS when they run, so one migration serves a deployment with roles and one with a single database user,
and consult the database routers as Django's own operations do. Those that lock a table ACCESS EXCLUSIVE wait for it
only briefly: see ``DatabaseOperation``, and for a whole migration ``LocksBriefly``.
"""

from __future__ import annotations

from salon_jobs.access.operations.access import (
    InstallFanOutFunction,
    InstallFunction,
    ProtectModel,
    ProtectTables,
    ReleaseModel,
    ShareWithDjango,
)
from salon_jobs.access.operations.base import DropForeignKey, LocksBriefly, SetStorageParameters
from salon_jobs.access.operations.stores import RunForEachStore

__all__ = [
    "DropForeignKey",
    "InstallFanOutFunction",
    "InstallFunction",
    "LocksBriefly",
    "ProtectModel",
    "ProtectTables",
    "ReleaseModel",
    "RunForEachStore",
    "SetStorageParameters",
    "ShareWithDjango",
]
