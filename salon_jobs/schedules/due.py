"""Due ticks of schedules that are rows: fired in batches, each in the transaction that advances its schedule."""

from __future__ import annotations

import logging
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, cast

from django.db import InterfaceError, OperationalError, transaction

from salon_jobs.core import events, metrics
from salon_jobs.core.error_report import message_of
from salon_jobs.core.errors import UnknownTask
from salon_jobs.core.events import log_event
from salon_jobs.core.metrics import Sample
from salon_jobs.core.records import StoreId
from salon_jobs.db import statements
from salon_jobs.db.read_only import failed_read_only
from salon_jobs.db.statements import is_lock_conflict, short_lock_timeout
from salon_jobs.jobs import enqueue, registry
from salon_jobs.jobs.enqueue import JobContent
from salon_jobs.jobs.options import NewJob
from salon_jobs.jobs.payload import Arguments
from salon_jobs.jobs.task import Task
from salon_jobs.schedules.stored import next_tick

# Between polls, the loop around this one shows that it is alive.
_ROUND_S: Final = 2.0
# When to try again schedules that are due but locked by others.
_HELD_S: Final = 1.0
# How long to leave a schedule with a line or time zone that this process does not know to others, which may have newer
# data, as ``due_schedules`` leaves tasks. Then its tick fails, and the next try is so much later.
_TO_OTHERS: Final = timedelta(minutes=5)
_INVALID: Final = timedelta(hours=1)
_MISSED: Final = "missed: too late"
_NEVER_S: Final = float("inf")


class DueSchedule(NamedTuple):
    """One locked schedule with a due tick, in the column order of ``due_schedules``."""

    id: int
    key: str
    store_id: StoreId | None
    task: str
    payload: str
    line: str
    timezone: str
    every: timedelta | None
    anchor_at: datetime
    catch_up: timedelta
    jitter: timedelta
    tick: datetime
    owed_from: datetime
    skip: str | None

    def next_after(self, instant: datetime) -> datetime:
        return next_tick(self.line, self.timezone, self.every, self.anchor_at, instant)

    @property
    def delay(self) -> timedelta:
        """The part of the jitter that the jobs of this schedule always get."""
        return self.jitter * (zlib.crc32(str(self.id).encode()) / 2**32)

    @property
    def run_at(self) -> datetime | None:
        """When its job is due; None: now."""
        return self.tick + self.delay if self.jitter else None


class Moved(NamedTuple):
    """The update of one schedule: its next tick, the one that was due (None: not recorded), its job or outcome.

    ``owed_from``, if not None, is an instant up to which no tick fires.
    """

    next_at: datetime
    tick: datetime | None
    job_id: int | None = None
    outcome: str = ""
    owed_from: datetime | None = None


class StoredSchedules:
    """Schedules that are rows, as a scheduler fires them. No part of a row is kept between two statements."""

    def __init__(self, *, using: str) -> None:
        self._using = using
        self._overdue_s = 0.0
        self._ticks: Counter[str] = Counter(fired=0, missed=0, skipped=0, failed=0)
        self._held: set[int] = set()

    def samples(self) -> list[Sample]:
        return [
            Sample(metrics.SCHEDULES_OVERDUE, self._overdue_s),
            *(Sample(metrics.SCHEDULE_TICKS, count, (outcome,)) for outcome, count in list(self._ticks.items())),
        ]

    def poll(self, now: datetime | None = None) -> float:
        """Fire due ticks, for two seconds at most; return the seconds until the next poll. ``now`` is for tests."""
        [(at, first_due, first_later)] = statements.rows("first_schedules", {"now": now}, using=self._using)
        self._overdue_s = 0.0 if first_due is None else (at - first_due).total_seconds()
        if first_due is None:
            self._held.clear()
            return _NEVER_S if first_later is None else max(0.0, (first_later - at).total_seconds())
        end, moved, held, left = time.monotonic() + _ROUND_S, 0, set[int](), set[int]()
        while time.monotonic() < end and (count := self._fire_batch(at, held, left)):
            moved += count
        if held - self._held:
            log_event(logging.WARNING, events.SCHEDULES_HELD_UP, schedules=len(held))
        self._held = held
        return 0.0 if moved > len(held) + len(left) else _HELD_S

    def _fire_batch(self, now: datetime, held: set[int], left: set[int]) -> int:
        """Fire a tick of up to a thousand schedules, in one transaction; return how many there were.

        Adds schedules that are held up to ``held``, and those left to other schedulers to ``left``.
        """
        tasks = registry.task_names()
        with short_lock_timeout(using=self._using):
            parameters = {"now": now, "left": [*held, *left], "tasks": tasks}
            due = [DueSchedule(*row) for row in statements.rows("due_schedules", parameters, using=self._using)]
            moved: dict[int, Moved] = {}
            firing: defaultdict[str, list[DueSchedule]] = defaultdict(list)
            for each in due:
                try:
                    if each.tick <= each.owed_from:
                        moved[each.id] = Moved(each.next_after(each.owed_from), None)
                    elif each.tick <= now - each.catch_up:
                        moved[each.id] = Moved(each.next_after(now - each.catch_up), each.tick, outcome=_MISSED)
                        if each.task not in tasks:
                            firing[each.task].append(each)  # this fails, and so reports that the task is unknown
                    elif each.skip is not None:
                        moved[each.id] = Moved(each.next_after(now), each.tick, outcome=each.skip)
                    else:
                        moved[each.id] = Moved(each.next_after(each.tick), each.tick)
                        firing[each.task].append(each)
                except Exception as error:  # the row is another writer's, or its time zone was removed or is too new
                    if each.tick > now - _TO_OTHERS:
                        left.add(each.id)
                        continue
                    later = now + _INVALID
                    moved[each.id] = Moved(later, each.tick, outcome=_failed([each], error), owed_from=later)
            # In one order of tasks, and so of keys, for any number of schedulers.
            for task in sorted(firing):
                self._add_jobs(task, firing[task], moved, held)
            if moved:
                columns = zip(*moved.values(), strict=True)
                names = ("next_ats", "ticks", "job_ids", "outcomes", "owed_from")
                values = {"ids": list(moved), **dict(zip(names, map(list, columns), strict=True))}
                statements.execute("move_schedules", values, using=self._using)
        said = Counter(each.outcome.partition(":")[0] or "fired" for each in moved.values() if each.tick is not None)
        self._ticks += said
        if missed := said.pop("missed", 0):
            log_event(logging.WARNING, events.SCHEDULES_MISSED, schedules=missed)
        if said.total():
            counts: dict[str, Any] = {"fired": said["fired"], "skipped": said["skipped"], "failed": said["failed"]}
            log_event(logging.INFO, events.SCHEDULES_FIRED, **counts)
        return len(due)

    def _add_jobs(self, task_name: str, due: Sequence[DueSchedule], moved: dict[int, Moved], held: set[int]) -> None:
        """Add the jobs of schedules of one task; if that fails, each separately, so that a bad one fails alone."""
        try:
            task = registry.get_declaration(task_name)
            with transaction.atomic(using=self._using):
                if isinstance(task, Task):
                    pattern = task.new_job(None, task.options)
                    handles = enqueue.add_many(pattern, _contents(cast("Task[..., Any]", task), due), using=self._using)
                else:
                    # Each of another library's jobs can have its own options.
                    handles = [enqueue.add(_job_of(task, each), using=self._using) for each in due]
        except Exception as error:
            is_held = is_lock_conflict(error)
            if not is_held and (isinstance(error, OperationalError | InterfaceError) or failed_read_only(error)):
                raise
            if len(due) > 1 and not isinstance(error, UnknownTask):
                for each in due:
                    self._add_jobs(task_name, [each], moved, held)
                return
            outcome = "" if is_held else _failed(due, error)
            for each in due:
                if is_held:
                    held.add(each.id)
                    del moved[each.id]
                else:
                    moved[each.id] = moved[each.id]._replace(outcome=outcome)
            return
        for each, handle in zip(due, handles, strict=True):
            moved[each.id] = moved[each.id]._replace(job_id=handle.id)


def _job_of(task: registry.TaskDeclaration, due: DueSchedule) -> NewJob:
    return replace(task.stored_job(due.store_id, due.payload), run_at=due.run_at, tick=due.tick)


def _contents(task: Task[..., Any], due: Sequence[DueSchedule]) -> list[JobContent]:
    """Return the differing columns of the jobs of these schedules. Raises PayloadInvalid."""
    contents: list[JobContent] = []
    for each in due:
        keys = task.keys_for(each.store_id, Arguments(each.store_id, each.payload), task.options)
        key, concurrency_key = keys.get("job_key"), keys.get("concurrency_key")
        contents.append(
            JobContent(each.store_id, each.payload, key, concurrency_key, run_at=each.run_at, tick=each.tick)
        )
    return contents


def _failed(due: Sequence[DueSchedule], error: Exception) -> str:
    """Log why ticks have no job, once, with the first of them; return it as their outcome."""
    first, fields = due[0], dict[str, Any](schedules=len(due), exc_info=error)
    log_event(
        logging.ERROR, events.SCHEDULE_FAILED, schedule_id=first.id, key=first.key, task_name=first.task, **fields
    )
    return f"failed: {type(error).__name__}: {message_of(error)}"
