"""Subcommands of ``manage.py salon_jobs``, listed here: one file for each group."""

from __future__ import annotations

from typing import Final

from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.management.subcommands.cron import Cron
from salon_jobs.management.subcommands.database import Convert, Doctor
from salon_jobs.management.subcommands.inbox import Inbox
from salon_jobs.management.subcommands.jobs import Cancel, List, Retry, Show
from salon_jobs.management.subcommands.limits import Limit, Pause, Resume
from salon_jobs.management.subcommands.messages import Messages
from salon_jobs.management.subcommands.statistics import Prune, Stats
from salon_jobs.management.subcommands.stores import EraseStore, ExportStore
from salon_jobs.management.subcommands.top import Top

SUBCOMMANDS: Final[tuple[Subcommand, ...]] = (
    List(),
    Show(),
    Cancel(),
    Retry(),
    Pause(),
    Resume(),
    Limit(),
    Cron(),
    Messages(),
    Inbox(),
    Prune(),
    Stats(),
    Top(),
    Doctor(),
    Convert(),
    ExportStore(),
    EraseStore(),
)
