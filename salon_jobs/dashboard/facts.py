"""The facts from which the verdict follows: what runs, waits, fails, died, and holds others up."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final, NamedTuple

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import StoreId
from salon_jobs.dashboard import processes, queues, relays
from salon_jobs.dashboard.processes import LATE_TICK, CronAtWork, ProcessAtWork
from salon_jobs.dashboard.queues import Waiting
from salon_jobs.dashboard.relays import Relaying
from salon_jobs.db import clock, statements
from salon_jobs.jobs.search import FailureKind, failure_kinds
from salon_jobs.jobs.waiting import QueueFront, look_at_queue
from salon_jobs.process.preflight import pending_migrations

# How long a transaction may be open before it is a problem, apart from those of running jobs.
OPEN_FOR: Final = timedelta(minutes=5)
_DEATHS_WITHIN: Final = timedelta(minutes=15)
# The migration that creates the table of processes that have ended.
_ENDS_NOTED: Final = "salon_jobs.0011_ended_processes"
# A task fails as a whole if so many runs have failed since the last success. A job that waits to be tried again has run
# in this time, unless its task has a longer backoff than the default of an hour.
_FAILING_RUNS: Final = 3
_RAN_WITHIN: Final = timedelta(hours=2)


class LateSchedules(NamedTuple):
    """Late schedules at an instant: if any is not paused, how many are late, up to 10,001, and their oldest tick."""

    exist: bool
    late: int
    oldest: datetime | None
    at: datetime


class Ends(NamedTuple):
    """Processes that died in the last 15 minutes, ``names`` up to four of them, and when any last ended, by kind.

    ``job_ids`` are the jobs that most of them ran, up to four, as far as is known, and ``of_job`` how many that were;
    ``task`` and ``state`` are of a single one, None: it is gone.
    """

    deaths: int
    first_at: datetime | None
    names: list[str]
    job_ids: list[int]
    of_job: int | None
    task: str | None
    state: str | None
    last: Mapping[str, datetime]


class OpenTransaction(NamedTuple):
    """Session with a transaction that is open too long; ``since`` and ``state`` may be hidden from this role."""

    pid: int
    user: str
    application: str
    state: str
    since: datetime | None
    blocked: int
    tables: list[str]

    @property
    def name(self) -> str:
        """The session's process ID, and who it is as far as that is known."""
        known = ", ".join(filter(None, (self.application, self.user, self.state)))
        return f"{self.pid}{f' ({known})' if known else ''}"


class PreparedTransaction(NamedTuple):
    """Transaction that was prepared (``PREPARE TRANSACTION``) too long ago and has not ended; ``number`` is its own."""

    number: str
    gid: str
    user: str
    since: datetime
    blocked: int
    tables: list[str]


class FailingTask(NamedTuple):
    """Task whose jobs are tried again and again: how many runs failed since the last success, and since when."""

    task: str
    runs: int
    since: datetime | None


class Facts:
    """Facts from which the verdict follows, each read once, at its first use. Role: operator, worker."""

    def __init__(self, *, using: str) -> None:
        self.using = using

    @property
    def at(self) -> datetime:
        """The database's time: the clock of this host may be wrong."""
        return self.schedules.at

    @cached_property
    def processes(self) -> tuple[ProcessAtWork, ...]:
        return processes.processes(using=self.using)

    @cached_property
    def waiting(self) -> Waiting:
        return queues.waiting(using=self.using)

    @cached_property
    def front(self) -> QueueFront:
        return look_at_queue(using=self.using)

    @cached_property
    def late(self) -> Mapping[str, float]:
        """The queues whose oldest due job has waited for longer than ``LATE_AFTER``, and for how many seconds."""
        late_s = conf.late_after.total_seconds()
        return {queue: waited_s for queue, waited_s in self.front.late_s.items() if waited_s > late_s}

    @cached_property
    def stores_of_late(self) -> Mapping[str, StoreId]:
        """The store that has most of the due jobs of a late queue, if it has one."""
        return dict(self._rows("stores_of_queues", queues=[*self.late])) if self.late else {}

    @cached_property
    def cron(self) -> tuple[CronAtWork, ...]:
        return processes.cron(using=self.using, now=self.at)

    @cached_property
    def relaying(self) -> Relaying:
        return relays.relaying(using=self.using)

    @cached_property
    def totals(self) -> relays.Totals:
        return relays.totals(using=self.using)

    @cached_property
    def failures(self) -> list[FailureKind]:
        return failure_kinds(using=self.using)

    @cached_property
    def schedules(self) -> LateSchedules:
        [row] = self._rows("late_schedules", late=LATE_TICK, most=relays.COUNTED)
        found = LateSchedules(*row)
        clock.brought(found.at, using=self.using)
        return found

    @cached_property
    def ends(self) -> Ends:
        if _ENDS_NOTED in self.pending_migrations:  # a release that is being deployed looks before its migrations ran
            return Ends(0, None, [], [], None, None, None, {})
        [(*deaths, kinds, times)] = self._rows("process_ends", last=_DEATHS_WITHIN)
        return Ends._make((*deaths, dict(zip(kinds, times, strict=True))))

    @cached_property
    def open_transactions(self) -> list[OpenTransaction]:
        return [OpenTransaction(*row) for row in self._rows("open_transactions", last=OPEN_FOR)]

    @cached_property
    def prepared_transactions(self) -> list[PreparedTransaction]:
        return [PreparedTransaction(*row) for row in self._rows("prepared_transactions", last=OPEN_FOR)]

    @cached_property
    def failing_tasks(self) -> list[FailingTask]:
        found = self._rows("tasks_that_only_fail", last=_RAN_WITHIN, runs=_FAILING_RUNS)
        return [FailingTask(*row) for row in found]

    @cached_property
    def pending_migrations(self) -> list[str]:
        return pending_migrations(self.using)

    def alive(self, kind: str) -> list[ProcessAtWork]:
        """Return the processes of this kind that send heartbeats."""
        return [each for each in self.processes if each.kind == kind and not each.silent]

    def none_since(self, kind: str) -> datetime | None:
        """Return when the last process of this kind ended, or sent its last heartbeat; None: unknown."""
        silent = [self.at - timedelta(seconds=each.beat_s_ago) for each in self.processes if each.kind == kind]
        return max((*silent, *filter(None, [self.ends.last.get(kind)])), default=None)

    def _rows(self, statement: str, **values: Any) -> list[Any]:
        return statements.rows(statement, values, using=self.using)
