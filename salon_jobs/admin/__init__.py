"""Shows the jobs in Django's admin, through the operator's database role when there is one."""

from salon_jobs.admin.cron_tick import CronTickAdmin
from salon_jobs.admin.fan_out import FanOutAdmin
from salon_jobs.admin.inbox import InboxAdmin
from salon_jobs.admin.job import JobAdmin
from salon_jobs.admin.limit import LimitAdmin
from salon_jobs.admin.process import ProcessAdmin

__all__ = ["CronTickAdmin", "FanOutAdmin", "InboxAdmin", "JobAdmin", "LimitAdmin", "ProcessAdmin"]
