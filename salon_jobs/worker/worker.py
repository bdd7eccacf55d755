"""Loop that claims due jobs in batches and feeds the runner threads."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError, InterfaceError, connections

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.errors import NotReady
from salon_jobs.core.events import log_event
from salon_jobs.db.notify import SECOND_LOOK, Listener
from salon_jobs.jobs import enqueue, queries
from salon_jobs.jobs.statistics import ended_runs
from salon_jobs.tenancy.connections import log_lost, refuse_small_pool, tidy_connections
from salon_jobs.worker.buffer import OVERDUE_S, JobBuffer
from salon_jobs.worker.claim import THROTTLED_S, Claimer
from salon_jobs.worker.deadlines import LOOK_EVERY_S, Cancellations, DeadlineWatcher
from salon_jobs.worker.finisher import Finisher
from salon_jobs.worker.in_flight import InFlightTable
from salon_jobs.worker.runner import Runner

_OUTAGE_S = (0.1, 2.0)
_SWEEP_S = 30.0
_FORCED_S = 1.0
# The part of the grace reserved for giving jobs back, ending the other threads and signing off.
_LEAVE_S = 1.5
_STOP_LOOK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What one worker serves. ``queues`` None means all; ``burst`` stops when nothing is due."""

    concurrency: int
    queues: Sequence[str] | None = None
    burst: bool = False


class Worker:
    """Runner of a registered process's jobs, until stopped. ``stop`` is idempotent and returns at once."""

    def __init__(self, process_id: int, options: WorkerOptions, *, board: InFlightTable | None = None) -> None:
        """Create the threads; ``board`` shows what each of them runs (None if there is no supervisor)."""
        self._process_id = process_id
        self._options = options
        self._jobs = JobBuffer(options.concurrency, self._place_freed)
        self._claimer = Claimer(process_id, options.queues)
        self._stopping = threading.Event()
        self._forced = threading.Event()
        self._abandon = threading.Event()
        self._wake = threading.Event()
        self._freed = False
        self._looked = self._asked = self._heard = float("-inf")
        self._finisher = Finisher(process_id, self._jobs.forget, self._abandon)
        self._timekeeper = DeadlineWatcher(self._count_timeout)
        self._timeouts = itertools.count(1)
        self.claimed = 0
        self.draining = self._told_to_stop = False
        shown = board or InFlightTable(options.concurrency)
        self._runners = [
            Runner(
                self._jobs, self._finisher, process_id, number, self._abandon, board=shown, timekeeper=self._timekeeper
            )
            for number in range(options.concurrency)
        ]
        self._cancellations = Cancellations(process_id, self._jobs, self._runners)

    def wake(self, news: str = "") -> None:
        """Poll for due jobs now and once more soon, and for cancellations if ``news`` says so. Thread-safe."""
        if news == enqueue.CANCEL:
            self._cancellations.tell()
        self._heard = time.monotonic()
        self._wake.set()

    def stop(self) -> None:
        """Request a graceful stop; a second call forces it."""
        if self._told_to_stop:
            self._forced.set()
        self._told_to_stop = True
        self._stopping.set()
        self._wake.set()

    @property
    def looked_s_ago(self) -> float:
        """Return the age in seconds of the last claim that the database answered."""
        return time.monotonic() - self._looked

    @property
    def unwritten_s(self) -> float:
        """How long the end of a run has been waiting to be written, in seconds."""
        return self._finisher.behind_s

    @property
    def ended_runners(self) -> int:
        """Number of runner threads that ended without being asked to."""
        return 0 if self._stopping.is_set() else sum(runner.ended for runner in self._runners)

    @property
    def has_room(self) -> bool:
        """Whether the worker would claim now if a job were due."""
        return self._jobs.room() > 0

    def run(self) -> bool:
        """Work until stopped (or, with ``burst``, until nothing is due).

        Returns True if every job ended or was given back.
        """
        self._finisher.start()
        self._timekeeper.start()
        for runner in self._runners:
            runner.start()
        try:
            self._claim_until_stopped()
        finally:
            self._stopping.set()
            clean = self._finish()
            connections.close_all()
        return clean

    def _claim_until_stopped(self) -> None:
        outage_s = _OUTAGE_S[0]
        swept = time.monotonic()
        while not self._stopping.is_set():
            self._wake.clear()
            self._freed = False
            try:
                self._give_back_overdue()
                self._cancellations.look()
                claimed, room = self._claim()
                self._claimer.follow_rules()
                if time.monotonic() - swept > _SWEEP_S:
                    self._give_back_unknown()
                    swept = time.monotonic()
                ended_runs.flush_when_due()
                if outage_s != _OUTAGE_S[0]:
                    log_event(logging.INFO, events.DATABASE_BACK, loop="claim")
                    outage_s = _OUTAGE_S[0]
                self._look_again_when(claimed, room)
            except (DatabaseError, InterfaceError) as error:
                log_lost(error, loop="claim")
                self._stopping.wait(outage_s)
                outage_s = min(outage_s * 2, _OUTAGE_S[1])
                tidy_connections()
                # The claim may have been committed even though its answer never arrived.
                swept = float("-inf")

    def _count_timeout(self) -> None:
        """Stop after a number of timeouts, to be replaced: an interrupt may have left the process in any state."""
        count = next(self._timeouts)
        if count == conf.terminate_after_timeouts and not self._stopping.is_set() and not self._options.burst:
            log_event(logging.WARNING, events.PROCESS_DRAINING, reason="timeouts", timeouts=count)
            self.draining = True
            self._stopping.set()
            self._wake.set()

    def _claim(self, *, afresh: bool = False) -> tuple[int, int]:
        room = self._jobs.room()
        if room == 0:
            return 0, 0
        self._asked = time.monotonic()
        jobs = self._claimer.claim_afresh(room) if afresh else self._claimer.claim(room)
        self._looked = time.monotonic()
        self.claimed += len(jobs)
        self._jobs.put(jobs)
        return len(jobs), room

    def _look_again_when(self, claimed: int, room: int) -> None:
        """Wait until another claim is worthwhile, which may be at once. Raises database errors."""
        again_s = self._claimer.again_s
        poll_s = min(conf.poll_interval.total_seconds(), float("inf") if again_s is None else again_s)
        if room == 0 or again_s == 0:
            self._jobs.wait_for_room(_STOP_LOOK_S)
        elif self._options.burst:
            if again_s is not None:
                self._wait_to_look(again_s)
            elif claimed == 0 and self._jobs.wait_idle(min(poll_s, _STOP_LOOK_S)) and not self._anything_due():
                self._stopping.set()
        else:
            # Notifications are coalesced: one that was dropped followed the last one heard by less than 20 ms. Poll
            # once more after that time.
            owed_at = self._heard + SECOND_LOOK.total_seconds()
            if self._jobs.has_waiting():
                poll_s = min(poll_s, OVERDUE_S)
            if self._jobs.running_count():
                poll_s = min(poll_s, LOOK_EVERY_S)
            owed_s = max(0.0, min(poll_s, owed_at - time.monotonic()))
            self._wait_to_look(poll_s if self._asked >= owed_at else owed_s)

    def _wait_to_look(self, wait_s: float) -> None:
        self._wake.wait(wait_s)
        if self._freed:
            self._stopping.wait(max(0.0, self._asked + THROTTLED_S[0] - time.monotonic()))

    def _place_freed(self) -> None:
        """Poll again soon if a limit was full: the job that just ended here may have freed its slot."""
        if self._claimer.throttled:
            self._freed = True
            self._wake.set()

    def _anything_due(self) -> bool:
        claimed, _ = self._claim(afresh=True)
        return claimed > 0 or self._claimer.again_s is not None

    def _give_back_overdue(self) -> None:
        """Give back jobs stuck here behind long ones, for other processes. Raises database errors."""
        if overdue := self._jobs.overdue():
            queries.requeue(overdue, self._process_id)
            enqueue.after_commit(None)
            log_event(logging.INFO, events.JOB_RELEASED, jobs=len(overdue), reason="waited behind a long job")

    def _give_back_unknown(self) -> None:
        """Give back rows leased to this process that it does not know of: the answer to their claim was lost."""
        unknown = queries.unknown_leases(self._process_id, self._jobs.known())
        if unknown:
            queries.requeue(unknown, self._process_id)
            self.wake()
            log_event(logging.WARNING, events.JOB_RELEASED, jobs=len(unknown), reason="claim answer lost")

    def _finish(self) -> bool:
        """Give back what has not started, let the rest run, interrupt it, and finally abandon it."""
        began = time.monotonic()
        log_event(logging.INFO, events.PROCESS_STOPPING, running=self._jobs.running_count())
        self._give_back(self._jobs.close())
        self._wait(began + conf.shutdown_interrupt_after.total_seconds())
        if not self._jobs.wait_idle(0):
            for runner in self._runners:
                # Cancelling a query talks to the database, which may not answer: one thread each, so that no runner
                # waits for another.
                threading.Thread(target=runner.interrupt_current, name="salon-jobs-interrupt", daemon=True).start()
            end = began + conf.shutdown_grace.total_seconds() - _LEAVE_S
            now = time.monotonic()
            self._wait(min(end, now + _FORCED_S) if self._forced.is_set() else end, forcible=False)
        clean = self._jobs.wait_idle(0)
        self._abandon.set()
        for runner in self._runners if clean else ():
            runner.join(_FORCED_S)
        self._finisher.stop(_FORCED_S)
        self._timekeeper.stop()
        self._give_back_all()
        self._despite_a_lost_connection(ended_runs.flush)
        return clean

    def _wait(self, until: float, *, forcible: bool = True) -> None:
        while (left := until - time.monotonic()) > 0 and not (forcible and self._forced.is_set()):
            if self._jobs.wait_idle(min(left, 0.1)):
                return

    def _give_back(self, leases: list[tuple[int, int]]) -> None:
        self._despite_a_lost_connection(lambda: queries.requeue(leases, self._process_id))

    def _give_back_all(self) -> None:
        """Give back every row still leased to this process: jobs that would not end, and claims with a lost answer."""

        def give_back() -> None:
            if leases := queries.unknown_leases(self._process_id, ()):
                queries.requeue(leases, self._process_id)
                log_event(logging.WARNING, events.JOB_RELEASED, jobs=len(leases), reason="shutdown")

        self._despite_a_lost_connection(give_back)

    def _despite_a_lost_connection(self, work: Callable[[], object]) -> None:
        """Do the work, and retry once on a new connection. If both fail, other processes rescue our jobs eventually."""
        for _ in range(2):
            try:
                tidy_connections()
                work()
            except (DatabaseError, InterfaceError) as error:
                log_lost(error, loop="give back")
            else:
                return


# Claims, batched writes of successes, and the listener's ping.
OTHER_THREADS = 3


class WorkerLoop:
    """Worker with its listener; through ``board`` a supervisor sees what it runs."""

    def __init__(self, process_id: int, options: WorkerOptions, *, board: InFlightTable | None = None) -> None:
        refuse_small_pool(options.concurrency + OTHER_THREADS)
        self._worker = Worker(process_id, options, board=board)
        self._listener = Listener(enqueue.CHANNEL, self._worker.wake)
        self._began = time.monotonic()
        self._told_claimed = 0

    def run(self) -> bool:
        """Work until stopped. Return True if every job ended or was given back in time."""
        self._listener.start()
        try:
            return self._worker.run()
        finally:
            self._listener.stop()

    def stop(self) -> None:
        """Stop gracefully; a second call forces it."""
        self._worker.stop()

    def report(self) -> dict[str, Any]:
        """Return what was counted since the last report, for ``RunTotals.add``. Not thread-safe."""
        claimed, self._told_claimed = self._worker.claimed - self._told_claimed, self._worker.claimed
        return {"claimed": claimed, "rows": ended_runs.take_report()}

    def facts(self) -> dict[str, Any]:
        """Return the age of the last claim and whether wake-ups are received."""
        silent_s = self._listener.silent_for_s()
        return {
            "looked_s_ago": round(self._since_begun(self._worker.looked_s_ago), 1),
            "listening": self._listener.listening,
            "listener_silent_s": None if silent_s == float("inf") else round(silent_s, 1),
        }

    def require_ready(self) -> None:
        """Raise NotReady when draining, when claims are stale, threads ended, or notifications no longer arrive."""
        if self._worker.draining:
            raise NotReady("too many runs timed out: it ends, and another one takes its place")
        if self._worker.has_room:
            looked_s_ago = self._since_begun(self._worker.looked_s_ago)
            conf.require_alive(looked_s_ago, "no claim was answered")
        conf.require_alive(self._worker.unwritten_s, "the end of a run could not be written")
        if ended := self._worker.ended_runners:
            raise NotReady(f"{ended} threads that run jobs have ended; restart the process")
        if self._listener.listening != "off":
            heard_s_ago = self._since_begun(self._listener.silent_for_s())
            conf.readiness.require("listener_silent", heard_s_ago, "no wake-up could be heard")

    def _since_begun(self, age_s: float) -> float:
        """Return an age, at most that of this loop, in case it never happened."""
        return min(age_s, time.monotonic() - self._began)
