"""Processes and the jobs they hold, and past and future ticks of the schedulers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.errors import CronInvalid
from salon_jobs.core.records import StoreId
from salon_jobs.core.units import gettext_noop
from salon_jobs.db import clock
from salon_jobs.db.statements import rows
from salon_jobs.jobs import registry
from salon_jobs.jobs.waiting import served_in_words
from salon_jobs.models import CronEntryState
from salon_jobs.schedules.entries import cron_entries
from salon_jobs.words import ENDED, override_of

# The most jobs of a process to count: more than it runs and has claimed.
MOST_HELD: Final = 10_001
# How late a tick may be before it is a problem: schedulers fire within a second, and take over within seconds.
LATE_TICK: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job held by a process, and for how long. The first ones run; the others wait there for a thread."""

    id: int
    task: str
    store: StoreId | None
    for_s: float


@dataclass(frozen=True, slots=True)
class ProcessAtWork:
    """A process; ``held`` is how many jobs it has claimed, up to ``MOST_HELD``, ``jobs`` the five held longest.

    ``runs`` is how many calls of handlers they take, since a chunk is one; ``coroutines`` counts those of async ones,
    which wait for no thread.
    """

    id: int
    kind: str
    hostname: str
    pid: int
    supervisor_id: int | None
    queues: tuple[str, ...] | None
    concurrency: int
    started_at: datetime
    beat_s_ago: float
    held: int
    runs: int
    coroutines: int
    jobs: tuple[HeldJob, ...]

    @property
    def name(self) -> str:
        """Its host and process ID."""
        return f"{self.hostname}/{self.pid}"

    @property
    def serves(self) -> str:
        """The queues that a worker serves, in words."""
        return served_in_words(self.queues)

    @property
    def running(self) -> int:
        """How many of its runs have begun: coroutines, and as many others as it has threads."""
        return min(self.runs - self.coroutines, self.concurrency) + self.coroutines

    @property
    def claimed(self) -> int:
        """How many of them wait in it for a thread."""
        return self.runs - self.running

    @property
    def silent(self) -> bool:
        """Whether the process is considered dead."""
        return self.beat_s_ago > conf.process_silent_after.total_seconds()


@dataclass(frozen=True, slots=True)
class CronAtWork:
    """A cron entry; ``schedule`` None: this process does not declare it. ``result``: the outcome of its last job.

    ``next_at`` is the oldest tick that has not fired: in the past if no scheduler runs.

    ``schedule`` is the line in effect, and ``override`` names the line it replaces, if an operator set it; ``invalid``
    is why it cannot be parsed, so that the entry is never due.
    """

    name: str
    schedule: str | None
    timezone: str | None
    override: str
    next_at: datetime | None
    last_tick: datetime | None
    fired_at: datetime | None
    job_id: int | None
    result: str
    invalid: str = ""
    paused: bool = False

    def is_late(self, now: datetime) -> bool:
        """Return whether its next tick, the oldest that has not fired, should have fired a minute ago."""
        return self.next_at is not None and not self.paused and now - self.next_at > LATE_TICK

    @property
    def failed(self) -> bool:
        """Whether the last job failed, or the last tick was missed."""
        return self.result.startswith(("failed", "missed"))


def processes(*, using: str) -> tuple[ProcessAtWork, ...]:
    """List the processes, each supervisor before its children. One query. Role: operator, worker."""
    found: list[ProcessAtWork] = []
    async_tasks = [task.name for task in registry.tasks() if task.is_async]
    chunks = json.dumps({task.name: task.chunk for task in registry.tasks() if task.chunk is not None})
    for row in rows("processes_at_work", {"coroutines": async_tasks, "chunks": chunks}, using=using):
        number, kind, hostname, pid, supervisor_id = row[:5]
        queues, concurrency, started_at, beat_s_ago, held, runs, coroutines, jobs = row[5:]
        served = None if queues is None else tuple(json.loads(queues))
        shown = tuple(
            HeldJob(each["id"], each["task"], each["store"] and store_key().parse(each["store"]), each["for_s"] or 0.0)
            for each in jobs
        )
        process = number, kind, hostname, pid, supervisor_id, served, concurrency, started_at, beat_s_ago
        found.append(ProcessAtWork(*process, held, runs, coroutines, shown))
    return tuple(found)


def cron(*, using: str, now: datetime | None = None) -> tuple[CronAtWork, ...]:
    """List the entries that schedulers have seen and those declared here. One query. Role: operator, worker.

    Ticks of paused entries are counted from ``now``, by default the database's time.
    """
    now = now or clock.now(using)
    results: dict[str, tuple[CronEntryState, datetime, tuple[Any, ...]]] = {}
    for name, line, by, at, paused_at, since, *result in rows("cron_results", using=using):
        state = CronEntryState(name=name, line=line, overridden_by=by, overridden_at=at, paused_at=paused_at)
        results[name] = state, since, tuple(result)
    declared = {entry.name: entry for entry in cron_entries.all()}
    entries: list[CronAtWork] = []
    for name in sorted({*results, *declared}):
        unregistered = CronEntryState(name=name, line=""), now, (None,) * 4
        state, since, (tick, fired_at, job_id, outcome) = results.get(name, unregistered)
        paused = state.paused_at is not None
        timing: tuple[str | None, str | None, str, datetime | None] = (None, None, "", None)
        invalid = ""
        if entry := declared.get(name):
            instead = override_of(state, entry.expression.line)
            try:
                expression = entry.overridden(state.line).expression
                next_at = expression.next_after(now if paused else since)
                timing = (expression.line, expression.timezone, instead, next_at)
            except CronInvalid as error:
                timing, invalid = (state.line, entry.expression.timezone, instead, None), str(error)
        result = gettext_noop("never fired") if tick is None else outcome or ENDED
        entries.append(CronAtWork(name, *timing, tick, fired_at, job_id, result, invalid, paused))
    return tuple(entries)
