"""Jobs and messages in Django's admin, read through the operator's database role if there is one."""

from __future__ import annotations

from salon_jobs.admin.dashboard import DashboardAdmin
from salon_jobs.admin.inbox import InboxAdmin
from salon_jobs.admin.job import JobAdmin
from salon_jobs.admin.limit import LimitAdmin
from salon_jobs.admin.message import BlockedAggregateAdmin, DestinationAdmin, MessageAdmin, PartitionAdmin, ReplayAdmin
from salon_jobs.admin.process import CronTickAdmin, FanOutAdmin, ProcessAdmin

__all__ = [
    "BlockedAggregateAdmin",
    "CronTickAdmin",
    "DashboardAdmin",
    "DestinationAdmin",
    "FanOutAdmin",
    "InboxAdmin",
    "JobAdmin",
    "LimitAdmin",
    "MessageAdmin",
    "PartitionAdmin",
    "ProcessAdmin",
    "ReplayAdmin",
]
