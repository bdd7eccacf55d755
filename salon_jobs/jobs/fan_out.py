"""Fan-out: one job per store, enqueued in one statement as the worker role, and the progress of those jobs."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, ParamSpec
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import transaction

from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.arguments import check_id, check_text
from salon_jobs.core.errors import ConfigurationError, OptionInvalid, PayloadInvalid, UnknownFanOut
from salon_jobs.core.records import FanOutProgress, FanOutResult, GivenStore
from salon_jobs.core.text import short_repr
from salon_jobs.core.tracing import SYSTEM, Sent, current_trace, sending
from salon_jobs.db import statements
from salon_jobs.db.connections import alias_of
from salon_jobs.jobs.enqueue import add_follow_up, enqueue_cursor, run_at_once_in_tests, wake_ups
from salon_jobs.jobs.options import check_duration
from salon_jobs.jobs.payload import STORE_ARGUMENT
from salon_jobs.jobs.run import current_run
from salon_jobs.jobs.task import BoundTask, Call, follow_up

P = ParamSpec("P")
_AS_WORKER: Final = "a fan-out runs as the worker role: call it from a task"


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOut:
    """Options for spreading a fan-out over the stores. Raises OptionInvalid naming the field.

    ``jitter`` spreads the jobs over this period from ``run_at``; a store always gets the same offset. ``exclude`` lists
    stores that get no job. ``label`` distinguishes fan-outs with the same arguments and tick, for people and for
    idempotency. ``then`` is the call of a task that is enqueued when all these jobs have ended.
    """

    jitter: timedelta = timedelta(0)
    exclude: Collection[GivenStore] = ()
    label: str = ""
    then: Call[...] | None = None

    def __post_init__(self) -> None:
        check_duration("jitter", self.jitter, 365)
        if isinstance(self.exclude, str) or not all(isinstance(store, UUID | int | str) for store in self.exclude):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionInvalid("exclude must be a collection of the stores' keys")
        if self.label != "":
            check_text("label", self.label, 255)


_EVERY_STORE: Final = FanOut()


def fan_out(
    task: BoundTask[P], options: FanOut = _EVERY_STORE, /, *, using: str | None = None, **arguments: Any
) -> FanOutResult:
    """Enqueue one job per store in one statement, as the worker role; ``arguments`` are the task's, without store_id.

    Adds all of them or none, in the caller's transaction. A paused store gets no job; after it resumes, the next
    fan-out includes it. In a job that originates from a cron tick, the call is idempotent: repeating it for the same
    task, arguments, label and tick adds nothing, even if the first jobs are gone. Otherwise it is idempotent if the
    task has a job key. ``using`` defaults to the alias of the job tables. Raises PayloadInvalid; ConfigurationError
    without STORE_MODEL; EnqueueRefused if the connection may not fan out.
    """
    if conf.store_model is None:
        raise ConfigurationError("fan_out needs SALON_JOBS['STORE_MODEL']")
    if not isinstance(task, BoundTask) or not task.task.is_store_task:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PayloadInvalid(f"fan_out needs a store task; {short_repr(task)} is not one")
    if {STORE_ARGUMENT, task.task.payload.store_name} & arguments.keys():
        raise PayloadInvalid(f"task {task.task.name!r}: fan_out passes store_id itself, once per store")
    declared, using, key = task.task, alias_of(using), store_key()
    try:
        exclude = list(map(key.parse, options.exclude))
    except ValueError as error:
        raise OptionInvalid(f"a store in exclude {error}") from None
    # Placeholder in the keys, which the database replaces with each store's; never part of a real key. It is as long as
    # a store's key can be, so that the length check sees the final length.
    marker = f"\x1f{'store':-^{key.longest - 2}}\x1f"
    checked = declared.payload.bind((), {**arguments, STORE_ARGUMENT: key.somewhere()})
    tick = None if (run := current_run.get()) is None else run.job.tick
    job = replace(
        declared.new_job(checked, task.options.for_batch()),
        tick=tick,
        **declared.keys_for(marker, checked, task.options),
    )
    then = None if options.then is None else follow_up(options.then)
    sent = Sent(emitted=False, system=SYSTEM, destination=job.queue, name=job.task)
    with sending(sent), enqueue_cursor(using=using, remedy=_AS_WORKER) as cursor, transaction.atomic(using=using):
        parameters: dict[str, Any] = {
            **replace(job, trace=current_trace()).parameters(),
            "marker": marker,
            "job_key": job.job_key,
            "concurrency_key": job.concurrency_key,
            "tick": tick,
            "jitter": options.jitter,
            "exclude": exclude,
            "label": options.label,
            "digest": hashlib.sha256(f"{job.payload}\x1f{options.label}".encode()).hexdigest(),
            "wants_ids": then is not None,
        }
        cursor.execute(statements.load("fan_out_record"), parameters)
        record = cursor.fetchone()
        if record is None:
            cursor.execute(statements.load("fan_out_found"), parameters)
            earlier_id, stores, paused = cursor.fetchone()
            return FanOutResult(0, stores, earlier_id, paused)
        statement = statements.load("fan_out").replace("__function__", conf.fan_out_function)
        cursor.execute(statement, parameters | {"fan_out_id": record[0]})
        inserted, kept, paused, ids = cursor.fetchone()
        sent.count = inserted
        if then is not None:
            add_follow_up(then, ids or (), using=using)
        if job.is_due:
            wake_ups.after_commit(using)
    return run_at_once_in_tests(FanOutResult(inserted, kept, record[0], paused))


async def afan_out(
    task: BoundTask[P], options: FanOut = _EVERY_STORE, /, *, using: str | None = None, **arguments: Any
) -> FanOutResult:
    """Fan out like ``fan_out``, from a coroutine."""
    return await sync_to_async(fan_out)(task, options, using=using, **arguments)


def fan_out_progress(fan_out_id: int, *, using: str | None = None) -> FanOutProgress:
    """Count the jobs of a fan-out by their current state; jobs that are not live, failed or cancelled are done.

    Reads on the alias ``using``, by default ``OPERATOR_DATABASE`` if set. Raises UnknownFanOut.
    """
    check_id("fan_out_id", fan_out_id)
    counts = statements.rows("fan_out_progress", {"id": fan_out_id}, using=using or conf.reader_database)
    if not counts:
        raise UnknownFanOut(f"no fan-out has the ID {fan_out_id}")
    total, running, queued, failed, cancelled = counts[0]
    done = max(total - running - queued - failed - cancelled, 0)
    return FanOutProgress(total, done, running, queued, failed, cancelled)
