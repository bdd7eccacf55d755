"""Access rights: constraints for models here, migration operations in ``salon_jobs.access.operations``."""

from salon_jobs.access.constraints import DatabaseForeignKey as DatabaseForeignKey
from salon_jobs.access.constraints import ManyToManyIsolation as ManyToManyIsolation
from salon_jobs.access.constraints import MembershipIsolation as MembershipIsolation
from salon_jobs.access.constraints import SameStoreForeignKey as SameStoreForeignKey
from salon_jobs.access.constraints import StoreIsolation as StoreIsolation
from salon_jobs.access.constraints import SystemScope as SystemScope
