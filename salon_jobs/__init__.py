"""Background jobs, tenant context and cron for Django on PostgreSQL; import the public names from here.

Names are resolved at first use, because task modules import models and Django's apps must be ready for that.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from salon_jobs.core.backoff import Backoff
    from salon_jobs.core.messages import OperatedMessage
    from salon_jobs.core.outcomes import Discard, Snooze
    from salon_jobs.core.records import EnqueueResult, FanOutProgress, FanOutResult, JobHandle
    from salon_jobs.jobs.current import current_job
    from salon_jobs.jobs.enqueue import enqueue_job
    from salon_jobs.jobs.fan_out import fan_out, fan_out_progress
    from salon_jobs.jobs.limits import limit, pause, resume
    from salon_jobs.jobs.operate import Operated, cancel_jobs, change_jobs, discard_jobs, retry_jobs
    from salon_jobs.jobs.options import FanOut
    from salon_jobs.jobs.task import Task, store_task, task
    from salon_jobs.outbox.emit import Draft, emit, emit_many
    from salon_jobs.outbox.operate import OperatedAggregate, retry_messages, skip_messages, unpark
    from salon_jobs.outbox.pause import pause_destination, resume_destination
    from salon_jobs.outbox.replay import MessageCriteria, Replayed, replay_messages
    from salon_jobs.schedule.entries import cron
    from salon_jobs.tenancy.block import current_store_id
    from salon_jobs.tenancy.carry import carry_store
    from salon_jobs.tenancy.constraints import MembershipIsolation, StoreIsolation, SystemScope
    from salon_jobs.tenancy.context import tenant_context
    from salon_jobs.tenancy.memberships import stores_of
    from salon_jobs.tenancy.middleware import without_store
    from salon_jobs.tenancy.resolvers import StoreResolver, SubdomainResolver
    from salon_jobs.tenancy.same_store import SameStoreForeignKey
    from salon_jobs.tenancy.session import reset_store

_HOMES = {
    "Backoff": "core.backoff",
    "Discard": "core.outcomes",
    "Draft": "outbox.emit",
    "EnqueueResult": "core.records",
    "FanOut": "jobs.options",
    "FanOutProgress": "core.records",
    "FanOutResult": "core.records",
    "JobHandle": "core.records",
    "MembershipIsolation": "tenancy.constraints",
    "MessageCriteria": "outbox.replay",
    "Operated": "jobs.operate",
    "OperatedAggregate": "outbox.operate",
    "OperatedMessage": "core.messages",
    "Replayed": "outbox.replay",
    "SameStoreForeignKey": "tenancy.same_store",
    "Snooze": "core.outcomes",
    "StoreIsolation": "tenancy.constraints",
    "StoreResolver": "tenancy.resolvers",
    "SubdomainResolver": "tenancy.resolvers",
    "SystemScope": "tenancy.constraints",
    "Task": "jobs.task",
    "cancel_jobs": "jobs.operate",
    "carry_store": "tenancy.carry",
    "change_jobs": "jobs.operate",
    "cron": "schedule.entries",
    "current_job": "jobs.current",
    "current_store_id": "tenancy.block",
    "discard_jobs": "jobs.operate",
    "emit": "outbox.emit",
    "emit_many": "outbox.emit",
    "enqueue_job": "jobs.enqueue",
    "fan_out": "jobs.fan_out",
    "fan_out_progress": "jobs.fan_out",
    "limit": "jobs.limits",
    "pause": "jobs.limits",
    "pause_destination": "outbox.pause",
    "replay_messages": "outbox.replay",
    "reset_store": "tenancy.session",
    "resume": "jobs.limits",
    "resume_destination": "outbox.pause",
    "retry_jobs": "jobs.operate",
    "retry_messages": "outbox.operate",
    "skip_messages": "outbox.operate",
    "store_task": "jobs.task",
    "stores_of": "tenancy.memberships",
    "task": "jobs.task",
    "tenant_context": "tenancy.context",
    "unpark": "outbox.operate",
    "without_store": "tenancy.middleware",
}

__all__ = [
    "Backoff",
    "Discard",
    "Draft",
    "EnqueueResult",
    "FanOut",
    "FanOutProgress",
    "FanOutResult",
    "JobHandle",
    "MembershipIsolation",
    "MessageCriteria",
    "Operated",
    "OperatedAggregate",
    "OperatedMessage",
    "Replayed",
    "SameStoreForeignKey",
    "Snooze",
    "StoreIsolation",
    "StoreResolver",
    "SubdomainResolver",
    "SystemScope",
    "Task",
    "cancel_jobs",
    "carry_store",
    "change_jobs",
    "cron",
    "current_job",
    "current_store_id",
    "discard_jobs",
    "emit",
    "emit_many",
    "enqueue_job",
    "fan_out",
    "fan_out_progress",
    "limit",
    "pause",
    "pause_destination",
    "replay_messages",
    "reset_store",
    "resume",
    "resume_destination",
    "retry_jobs",
    "retry_messages",
    "skip_messages",
    "store_task",
    "stores_of",
    "task",
    "tenant_context",
    "unpark",
    "without_store",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home at first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'salon_jobs' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"salon_jobs.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
