"""Declares the tables: columns, constraints, indexes and guarding triggers."""

from salon_jobs.models.fan_out import FanOutRecord
from salon_jobs.models.job import Job, JobError
from salon_jobs.models.limit import Limit
from salon_jobs.models.process import Process
from salon_jobs.models.schedule import CronEntryState, CronTick
from salon_jobs.models.statistics import TaskMinute
from salon_jobs.models.superseded import SupersededRun

__all__ = [
    "CronEntryState",
    "CronTick",
    "FanOutRecord",
    "Job",
    "JobError",
    "Limit",
    "Process",
    "SupersededRun",
    "TaskMinute",
]
