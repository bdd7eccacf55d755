"""Migration operations: for models and rows of stores, and for what salon_jobs installs for itself.

All read SALON_JOBS when they run, so one migration serves a deployment with roles and one with a single database user,
and consult the database routers as Django's own operations do. Those that lock a table ACCESS EXCLUSIVE wait for it
only briefly: see ``DatabaseOperation``, and for a whole migration ``LocksBriefly``.
"""

from __future__ import annotations

from salon_jobs.access.operations.base import LocksBriefly, SetStorageParameters
from salon_jobs.access.operations.for_hosts import DropForeignKey, ProtectModel, ReleaseModel, RunForEachStore
from salon_jobs.access.operations.for_ourselves import (
    InstallFanOutFunction,
    InstallFunction,
    InstallGate,
    InstallSupersession,
    ProtectTables,
    ShareWithDjango,
)

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
