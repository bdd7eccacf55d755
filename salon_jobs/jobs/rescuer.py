"""Finds processes that went silent, buries them and queues their jobs again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import DatabaseError, connections, transaction

from salon_jobs import sql
from salon_jobs.conf import settings as conf
from salon_jobs.core import log_events
from salon_jobs.core.errors import ProcessDied, TimedOut
from salon_jobs.core.log_events import log_event
from salon_jobs.core.outcomes import Errored
from salon_jobs.core.records import JobState
from salon_jobs.core.telemetry import FinalFailure, report_failure
from salon_jobs.jobs import store, wake
from salon_jobs.jobs.current import RunningJob
from salon_jobs.jobs.executor import settle
from salon_jobs.jobs.statistics import ended_runs
from salon_jobs.runtime.presence import application_name
from salon_jobs.runtime.run_board import ShownRun

# What a job of a dead process counts as.
_EVENTS = {
    JobState.QUEUED: log_events.JOB_RESCUED,
    JobState.FAILED: log_events.JOB_FAILED,
    JobState.CANCELLED: log_events.JOB_CANCELLED,
}


@dataclass(frozen=True, slots=True)
class RescueCounts:
    """Counts what one sweep did."""

    buried: int = 0
    queued: int = 0
    failed: int = 0


class Rescuer:
    """Buries silent processes.

    After an outage it waits a full silence first: nobody could beat without a database. So it does when its own
    question had to wait for longer than a heartbeat (a pooler without a free connection): theirs may wait still.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._blind_until = float("-inf")

    def run_once(self, *, silent_after: timedelta | None = None) -> RescueCounts:
        """Bury every silent process once and return the counts. Raises database errors; then call it again later."""
        silence = silent_after or conf.process_silent_after
        asked = self._clock()
        if asked < self._blind_until:
            return RescueCounts()
        try:
            dead = [row[0] for row in _query("silent_processes", {"silent_after": silence})]
            if self._clock() - asked > conf.heartbeat_interval.total_seconds():
                self._blind_until = self._clock() + silence.total_seconds()
                return RescueCounts()
            counts = [bury(process_id, silence) for process_id in dead]
        except DatabaseError:
            self._blind_until = self._clock() + silence.total_seconds()
            raise
        return RescueCounts(
            sum(count.buried for count in counts),
            sum(count.queued for count in counts),
            sum(count.failed for count in counts),
        )


def bury(
    process_id: int,
    silence: timedelta | None,
    *,
    end: str = "went silent",
    charged: Collection[int] | None = None,
    overdue: Iterable[ShownRun] = (),
) -> RescueCounts:
    """Delete the row, end the dead process's backends, queue its jobs again: in one transaction, in this order.

    The order matters: a claim in flight holds KEY SHARE on the row and is waited for; a later one finds no row. A
    process that beats meanwhile keeps its row and nothing happens. ``silence`` None: it is known to be dead; ``end``
    says how it ended, ``charged`` which jobs had started (None: nobody knows), and ``overdue`` runs for which it was
    killed count as failed attempts. Raises database errors; then call it again.
    """
    with transaction.atomic(using=conf.database):
        rows = _query("delete_process", {"process_id": process_id, "silent_after": silence})
        if not rows:
            return RescueCounts()
        label: str = rows[0][0]
        _query("end_backends", {"application_name": application_name(process_id)})
        for run in overdue:
            _fail_overdue(run, process_id)
        rescued = store.rescue(process_id, f"{label} {end} and was buried", charged=charged)
        wake.after_commit(None)
    log_event(
        logging.WARNING, log_events.PROCESS_BURIED, process=label, process_id=process_id, jobs=len(rescued), end=end
    )
    for job in rescued:
        ended_runs.count_untimed(_EVENTS[job.state], job.task, job.queue)
        _report(job, label)
    failed = sum(job.state is JobState.FAILED for job in rescued)
    return RescueCounts(1, len(rescued) - failed, failed)


def _fail_overdue(run: ShownRun, process_id: int) -> None:
    """Settle, in its dead process's place, a run that had to be killed. It may have ended just before."""
    job = store.leased_job(process_id, run.job_id, run.lease)
    if job is not None:
        running = RunningJob(job, process_id)
        running.started = run.began
        settle(
            running,
            Errored(
                TimedOut(f"timed out, went on for {run.kill_at - run.began:.3g} s and was killed with its process")
            ),
        )


def _report(job: store.Rescued, label: str) -> None:
    fields: dict[str, Any] = {
        "task_name": job.task,
        "job_id": job.id,
        "store_id": job.store_id,
        "attempt": job.attempts + 1,
    }
    log_event(logging.WARNING, log_events.JOB_RESCUED, state=job.state.value, charged=job.charged, **fields)
    if job.state is JobState.FAILED:
        error = ProcessDied(f"{label} died running it, too often")
        log_event(logging.ERROR, log_events.JOB_FAILED, code=error.code, **fields)
        report_failure(FinalFailure(job.id, job.task, job.store_id, job.attempts + 1, error, None))


def _query(statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    with connections[conf.database].cursor() as cursor:
        cursor.execute(sql.load(statement), parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows
