"""Adds one job per store in one statement, as the worker role."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from typing import Any, ParamSpec

from django.db import transaction

from salon_jobs import sql
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError, PayloadInvalid
from salon_jobs.core.records import FanOutResult, JobKeyMode, NewJob
from salon_jobs.jobs.current import running_job
from salon_jobs.jobs.enqueue_cursor import enqueue_cursor
from salon_jobs.jobs.payload import STORE_ARGUMENT
from salon_jobs.jobs.task import Task

P = ParamSpec("P")
# Stands for the store in a fan-out's key until the database puts each store's id there; never part of a real key.
# As long as the id it stands for, so that the length of a key is checked for what it will be.
_MARKER = f"\x1f{'store':-^34}\x1f"


def fan_out(task: Task[P, Any], /, *, run_at: datetime | None = None, **arguments: Any) -> FanOutResult:
    """Add one job per store in one statement, as the worker role; ``arguments`` are the task's without store_id.

    Idempotent where the task has a job key. Raises PayloadInvalid; OptionInvalid; ConfigurationError without
    STORE_MODEL; EnqueueRefused when the connection may not list the stores.
    """
    if conf.store_model is None:
        raise ConfigurationError("fan_out needs SALON_JOBS['STORE_MODEL']")
    if not getattr(task, "is_store_task", False):
        raise PayloadInvalid(f"fan_out needs a store task; {task!r} is none")
    if STORE_ARGUMENT in arguments:
        raise PayloadInvalid(f"task {task.name!r}: fan_out gives store_id itself, once per store")
    checked = task.payload.bind((), {**arguments, STORE_ARGUMENT: "00000000-0000-0000-0000-000000000000"})
    job = task.new_job(checked, replace(task.options, run_at=run_at))
    key = task.key_for(_MARKER, checked)
    parameters = {
        **_row(job), "job_key": key, "marker": _MARKER, "tick": _current_tick(),
        "preserve": job.job_key_mode is JobKeyMode.PRESERVE_RUN_AT,
        "dedupe": job.job_key_mode is JobKeyMode.UNSAFE_DEDUPE,
    }  # fmt: skip
    with (
        enqueue_cursor(run_at, remedy="a fan-out runs as the worker role: call it from a task") as cursor,
        nullcontext() if key is None else transaction.atomic(using=conf.database),
    ):
        if key is not None:
            cursor.execute(_over_stores("fan_out_keys"), parameters)
            cursor.execute(sql.load("lock_keys"), {"names": cursor.fetchone()[0] or []})
        cursor.execute(_over_stores("fan_out"), parameters)
        inserted, kept = cursor.fetchone()
    return FanOutResult(inserted, kept)


def _over_stores(statement: str) -> str:
    return sql.load(statement).replace("__function__", conf.fan_out_function)


def _current_tick() -> datetime | None:
    job = running_job()
    return None if job is None else job.tick


def _row(job: NewJob) -> dict[str, Any]:
    return {
        "task": job.task, "queue": job.queue, "priority": job.priority, "max_attempts": job.max_attempts,
        "run_at": job.run_at, "expires_at": job.expires_at, "payload": job.payload,
    }  # fmt: skip
