"""Adds jobs in the caller's transaction, one at a time, and wakes the workers after the commit."""

from __future__ import annotations

from typing import Any, Unpack

from salon_jobs import sql
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import PayloadInvalid
from salon_jobs.core.records import EnqueueResult, JobContent, JobHandle, NewJob
from salon_jobs.jobs import registry
from salon_jobs.jobs.enqueue_batches import add_keyed
from salon_jobs.jobs.enqueue_cursor import enqueue_cursor
from salon_jobs.jobs.enqueue_trace import enqueuing
from salon_jobs.jobs.options import EnqueueOptions


def add(job: NewJob) -> JobHandle:
    """Add one job; its row is part of the caller's transaction. Raises EnqueueRefused, SchemaMissing."""
    with enqueuing(job) as (traced, sent):
        handle = _add(traced)
        sent.message_id = str(handle.id)
    return handle


def _add(job: NewJob) -> JobHandle:
    if job.job_key is not None:
        return add_keyed(job, [JobContent(job.store_id, job.payload, job.job_key, job.concurrency_key)])[0]
    # Other roles than the worker's may add system jobs through the function alone.
    statement = "enqueue_system" if job.store_id is None and conf.roles is not None else "enqueue"
    row = {
        "task": job.task, "store_id": job.store_id, "queue": job.queue, "priority": job.priority,
        "max_attempts": job.max_attempts, "run_at": job.run_at, "expires_at": job.expires_at,
        "payload": job.payload, "tick": job.tick, "concurrency_key": job.concurrency_key,
        "trace": job.trace,
    }  # fmt: skip
    with enqueue_cursor(job.run_at) as cursor:
        cursor.execute(sql.load(statement), row)
        return JobHandle(cursor.fetchone()[0], EnqueueResult.INSERTED)


def enqueue_job(name: str, payload: dict[str, Any], **options: Unpack[EnqueueOptions]) -> JobHandle:
    """Add a job by its task's name; ``options`` as for ``using``.

    Raises UnknownTask, PayloadInvalid (path and expected type), OptionInvalid (which field), EnqueueRefused.
    """
    task = registry.get_task(name)
    if not isinstance(payload, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PayloadInvalid(f"task {name!r}: the payload must be a dict of arguments, not {type(payload).__name__}")
    return task.using(**options).enqueue(**payload)
