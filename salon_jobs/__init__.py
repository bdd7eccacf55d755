"""Background jobs, cron, tenant context and a transactional outbox for Django on PostgreSQL.

Names for everyday use are imported from here. Types and less common functions are in ``salon_jobs.jobs``,
``salon_jobs.tenancy`` and ``salon_jobs.outbox``; operators' verbs in ``salon_jobs.control``; model constraints and
migration operations in ``salon_jobs.access``; helpers for tests in ``salon_jobs.testing``.

Each name loads its modules when it is first used: a process that only reads models starts without them.
"""

from typing import TYPE_CHECKING

from salon_jobs.core import lazy_names

if TYPE_CHECKING:
    from salon_jobs.core.backoff import Backoff as Backoff
    from salon_jobs.core.outcomes import Discard as Discard
    from salon_jobs.core.outcomes import Retry as Retry
    from salon_jobs.core.outcomes import Snooze as Snooze
    from salon_jobs.jobs.current import current_job as current_job
    from salon_jobs.jobs.fan_out import afan_out as afan_out
    from salon_jobs.jobs.fan_out import fan_out as fan_out
    from salon_jobs.jobs.flows import flow as flow
    from salon_jobs.jobs.flows import get_flow as get_flow
    from salon_jobs.jobs.results import get_job as get_job
    from salon_jobs.jobs.task import enqueue_job as enqueue_job
    from salon_jobs.jobs.task import store_task as store_task
    from salon_jobs.jobs.task import task as task
    from salon_jobs.outbox.emit import aemit as aemit
    from salon_jobs.outbox.emit import emit as emit
    from salon_jobs.outbox.emit import emit_many as emit_many
    from salon_jobs.schedules.entries import cron as cron
    from salon_jobs.schedules.stored import aschedule as aschedule
    from salon_jobs.schedules.stored import schedule as schedule
    from salon_jobs.tenancy.active import current_store_id as current_store_id
    from salon_jobs.tenancy.context import tenant_context as tenant_context
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "Backoff": "core.backoff",
            "Discard": "core.outcomes",
            "Retry": "core.outcomes",
            "Snooze": "core.outcomes",
            "current_job": "jobs.current",
            "enqueue_job": "jobs.task",
            "afan_out": "jobs.fan_out",
            "fan_out": "jobs.fan_out",
            "flow": "jobs.flows",
            "get_flow": "jobs.flows",
            "get_job": "jobs.results",
            "store_task": "jobs.task",
            "task": "jobs.task",
            "aemit": "outbox.emit",
            "emit": "outbox.emit",
            "emit_many": "outbox.emit",
            "cron": "schedules.entries",
            "aschedule": "schedules.stored",
            "schedule": "schedules.stored",
            "current_store_id": "tenancy.active",
            "tenant_context": "tenancy.context",
        },
    )
