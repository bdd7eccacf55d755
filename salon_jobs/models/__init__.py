"""Declares the tables: columns, constraints, indexes and guarding triggers."""

from salon_jobs.models.dashboard import Dashboard
from salon_jobs.models.fan_out import FanOutRecord
from salon_jobs.models.inbox import InboxMessage
from salon_jobs.models.job import Job, JobError
from salon_jobs.models.limit import Limit
from salon_jobs.models.message import BlockedAggregate, DestinationState, Message, RelayPartition, Replay
from salon_jobs.models.process import Process
from salon_jobs.models.schedule import CronEntryState, CronTick
from salon_jobs.models.statistics import QueueMinute, TaskMinute
from salon_jobs.models.superseded import SupersededRun

__all__ = [
    "BlockedAggregate",
    "CronEntryState",
    "CronTick",
    "Dashboard",
    "DestinationState",
    "FanOutRecord",
    "InboxMessage",
    "Job",
    "JobError",
    "Limit",
    "Message",
    "Process",
    "QueueMinute",
    "RelayPartition",
    "Replay",
    "SupersededRun",
    "TaskMinute",
]
