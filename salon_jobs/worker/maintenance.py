"""Background maintenance alongside the claims: rescue of dead processes' jobs, queue stats, pruning."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import Any, Final, NamedTuple

from django.db import DatabaseError, OperationalError

from salon_jobs.conf import settings as conf
from salon_jobs.core import events, metrics
from salon_jobs.core.error_report import report
from salon_jobs.core.errors import NotRepeated, ProcessDied, SalonJobsError, TimedOut, require_within
from salon_jobs.core.events import log_event
from salon_jobs.core.metrics import Sample
from salon_jobs.core.records import JobState
from salon_jobs.core.tracing import FinalFailure, report_failure
from salon_jobs.core.units import in_seconds, with_noun
from salon_jobs.db import statements
from salon_jobs.db.statements import is_lock_conflict, short_lock_timeout
from salon_jobs.jobs import enqueue, registry
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.pruning import Pruner
from salon_jobs.jobs.run import JobRun
from salon_jobs.jobs.statistics import ended_runs
from salon_jobs.jobs.waiting import QueueFront, count_rest, look_at_queue, record_depths
from salon_jobs.process.heartbeat import application_name
from salon_jobs.process.loop import Loop
from salon_jobs.worker.chunks import can_join_chunk
from salon_jobs.worker.ends import identify, settle
from salon_jobs.worker.in_flight import InFlightRun

# The event as which the rescue of a job is counted, by the job's state after it.
_EVENTS = {
    JobState.QUEUED: events.JOB_RESCUED,
    JobState.FAILED: events.JOB_FAILED,
    JobState.CANCELLED: events.JOB_CANCELLED,
}


# A round that takes longer leaves the rest to the next one: this loop also reads the queues.
_ROUND_S: Final = 2.0


class RescueCounts(NamedTuple):
    """Number of dead processes, and of their jobs that failed, or did not; a few of ``queued`` were cancelled."""

    processes: int = 0
    queued: int = 0
    failed: int = 0


class Rescuer:
    """Rescuer of the jobs of silent processes.

    It does not judge by the heartbeats on a server that it has just met: its first, or another one after a failover,
    which may lack the last transactions. Nor does it after an outage, when no process could send heartbeats, or after a
    query that took longer than a heartbeat interval (a pooler without a free connection): the heartbeats may still be
    waiting. In each case it first waits for a full silence period.
    """

    def __init__(self, *, using: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._using, self._clock = using, clock
        self._blind_until = float("-inf")
        # The servers' start times, and whether they were standbys.
        self._servers: set[tuple[float, bool]] = set()
        self._held_up: set[int] = set()

    def run_once(self, *, silent_after: timedelta | None = None) -> RescueCounts:
        """Rescue the jobs of every silent process once and return the counts.

        Raises database errors; then call it again later.
        """
        silence = silent_after or conf.process_silent_after
        asked = self._clock()
        if asked < self._blind_until:
            return RescueCounts()
        try:
            [(*server, dead)] = statements.rows("silent_processes", {"silent_after": silence}, using=self._using)
            self._held_up.intersection_update(dead)
            is_known = tuple(server) in self._servers
            if not is_known or self._clock() - asked > conf.heartbeat_interval.total_seconds():
                self._servers.add(tuple(server))
                self._blind_until = self._clock() + silence.total_seconds()
                return RescueCounts()
            counts: list[RescueCounts] = []
            # In any order, since a held-up process may take all the time there is.
            for process_id in random.sample(dead, len(dead)):
                if self._clock() > asked + _ROUND_S:
                    break
                try:
                    counts.append(rescue_process(process_id, silence, using=self._using))
                except OperationalError as error:
                    if not is_lock_conflict(error):
                        raise
                    if process_id not in self._held_up:
                        self._held_up.add(process_id)
                        log_held_up(process_id, error)
        except DatabaseError:
            self._blind_until = self._clock() + silence.total_seconds()
            raise
        return RescueCounts(*map(sum, zip(*counts, strict=True)))


def rescue_process(
    process_id: int,
    silence: timedelta | None,
    *,
    using: str,
    end: str = "stopped sending heartbeats",
    charged: Collection[int] | None = None,
    ran: Collection[int] = (),
    overdue: Iterable[InFlightRun] = (),
    died: bool = True,
) -> RescueCounts:
    """Delete the row, end the dead process's backends, and then requeue its jobs.

    The order matters: the deletion waits for a claim in flight, which holds KEY SHARE on the row, and a later claim
    finds no row. If the process sends a heartbeat in the meantime, it keeps its row and nothing happens. ``silence`` is
    None for a process that is known to be dead; ``end`` describes how it ended, ``charged`` lists the jobs that had
    started (None: unknown), ``ran`` those that had and are not to blame, and the ``overdue`` runs, for which it was
    killed, count as failed attempts. One that we have ended on purpose has not ``died``.

    Jobs that another transaction holds up are left, as jobs of an owner without a row: the next sweep tries them again,
    and then it is unknown which had started. Raises database errors; then call it again. A held-up process row is an
    error too (``is_lock_conflict``).
    """
    leases = Leases(process_id, using=using)
    is_silent, label = _declare_dead(process_id, silence, using, died)
    if not is_silent:
        return RescueCounts()
    for run in overdue:
        _fail_overdue(run, leases)
    name = label or "unknown process"
    message = f"{name} {end} and was declared dead"
    rescued = leases.rescue(message, charged=charged, ran=ran, again=label is None)
    if label is None and not rescued:
        return RescueCounts()
    enqueue.wake_ups.after_commit(using)
    if jobs := [job.id for job in rescued if job.charged]:
        statements.execute("note_deaths", {"process_id": process_id, "jobs": json.dumps(jobs[:100])}, using=using)
    held_up = len(leases.other_leases(()))
    fields: dict[str, Any] = {"held_up": held_up} if held_up else {}
    log_event(
        logging.WARNING, events.PROCESS_DEAD, process=name, process_id=process_id, jobs=len(rescued), end=end, **fields
    )
    for job in rescued:
        ended_runs.count_untimed(_EVENTS[job.state], job.task, job.queue)
        described = identify(job)
        log_event(logging.WARNING, events.JOB_RESCUED, state=job.state.value, charged=job.charged, **described)
        if job.state is JobState.FAILED:
            error: SalonJobsError = ProcessDied(
                f"{name} died running it: {with_noun(job.rescues, 'process has', 'processes have')} by now"
            )
            if job.reason == NotRepeated.code:
                error = NotRepeated(f"{name} died running it, and the task runs at most once")
            described |= {"error_class": report(error).error_class, "code": error.code, "error": str(error)}
            log_event(logging.ERROR, events.JOB_FAILED, queue=job.queue, **described)
            report_failure(FinalFailure(job.id, job.task, job.store_id, job.attempts + 1, error))
    failed = sum(job.state is JobState.FAILED for job in rescued)
    return RescueCounts(1, len(rescued) - failed, failed)


def _declare_dead(process_id: int, silence: timedelta | None, using: str, died: bool) -> tuple[bool, str | None]:
    """Delete a process's row and end its backends, in one transaction.

    Return whether it is dead, and its name in the log; None if its row was already gone.
    """
    backends = {"application_name": application_name(process_id)}
    deletion = {"process_id": process_id, "silent_after": silence, "died": died}
    for is_last in (False, True):
        try:
            with short_lock_timeout(using=using):
                labels = statements.rows("delete_process", deletion, using=using)
                if labels:
                    statements.rows("end_backends", backends, using=using)
                return bool(labels), labels[0][0] if labels else None
        except OperationalError as error:
            if is_last or not is_lock_conflict(error):
                raise
        # A claim in flight holds the row; its backend may be sending the answer to a host that is gone.
        statements.rows("end_backends", backends, using=using)
    raise AssertionError  # the last try returns or raises


def log_held_up(process_id: int, error: OperationalError) -> None:
    """Log that a dead process could not be declared dead, since another transaction holds its row."""
    log_event(logging.WARNING, events.RESCUE_HELD_UP, process_id=process_id, error=str(error).strip())


def _fail_overdue(run: InFlightRun, leases: Leases) -> None:
    """Settle a run for which its process was killed, unless the run ended just before."""
    job = leases.leased_job(run.job_id, run.lease)
    task = None if job is None else registry.get_declaration(job.task)
    # The jobs of a chunk that took too long are not charged: they are rescued, and run one by one.
    if job is not None and task is not None and not can_join_chunk(task, job):
        running = JobRun(job, task, leases, leases.connection)
        running.started = run.began
        took_s = run.kill_at - run.began
        killed = TimedOut(f"timed out, went on for {in_seconds(took_s)} and was killed with its process")
        try:
            settle(running, task.errors.outcome(killed))
        except OperationalError as error:  # rescued like the others
            if not is_lock_conflict(error):
                raise


_EVERY_S = 1.0
_INSPECT_EVERY_S = 10.0
# How late the oldest due job must be for a log record.
_LATE_S = 1.0
_PRUNE_EVERY_S = 60.0
_SWEEP_STALE_S = 60.0


_UNDECLARED: Final = (
    "due jobs stay queued, since no module that this process loads declares their task: deploy the code that does,"
    " declare a task with the old name (name=…), or cancel the jobs: manage.py salon_jobs cancel --task NAME"
)


class Maintenance(Loop):
    """Loop that rescues every second, inspects the queue every ten and prunes every minute.

    With ``burst`` it also inspects the queue at the end, to report due jobs that the burst leaves because no process
    has their task.
    """

    def __init__(self, *, using: str, burst: bool = False) -> None:
        super().__init__("maintenance", using=using, first_poll_in_s=_EVERY_S)
        self._burst = burst
        self._rescuer = Rescuer(using=using)
        self._pruner = Pruner(using=using)
        self._inspect_at = self._prune_at = float("-inf")
        self._swept = time.monotonic()
        self._rest: dict[tuple[str, str], int] = {}
        self.front = QueueFront()

    def require_ready(self) -> None:
        """Raise NotReady if the last sweep was too long ago."""
        require_within(_SWEEP_STALE_S, time.monotonic() - self._swept, "no sweep for dead processes has succeeded")

    def samples(self) -> list[Sample]:
        """Return the metrics samples: the queues as last inspected, and the age of the last sweep."""
        return [
            Sample(metrics.LOOP_AGE, time.monotonic() - self._swept, ("sweep",)),
            *self.front.samples(),
            *(Sample(metrics.QUEUE_DEPTH, count, labels) for labels, count in self._rest.items()),
        ]

    def poll(self) -> float:
        now = time.monotonic()
        self._rescuer.run_once()
        self._swept = now
        if now >= self._inspect_at:
            self._inspect()
            statements.execute("forget_superseded", using=self.using)
            statements.rows("enqueue_follow_ups", using=self.using)
            statements.rows("move_flow_members", using=self.using)
            statements.rows("start_ordered", using=self.using)
            record_depths(using=self.using)
            self._inspect_at = now + _INSPECT_EVERY_S
        ended_runs.flush_when_due(using=self.using)
        if now >= self._prune_at:
            self._prune_at = now + (0.0 if self._pruner.run_once().more else _PRUNE_EVERY_S)
        return _EVERY_S

    def finish(self) -> bool:
        """Write the counts."""
        return self.outage.attempt(self._finish)

    def _finish(self) -> None:
        ended_runs.flush(using=self.using)
        if self._burst:
            self._inspect()

    def _inspect(self) -> None:
        front = look_at_queue(using=self.using)
        # Search after each look, since a job may be added at any time: a search has covered every task that is still
        # unknown.
        while front.unknown_tasks and registry.find_waiting_tasks(using=self.using):
            front = look_at_queue(using=self.using)
        self._rest = count_rest(using=self.using)
        if front.unknown_tasks and front.unknown_tasks != self.front.unknown_tasks:
            tasks = list(front.unknown_tasks)
            log_event(logging.WARNING, events.TASKS_UNKNOWN, code="JOB.UNKNOWN_TASK", tasks=tasks, detail=_UNDECLARED)
        # An idle or quick worker has nothing to report: the metric covers that.
        news = max(front.lag_s, self.front.lag_s) >= _LATE_S
        log_event(logging.INFO if news else logging.DEBUG, events.QUEUE_LAG, lag_s=round(front.lag_s, 3))
        self.front = front
