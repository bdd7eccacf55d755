"""Shows jobs and messages in Django's admin, through the operator's database role when there is one."""

from salon_jobs.admin.blocked_aggregate import BlockedAggregateAdmin
from salon_jobs.admin.cron_tick import CronTickAdmin
from salon_jobs.admin.dashboard import DashboardAdmin
from salon_jobs.admin.destination import DestinationAdmin
from salon_jobs.admin.fan_out import FanOutAdmin
from salon_jobs.admin.inbox import InboxAdmin
from salon_jobs.admin.job import JobAdmin
from salon_jobs.admin.limit import LimitAdmin
from salon_jobs.admin.message import MessageAdmin
from salon_jobs.admin.partition import PartitionAdmin
from salon_jobs.admin.process import ProcessAdmin
from salon_jobs.admin.replay import ReplayAdmin

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
