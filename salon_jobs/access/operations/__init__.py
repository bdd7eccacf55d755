"""Migration operations for models and rows of stores.

All read SALON_JOBS when they run, so one migration serves a deployment with roles and one with a single database user.
They consult the database routers as Django's own operations do. Operations that lock a table ACCESS EXCLUSIVE wait for
it only briefly; ``LocksBriefly`` does the same for a whole migration.
"""

from salon_jobs.access.operations.access import InstallFanOutFunction as InstallFanOutFunction
from salon_jobs.access.operations.access import ProtectModel as ProtectModel
from salon_jobs.access.operations.access import ReleaseModel as ReleaseModel
from salon_jobs.access.operations.base import DropForeignKey as DropForeignKey
from salon_jobs.access.operations.base import LocksBriefly as LocksBriefly
from salon_jobs.access.operations.existing import BackfillStore as BackfillStore
from salon_jobs.access.operations.existing import FillStore as FillStore
from salon_jobs.access.operations.existing import RequireStore as RequireStore
from salon_jobs.access.operations.existing import StopFillingStore as StopFillingStore
from salon_jobs.access.operations.stores import RunForEachStore as RunForEachStore
