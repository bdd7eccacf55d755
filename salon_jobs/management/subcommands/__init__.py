"""Holds what operators do by ``manage.py salon_jobs``: one file for each subcommand, listed here."""

from __future__ import annotations

from typing import Final

from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.management.subcommands.cancel import Cancel
from salon_jobs.management.subcommands.convert import Convert
from salon_jobs.management.subcommands.doctor import Doctor
from salon_jobs.management.subcommands.erase_store import EraseStore
from salon_jobs.management.subcommands.export_store import ExportStore
from salon_jobs.management.subcommands.inbox import Inbox
from salon_jobs.management.subcommands.limit import Limit
from salon_jobs.management.subcommands.list import List
from salon_jobs.management.subcommands.messages import Messages
from salon_jobs.management.subcommands.pause import Pause, Resume
from salon_jobs.management.subcommands.prune import Prune
from salon_jobs.management.subcommands.retry import Retry
from salon_jobs.management.subcommands.show import Show
from salon_jobs.management.subcommands.stats import Stats
from salon_jobs.management.subcommands.top import Top

SUBCOMMANDS: Final[tuple[Subcommand, ...]] = (
    List(), Show(), Cancel(), Retry(), Pause(), Resume(), Limit(), Messages(), Inbox(), Prune(), Stats(), Top(),
    Doctor(), Convert(), ExportStore(), EraseStore(),
)  # fmt: skip
