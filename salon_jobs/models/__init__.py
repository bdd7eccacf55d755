"""The tables: columns, constraints, indexes and guarding triggers."""

from __future__ import annotations

from salon_jobs.models.flow import FlowEdge, FlowMember, FlowRecord, JobChange
from salon_jobs.models.job import FanOutRecord, FollowUp, Job, JobError, JobProgress, JobResult, JobStep, SupersededRun
from salon_jobs.models.message import BlockedAggregate, DestinationState, InboxMessage, Message, RelayPartition, Replay
from salon_jobs.models.ordered import OrderedJob, OrderedKey
from salon_jobs.models.process import CronEntryState, CronTick, Dashboard, Limit, Process, QueueMinute, TaskMinute
from salon_jobs.models.schedule import Schedule, ScheduleTick

__all__ = [
    "BlockedAggregate",
    "CronEntryState",
    "CronTick",
    "Dashboard",
    "DestinationState",
    "FanOutRecord",
    "FlowEdge",
    "FlowMember",
    "FlowRecord",
    "FollowUp",
    "InboxMessage",
    "Job",
    "JobChange",
    "JobError",
    "JobProgress",
    "JobResult",
    "JobStep",
    "Limit",
    "Message",
    "OrderedJob",
    "OrderedKey",
    "Process",
    "QueueMinute",
    "RelayPartition",
    "Replay",
    "Schedule",
    "ScheduleTick",
    "SupersededRun",
    "TaskMinute",
]
