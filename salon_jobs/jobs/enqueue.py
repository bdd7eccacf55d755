"""Adds jobs in the caller's transaction: one, many, one per store; and wakes the workers after the commit."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ParamSpec

from django.db import ProgrammingError, connections, transaction
from django.db.backends.utils import CursorWrapper
from psycopg import errors as pg

from salon_jobs import sql
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError, EnqueueRefused, OptionInvalid, PayloadInvalid, SchemaMissing
from salon_jobs.core.records import EnqueueResult, FanOutResult, JobHandle, JobKeyMode, NewJob
from salon_jobs.jobs import registry, wake
from salon_jobs.jobs.current import running_job
from salon_jobs.jobs.payload import STORE_ARGUMENT

if TYPE_CHECKING:
    from salon_jobs.jobs.task import Task

P = ParamSpec("P")
_ARRAYS = ("task", "store_id", "queue", "priority", "max_attempts", "run_at", "expires_at", "payload", "tick")
# Stands for the store in a fan-out's key until the database puts each store's id there; never part of a real key.
# As long as the id it stands for, so that the length of a key is checked for what it will be.
_MARKER = f"\x1f{'store':-^34}\x1f"
_SEPARATOR = "\x1f"
_DEDUPE_TRIES = 5
_IN_CONTEXT = "a store's jobs are enqueued inside tenant_context(store_id)"


def add(job: NewJob) -> JobHandle:
    """Add one job; its row is part of the caller's transaction. Raises EnqueueRefused, SchemaMissing."""
    if job.job_key is not None or _through_function(job):
        return add_many([job])[0]
    with _writing(job.run_at) as cursor:
        cursor.execute(sql.load("enqueue"), _row(job))
        return JobHandle(cursor.fetchone()[0], EnqueueResult.INSERTED)


def add_many(jobs: Sequence[NewJob]) -> list[JobHandle]:
    """Add jobs in one transaction, in order, a handle each; a key met twice counts as enqueued twice."""
    handles: dict[int, JobHandle] = {}
    with transaction.atomic(using=conf.database):
        _lock_keys(jobs)
        for positions, statement in _batches(jobs):
            batch = [jobs[position] for position in positions]
            handles.update(zip(positions, _run(statement, batch), strict=True))
    return [handles[position] for position in range(len(jobs))]


def enqueue_job(name: str, payload: dict[str, Any], **options: Any) -> JobHandle:
    """Add a job by its task's name; ``options`` as for ``using``.

    Raises UnknownTask, PayloadInvalid (path and expected type), OptionInvalid (which field), EnqueueRefused.
    """
    task = registry.get_task(name)
    if not isinstance(payload, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PayloadInvalid(f"task {name!r}: the payload must be a dict of arguments, not {type(payload).__name__}")
    try:
        bound = task.using(**options)
    except TypeError as error:
        raise OptionInvalid(f"enqueue_job({name!r}): {error}") from error
    return bound.enqueue(**payload)


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
        _writing(run_at, remedy="a fan-out runs as the worker role: call it from a task") as cursor,
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


def _through_function(job: NewJob) -> bool:
    return job.store_id is None and conf.roles is not None


def _lock_keys(jobs: Sequence[NewJob]) -> None:
    """Take the locks of several keys in one order for every enqueuer; unsafe_dedupe takes that of a single key, too.

    One job by its key needs none: it waits for others while it holds nothing. System jobs come in order by themselves.
    """
    keyed = [job for job in jobs if job.job_key is not None and not _through_function(job)]
    names = list({_SEPARATOR.join(_identity(job)) for job in keyed})
    if len(names) > 1 or any(job.job_key_mode is JobKeyMode.UNSAFE_DEDUPE for job in keyed):
        with connections[conf.database].cursor() as cursor:
            cursor.execute(sql.load("lock_keys"), {"names": names})


def _batches(jobs: Sequence[NewJob]) -> Iterator[tuple[list[int], str]]:
    """Split positions into statements: a key at most once in each, keys in one order for every enqueuer."""
    groups: dict[tuple[str, JobKeyMode | None], list[int]] = {}
    for position, job in enumerate(jobs):
        if _through_function(job):
            groups.setdefault(("enqueue_system", None), []).append(position)
        elif job.job_key is None:
            groups.setdefault(("enqueue_many", None), []).append(position)
        elif job.job_key_mode is JobKeyMode.UNSAFE_DEDUPE:
            groups.setdefault(("enqueue_dedupe", None), []).append(position)
        else:
            groups.setdefault(("enqueue_keyed", job.job_key_mode), []).append(position)
    for (statement, _), positions in groups.items():
        if statement == "enqueue_many":
            yield positions, statement
            continue
        if statement == "enqueue_system":
            # One row after the other: each takes its key, in one order; equal keys stay in the order given.
            yield sorted(positions, key=lambda position: _identity(jobs[position])), statement
            continue
        rounds: list[dict[tuple[str, str, str], int]] = []
        for position in positions:
            identity = _identity(jobs[position])
            for round_ in rounds:
                if identity not in round_:
                    round_[identity] = position
                    break
            else:
                rounds.append({identity: position})
        for round_ in rounds:
            yield [round_[identity] for identity in sorted(round_)], statement


def _identity(job: NewJob) -> tuple[str, str, str]:
    return (job.task, str(job.store_id or ""), job.job_key or "")


def _run(statement: str, jobs: Sequence[NewJob]) -> list[JobHandle]:
    parameters: dict[str, Any] = {name: [getattr(job, name) for job in jobs] for name in _ARRAYS}
    parameters["job_key"] = [job.job_key for job in jobs]
    parameters["job_key_mode"] = [job.job_key_mode.value for job in jobs]
    parameters["preserve"] = jobs[0].job_key_mode is JobKeyMode.PRESERVE_RUN_AT
    earliest = None if any(job.run_at is None for job in jobs) else min(map(attrgetter("run_at"), jobs))
    with _writing(earliest) as cursor:
        if statement == "enqueue_dedupe":
            return _dedupe(cursor, jobs, parameters)
        cursor.execute(sql.load(statement), parameters)
        rows = cursor.fetchall()
    if statement == "enqueue_many":
        return [JobHandle(row[0], EnqueueResult.INSERTED) for row in rows]
    return [JobHandle(row[1], EnqueueResult(row[2])) for row in rows]


def _dedupe(cursor: CursorWrapper, jobs: Sequence[NewJob], parameters: dict[str, Any]) -> list[JobHandle]:
    found: dict[int, JobHandle] = {}
    for _ in range(_DEDUPE_TRIES):
        cursor.execute(sql.load("enqueue_dedupe"), parameters)
        for ordinal, job_id, result in cursor.fetchall():
            # An answer "inserted" stands even if a later try meets that same row as kept.
            found.setdefault(ordinal, JobHandle(job_id, EnqueueResult(result)))
        if len(found) == len(jobs):
            return [found[ordinal] for ordinal in sorted(found)]
    raise EnqueueRefused("the holders of these job keys kept changing; enqueue again")


def _row(job: NewJob) -> dict[str, Any]:
    return {name: getattr(job, name) for name in _ARRAYS}


@contextmanager
def _writing(due: datetime | None, *, remedy: str = _IN_CONTEXT) -> Generator[CursorWrapper]:
    """Give a cursor, name what the database refuses, and arrange the wake-up for when the caller commits."""
    connection = connections[conf.database]
    try:
        with connection.cursor() as cursor:
            yield cursor
    except ProgrammingError as error:
        if isinstance(error.__cause__, (pg.UndefinedTable, pg.UndefinedColumn, pg.UndefinedFunction)):
            raise SchemaMissing(f"{error.__cause__.diag.message_primary}; run: python manage.py migrate") from error
        if isinstance(error.__cause__, pg.InsufficientPrivilege):
            raise EnqueueRefused(f"{error.__cause__.diag.message_primary}; {remedy}") from error
        raise
    wake.after_commit(due)
