"""All subcommands of ``salon_jobs`` except the services. Importing this module loads rich."""

from __future__ import annotations

from typing import Final

from salon_jobs.management.subcommands import Subcommand
from salon_jobs.management.subcommands.cron import Cron
from salon_jobs.management.subcommands.database import Convert, Doctor
from salon_jobs.management.subcommands.inbox import Inbox
from salon_jobs.management.subcommands.jobs import JOBS
from salon_jobs.management.subcommands.limits import LIMITS
from salon_jobs.management.subcommands.messages import Messages
from salon_jobs.management.subcommands.schedules import ChangeSchedules
from salon_jobs.management.subcommands.statistics import Prune, Stats
from salon_jobs.management.subcommands.status import Status
from salon_jobs.management.subcommands.stores import EraseStore, ExportStore
from salon_jobs.management.subcommands.tasks import Tasks
from salon_jobs.management.subcommands.top import Top

SUBCOMMANDS: Final[tuple[Subcommand, ...]] = (
    Status(),
    *JOBS,
    *LIMITS,
    Cron(),
    ChangeSchedules(),
    Messages(),
    Inbox(),
    Prune(),
    Stats(),
    Tasks(),
    Top(),
    Doctor(),
    Convert(),
    ExportStore(),
    EraseStore(),
)
