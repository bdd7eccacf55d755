"""Schedules that are rows: added, changed, paused, resumed, deleted and run now, in the caller's transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import Any, Final, Literal, TypeAlias

from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.utils.translation import gettext

from salon_jobs.conf import settings as conf
from salon_jobs.core.arguments import check_text, one_or_several
from salon_jobs.core.errors import EnqueueRefused, OptionInvalid, PayloadInvalid
from salon_jobs.core.records import ActionResult
from salon_jobs.core.text import short_repr
from salon_jobs.core.units import gettext_noop
from salon_jobs.db import statements
from salon_jobs.db.connections import alias_of, translated_errors
from salon_jobs.jobs import enqueue, registry
from salon_jobs.jobs.control import job_with
from salon_jobs.jobs.options import check_duration, check_flag
from salon_jobs.jobs.payload import Arguments
from salon_jobs.jobs.results import JobHandle, as_current_store
from salon_jobs.jobs.task import Call, check_call
from salon_jobs.models import Schedule
from salon_jobs.schedules.cron import CronExpression, expression_of, find_zone
from salon_jobs.schedules.entries import GRACE
from salon_jobs.tenancy.active import current_store_id, has_current_store
from salon_jobs.tenancy.context import context_of

ScheduleAction = Literal["created", "changed", "kept"]
_LEAST_EVERY: Final = timedelta(seconds=1)
_LONGEST: Final = 255
_IN_CONTEXT: Final = "a store's tasks are scheduled inside tenant_context(store_id), in a transaction"
CHANGED: Final = gettext_noop("it was changed since you opened it: open it again")
_NOT_FOUND: Final = gettext_noop("there is no such schedule, or you may not see it")


@dataclass(frozen=True, slots=True)
class ScheduleHandle:
    """A schedule: its id, the action of ``schedule``, and its next tick."""

    id: int
    action: ScheduleAction
    next_at: datetime


Schedules: TypeAlias = str | int | ScheduleHandle | Iterable[str | int | ScheduleHandle]
"""One schedule or several, each as its handle, its id, or its key in the current store (or of no store outside one)."""


def schedule(
    call: Call[...],
    line: str | None = None,
    *,
    every: timedelta | None = None,
    timezone: str = "UTC",
    key: str,
    catch_up: timedelta | None = None,
    jitter: timedelta = timedelta(0),
    overlap: bool = True,
    using: str | None = None,
) -> ScheduleHandle:
    """Schedule repeated calls of a task from now on: whenever ``line`` is due in ``timezone``, or ``every`` so often.

    Adds a row in the caller's transaction, or changes the one with the same ``key`` of the same store (a system task
    has none); schedulers notice it within seconds of the commit. A schedule with the same timing keeps its next tick,
    and a paused one stays paused. Ticks of ``every`` are whole multiples after the first call: they do not drift.

    ``catch_up`` is how late a tick may still fire: at least five minutes for a line, at least ``every``, which are the
    defaults. ``jitter`` delays the schedule's jobs by up to this, always by the same. Without ``overlap``, a tick is
    skipped while the job of the last one, or of a run by hand, is queued or running. Role: web, worker. Raises
    CronInvalid, OptionInvalid naming the field, PayloadInvalid; EnqueueRefused for another store than the current one.
    """
    takes = "schedule takes the call of a task, such as report.call(week=week)"
    check_call(takes, call, PayloadInvalid, of_djangos="write salon_jobs.backend.call(task, …)")
    if (line is None) == (every is None):
        raise OptionInvalid("line and every both say when a schedule is due: pass one of them")
    if every is not None:
        check_duration("every", every)
        if every < _LEAST_EVERY:
            raise OptionInvalid(f"every must be a second or more, not {short_repr(every)}")
    check_text("key", key, _LONGEST)
    check_duration("jitter", jitter)
    check_flag("overlap", overlap)
    if catch_up is not None:
        check_duration("catch_up", catch_up)
    expression = None if line is None else CronExpression(line, timezone)
    if expression is None:
        find_zone(timezone)
    else:
        check_text("line", expression.line, _LONGEST)
    alias = alias_of(using)
    enqueue.look_for_another_transaction(alias)
    [(now,)] = statements.rows("schedule_clock", using=alias)
    timing = ("" if expression is None else expression.line, timezone if expression else "UTC", every)
    plan = {
        **dict(zip(("line", "timezone", "every"), timing, strict=True)),
        "catch_up": max(catch_up or timedelta(0), every or GRACE),
        "jitter": jitter,
        "overlap": overlap,
        "anchor_at": now,
        "next_at": next_tick(*timing, now, now),
    }
    values = {"key": key, "task": call.task, "payload": call.arguments.json, "store_id": call.arguments.store_id}
    with translated_errors(alias, EnqueueRefused, _IN_CONTEXT):
        [(id_, action, next_at)] = statements.rows(
            "set_schedule", {**values, "plan": json.dumps(plan, default=str)}, using=alias
        )
    return ScheduleHandle(id_, action, next_at)


# Schedule like ``schedule``, from a coroutine: on the thread whose connection the ORM uses there.
aschedule = sync_to_async(schedule)


def timing_of(row: Schedule) -> dict[str, Any]:
    """Return the timing of a schedule in the form of ``schedule``; None stands for the default of ``catch_up``."""
    catch_up = None if row.catch_up == (row.every or GRACE) else row.catch_up
    timing = {name: getattr(row, name) for name in ("every", "timezone", "jitter", "overlap")}
    return {"line": row.line or None, "catch_up": catch_up, **timing}


def save_schedule(
    row: Schedule, arguments: Mapping[str, Any], *, using: str | None = None, **timing: Any
) -> ScheduleHandle:
    """Change the schedule of a row, or add it if the row has no ID yet, as operators do: in the context of its store.

    ``timing`` has the form of ``timing_of``. Role: web. Raises UnknownTask, PayloadInvalid, CronInvalid, OptionInvalid
    naming the field, and EnqueueRefused; also OptionInvalid if the schedule is gone or was changed since the row was
    read (``CHANGED``), or there is one already: then nothing is changed.
    """
    alias = alias_of(using)
    with context_of(row.store_id, using=alias), transaction.atomic(using=alias):
        job = job_with(row, arguments)
        if row.pk is not None:
            locked = _change([row.pk], "find", using=alias)
            if not locked:
                raise OptionInvalid(f"key {row.key!r}: {_NOT_FOUND}")
            if locked[0][5] != row.changed_at:
                raise OptionInvalid(CHANGED)
        handle = schedule(Call(job.task, Arguments(row.store_id, job.payload)), key=row.key, using=alias, **timing)
        if row.pk is None and handle.action != "created":
            raise OptionInvalid(f"key {row.key!r}: there is a schedule with it already")
    return handle


def next_tick(line: str, timezone: str, every: timedelta | None, anchor_at: datetime, after: datetime) -> datetime:
    """Return the first tick after an instant, in UTC. Raises CronInvalid for an invalid line or zone."""
    if every is not None:
        return anchor_at + ((after - anchor_at) // every + 1) * every
    return _next_of_line(line, timezone, after)


# Pure, like the expression: most schedules of a tick share their line.
@lru_cache(16_384)
def _next_of_line(line: str, timezone: str, after: datetime) -> datetime:
    return expression_of(line, timezone).next_after(after)


def pause_schedules(schedules: Schedules, *, by: str = "", using: str | None = None) -> list[ActionResult[int | str]]:
    """Pause schedules: no tick fires, nor is made up for later. Role: operator, worker, web.

    ``schedules`` is a handle, an id or a key, or several of them; the results are in their order. A key is one of the
    current store, or of no store outside one; the web role reaches no other. ``by`` is recorded. In the caller's
    transaction; ``using`` defaults to the alias of the job tables. Raises OptionInvalid.
    """
    return _results(schedules, "pause", gettext("it is paused already"), by=by, using=using)


def resume_schedules(schedules: Schedules, *, using: str | None = None) -> list[ActionResult[int | str]]:
    """Resume paused schedules, from their next ticks on. Roles, keys, ``using`` and order as in ``pause_schedules``."""
    return _results(schedules, "resume", gettext("it is not paused"), using=using)


def delete_schedules(schedules: Schedules, *, using: str | None = None) -> list[ActionResult[int | str]]:
    """Delete schedules with their history. Their jobs stay. Roles, ``using`` and order as in ``pause_schedules``."""
    return _results(schedules, "delete", "", using=using)


def run_schedule(schedule: str | int | ScheduleHandle, *, by: str = "", using: str | None = None) -> JobHandle:
    """Enqueue the job of a schedule at once, even of a paused one; its own ticks are not affected. Role: web, worker.

    In the caller's transaction. The run is in the schedule's history, with ``by``; its instant is the job's tick.
    Raises OptionInvalid if there is no such schedule, UnknownTask if this process does not declare its task.
    """
    given = _names(schedule)
    if len(given) != 1:
        raise OptionInvalid(f"run_schedule takes one schedule, not {len(given)}")
    with transaction.atomic(using=(alias := alias_of(using))):
        found = _change(given, "find", using=alias)
        if not found:
            raise OptionInvalid(f"{short_repr(schedule)}: {_NOT_FOUND}")
        id_, _, store_id, task_name, payload, *_ = found[0]
        job = registry.get_declaration(task_name).stored_job(store_id, payload)
        [(now,)] = statements.rows("schedule_clock", using=alias)
        handle = enqueue.add(replace(job, tick=now), using=alias)
        _change([id_], "ran", by=by, job_id=handle.id, using=alias)
    return enqueue.run_at_once_in_tests(handle)


_names: Final = partial(one_or_several, "schedules are handles, IDs or keys", longest_key=_LONGEST)


def _results(
    schedules: Schedules, verb: str, otherwise: str, *, by: str = "", using: str | None
) -> list[ActionResult[int | str]]:
    given = _names(schedules)
    rows = _change(given, verb, by=by, using=alias_of(using))
    changed: dict[int | str, bool] = {id_: is_changed for id_, *_, is_changed, _ in rows}
    changed |= {key: is_changed for _, key, *_, is_changed, by_key in rows if by_key}
    details = {True: "", False: otherwise}
    return [
        ActionResult(name, changed.get(name, False), details[changed[name]] if name in changed else gettext(_NOT_FOUND))
        for name in given
    ]


def _change(
    names: Sequence[int | str], verb: str, *, by: str = "", job_id: int | None = None, using: str
) -> list[tuple[int, str, Any, str, str, datetime, bool, bool]]:
    check_text("by", by, 255, least=0)
    parameters: dict[str, Any] = {
        "verb": verb,
        "ids": [name for name in names if isinstance(name, int)],
        "keys": [name for name in names if isinstance(name, str)],
        "by": by,
        "job_id": job_id,
        "guc": conf.store_guc,
    }
    if parameters["keys"] and not has_current_store(connections[using]):
        raise OptionInvalid(
            f"a key is one of the current store, {current_store_id()}, which is not set on this thread's connection of"
            f" {using!r}: call this in tenant_context(…, using={using!r})"
        )
    with as_current_store(using):  # without one, a key is that of a schedule of no store
        return statements.rows("change_schedules", parameters, using=using)
