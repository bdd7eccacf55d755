"""Cron entries and their due ticks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from salon_jobs.core.errors import CronInvalid, PayloadInvalid, TaskInvalid
from salon_jobs.core.text import short_repr
from salon_jobs.core.units import as_utc
from salon_jobs.jobs import registry
from salon_jobs.schedules.cron import CronExpression, expression_of

if TYPE_CHECKING:
    from django.tasks import Task as DjangoTask

    from salon_jobs.jobs.task import Task

GRACE: Final = timedelta(minutes=5)
"""How late a tick of a cron line may still fire, so that a restart of the scheduler loses nothing."""

TICKS_AT_ONCE: Final = 1000
"""The most ticks that one call of due_ticks returns, and the most that it counts as missed."""

_NAME_LENGTH: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class CronEntry:
    """Schedule of a system task, with its payload and how late a tick may still fire."""

    name: str
    expression: CronExpression
    task_name: str
    payload: Mapping[str, Any] | Callable[[datetime], dict[str, Any]] | None = None
    backfill: timedelta = timedelta()
    overlap: bool = True
    """Whether a tick fires while a job of the entry is queued or running."""
    override: str = ""
    """The line that is in effect instead of the declared one; empty: none."""

    @property
    def window(self) -> timedelta:
        """How late a tick may still fire: ``backfill``, but at least GRACE."""
        return max(self.backfill, GRACE)

    def overridden(self, line: str) -> CronEntry:
        """Return the entry with another line, in its time zone; with "" as declared. Raises CronInvalid."""
        return replace(self, expression=expression_of(line, self.expression.timezone), override=line) if line else self

    def is_due_at(self, instant: datetime) -> bool:
        """Return whether it has a tick at exactly this instant."""
        return self.expression.next_after(instant - timedelta.resolution) == instant

    def payload_at(self, tick: datetime) -> dict[str, Any]:
        """Build the payload of one tick (aware, UTC): a new dict each time, empty if none was declared.

        Raises CronInvalid if the callable does not return a dict; the callable's own errors propagate.
        """
        given = self.payload
        payload: dict[str, Any] = given(tick) if callable(given) else copy.deepcopy(dict(given or {}))
        if not isinstance(payload, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise CronInvalid(f"cron entry {self.name!r}: payload must return a dict, not {short_repr(payload)}")
        return payload


class CronEntries:
    """Entries of this process by name, in order of declaration."""

    def __init__(self) -> None:
        self._by_name: dict[str, CronEntry] = {}
        # Entries that were left out, with the backend of each entry's task. Settings for tests and for a laptop often
        # name another one, and no command could run there if that were an error.
        self.left_out: dict[str, str] = {}

    def add(self, entry: CronEntry, *, other_backend: str | None = None) -> None:
        """Add ``entry``, or leave it out if its task is another backend's. Raises CronInvalid when its name is taken.

        The check salon_jobs.W072 warns of entries that are left out.
        """
        if entry.name in self._by_name or entry.name in self.left_out:
            raise CronInvalid(
                f"there are two cron entries named {entry.name!r}; give one of them another name with name='…'"
            )
        if other_backend is None:
            self._by_name[entry.name] = entry
        else:
            self.left_out[entry.name] = other_backend

    def all(self) -> tuple[CronEntry, ...]:
        return tuple(self._by_name.values())

    def clear(self) -> None:
        """Remove every entry; for tests."""
        self._by_name.clear()
        self.left_out.clear()


cron_entries: Final = CronEntries()


def entries_of_tick(task_name: str, tick: datetime) -> list[CronEntry]:
    """Return this process's entries that start this task at exactly this instant."""
    return [entry for entry in cron_entries.all() if entry.task_name == task_name and entry.is_due_at(tick)]


def cron(
    line: str,
    target: Task[..., Any] | DjangoTask[..., Any],
    *,
    payload: Mapping[str, Any] | Callable[[datetime], dict[str, Any]] | None = None,
    timezone: str = "UTC",
    backfill: timedelta | None = None,
    overlap: bool = True,
    name: str | None = None,
) -> CronEntry:
    """Declare that ``target``, a system task or one of Django's, starts whenever ``line`` is due in ``timezone``.

    ``payload`` is a dict, which is checked here, or a function of the tick, whose result is checked at the tick: derive
    dates and cutoffs from the tick, never from the clock. ``backfill`` is how late a tick may still fire (at least
    GRACE). Without ``overlap``, a tick is skipped while the job of the last one, or of a run by hand, is queued or
    running. ``name`` defaults to the task's name. Does not access the database. Raises CronInvalid for an invalid line,
    zone, target, payload, backfill, overlap or name.

    An entry whose task is one of Django's, of a backend that is not ours by these settings, starts nothing; a check
    warns of it.
    """
    task, other_backend = None, registry.other_backend_of(target)
    if other_backend is None:
        try:
            task = registry.declaration_of(target)
        except TaskInvalid as error:
            raise CronInvalid(f"cron starts registered tasks: {error}") from error
    if task is not None and task.is_store_task:
        raise CronInvalid(
            f"{task.name!r} is a store task; cron starts system tasks: let one call fan_out(…) to start it for every"
            " store"
        )
    task_name: str = cast("Any", target).module_path if task is None else task.name
    name = task_name if name is None else name
    if not isinstance(name, str) or not name.strip() or "\0" in name or len(name) > _NAME_LENGTH:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CronInvalid(
            f"the name of a cron entry is a string of 1 to {_NAME_LENGTH} characters, not {short_repr(name)}"
        )
    backfill = timedelta() if backfill is None else backfill
    if not isinstance(backfill, timedelta) or backfill < timedelta():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CronInvalid(
            f"cron entry for {task_name!r}: backfill is a timedelta of zero or more, not {short_repr(backfill)}"
        )
    if not isinstance(overlap, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CronInvalid(f"cron entry for {task_name!r}: overlap is True or False, not {short_repr(overlap)}")
    given = cast("Any", payload)
    if not (given is None or isinstance(given, Mapping) or callable(given)):
        raise CronInvalid(
            f"cron entry for {task_name!r}: payload is a dict or a function of the tick, not {short_repr(given)}"
        )
    entry = CronEntry(
        name=name,
        expression=CronExpression(line, timezone),
        task_name=task_name,
        payload=payload if callable(payload) else copy.deepcopy(payload),
        backfill=backfill,
        overlap=overlap,
    )
    if task is not None and not callable(payload):
        try:
            task.payload.bind((), {} if payload is None else payload)
        except PayloadInvalid as error:
            raise CronInvalid(f"the payload of cron entry {name!r} does not fit: {error}") from error
    cron_entries.add(entry, other_backend=other_backend)
    return entry


@dataclass(frozen=True, slots=True)
class DueTicks:
    """Ticks to fire, oldest first, and the number of ticks that are too late.

    ``missed`` counts up to TICKS_AT_ONCE; no tick up to ``after`` remains to fire. The next call continues after the
    last tick that has fired, or after ``after``.
    """

    ticks: tuple[datetime, ...]
    missed: int
    after: datetime


def due_ticks(entry: CronEntry, after: datetime, until: datetime) -> DueTicks:
    """Return the ticks in (after, until] that are within the entry's window at ``until``, at most TICKS_AT_ONCE.

    Older ones count as missed. Work and memory are bounded, even after a long pause. If the clock went back (``until``
    before ``after``), there are no ticks, and ``after`` stays. Pure: the result depends only on the arguments.
    """
    after, until = as_utc(after), as_utc(until)
    if until <= after:
        return DueTicks((), 0, after)
    missed = 0
    if until - after > entry.window:
        just_before_window = until - entry.window - timedelta.resolution
        missed = sum(1 for _ in islice(entry.expression.between(after, just_before_window), TICKS_AT_ONCE))
        after = just_before_window
    ticks = tuple(islice(entry.expression.between(after, until), TICKS_AT_ONCE))
    return DueTicks(ticks, missed, after if ticks else until)
