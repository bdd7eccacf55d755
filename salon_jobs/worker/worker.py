"""Loop that claims due jobs in batches and feeds the runner threads."""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.errors import NotReady
from salon_jobs.core.events import log_event
from salon_jobs.core.records import ClaimedJob
from salon_jobs.db.notify import MORE, SECOND_POLL
from salon_jobs.jobs import enqueue, progress, registry
from salon_jobs.jobs.answers import AWAITED, awaited
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.statistics import ended_runs
from salon_jobs.process.listener import Listener, ListenerEvent
from salon_jobs.process.loop import Loop
from salon_jobs.tenancy.connections import refuse_small_pool
from salon_jobs.worker import cancellations
from salon_jobs.worker.buffer import OVERDUE_S, JobBuffer
from salon_jobs.worker.cancellations import Cancellations
from salon_jobs.worker.chunk_claim import PATIENCE_S, ChunkClaimer
from salon_jobs.worker.claim import LIMIT_WAIT_S, Claim, Claimer
from salon_jobs.worker.deadlines import DeadlineWatcher
from salon_jobs.worker.ends import end_begun, report_given_back
from salon_jobs.worker.finisher import Finisher
from salon_jobs.worker.in_flight import IdleTable, InFlightTable
from salon_jobs.worker.lane import AsyncLane
from salon_jobs.worker.runner import Runner

_SWEEP_S = 30.0
_FORCED_S = 1.0
# How many of the running jobs a stopping worker names.
_NAMED = 5
# The part of the grace reserved for giving jobs back, ending the other threads and signing off; at most half of what
# follows the interrupt.
_LEAVE_S = 1.5
_ROOM_S = 0.2
_GATHER_S = 0.03
# How long a backlog is claimed in one go, at most: so late may cancellations be; and how much room that needs.
_FILL_S = 0.2
_FILLS_FROM = 500
# How often a worker whose heartbeat is late asks whether it has come.
_HEARTBEAT_LATE_S = 0.05
# How often a worker without due jobs, and a busy one, looks for jobs whose task it could import.
_FIND_S = (1.0, 10.0)
# After a wake-up that announces more jobs, a worker claims again so soon after a claim without jobs, and after another.
_LOOK_AGAIN_S = (0.02, 0.003)
# Claims, batched writes of successes, and the listener's ping.
OTHER_THREADS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What one worker serves. ``queues`` None means all but those ``excluded``.

    ``async_concurrency`` is how many coroutines run at once, beside the ``concurrency`` of other functions.

    With ``burst`` it stops when nothing is due, with ``max_jobs`` once that many jobs have been claimed and have ended.
    """

    concurrency: int
    async_concurrency: int = 100
    queues: Sequence[str] | None = None
    excluded: Sequence[str] = ()
    burst: bool = False
    max_jobs: int | None = None

    @property
    def slots(self) -> int:
        """How many jobs run at once."""
        return self.concurrency + self.async_concurrency

    @property
    def threads(self) -> int:
        """How many threads of a process may hold a connection."""
        coroutines = self.concurrency if registry.has_coroutines() else 0
        return self.concurrency + coroutines + OTHER_THREADS

    @property
    def served(self) -> list[str] | None:
        """Queues as in the process's row: None for all; an excluded one begins with an exclamation mark."""
        return [f"!{name}" for name in self.excluded] or (None if self.queues is None else list(self.queues))


_NOTHING: Final = Claim([], None)


@dataclass(slots=True)
class _Lane:
    """Tasks that are claimed together, and the last claim."""

    claimer: Claimer
    room: Callable[[], int]
    put: Callable[[list[ClaimedJob]], object]
    # Whether a job that ended has just made room, at a glance.
    has_room: Callable[[], bool]
    # How long places that become free one by one are gathered for one claim.
    gather_s: float
    last: Claim = _NOTHING
    asked: float = float("-inf")


class Worker(Loop):
    """Loop that claims and runs a registered process's jobs until stopped (or, with ``burst``, until nothing is due).

    ``run`` returns whether every job ended or was given back in time. A second ``stop`` forces the end.
    """

    def __init__(
        self,
        process_id: int,
        options: WorkerOptions,
        *,
        using: str,
        in_flight: InFlightTable | None = None,
        idle: IdleTable | None = None,
    ) -> None:
        """Create the threads.

        ``in_flight`` shows a supervisor what each of them runs; ``idle`` shows the worker's other processes whether any
        does. Raises ConfigurationError if a pool is too small for the threads.
        """
        super().__init__("claim", using=using)
        refuse_small_pool(options.threads, using=using)
        leases = self._leases = Leases(process_id, using=using, is_direct=lambda: self._listener.is_direct)
        self._options = options
        self._jobs = JobBuffer(options.concurrency, self._job_ended)
        self._idle = idle or IdleTable()
        self._is_listening = False
        event = self.woken = ListenerEvent()
        self._listener = Listener(enqueue.wake_ups.channel, self.notify, event, using=using)
        new_claimer = partial(Claimer, leases, options.queues, excluded=options.excluded)
        of_threads = new_claimer(tasks=partial(registry.task_names, is_async=False))
        self._threads_lane = _Lane(of_threads, self._jobs.room, self._jobs.put, lambda: self._jobs.is_low, 0.0)
        self._last_claim = _NOTHING
        self._hungry: list[_Lane] = []
        self._stop_requested = self._draining = self._knows_timeline = self._has_coroutines = False
        self._forced = threading.Event()
        self._abandon = threading.Event()
        self._limit_may_be_free = False
        self._claim_asked = self._claim_answered = self._notified = self._swept = self._searched = float("-inf")
        self._claimed = self._reported_claimed = 0
        self._look_until = float("-inf")
        self._timeouts = itertools.count(1)
        self.finisher = Finisher(leases, self._jobs, self._abandon)
        self._deadlines = DeadlineWatcher(self._count_timeout, using=using)
        in_flight = in_flight or InFlightTable(options.slots)
        self._chunks = ChunkClaimer(leases, self._jobs, lambda: self._threads_lane.claimer.limits)
        self._runners = [
            Runner(
                self._jobs,
                self.finisher,
                leases,
                number,
                in_flight=in_flight,
                watcher=self._deadlines,
                # A number of jobs is exact only if one thread claims them.
                chunks=None if self._counts_jobs else self._chunks,
            )
            for number in range(options.concurrency)
        ]
        self._coroutines = AsyncLane(
            self._jobs,
            self.finisher,
            leases,
            places=options.async_concurrency,
            threads=options.concurrency,
            first_slot=options.concurrency,
            in_flight=in_flight,
            watcher=self._deadlines,
            on_room=self._job_ended,
        )
        of_coroutines = new_claimer(tasks=partial(registry.task_names, is_async=True))
        places = self._coroutines
        self._async_lane = _Lane(of_coroutines, lambda: places.room, places.start, lambda: places.room == 1, _GATHER_S)
        self._cancellations = Cancellations(leases, self._jobs, (*self._runners, self._coroutines))

    def notify(self, payload: str = "") -> bool:
        """Claim now, unless another process of this worker is idle and will; return whether it will. Thread-safe.

        ``payload`` may announce that more jobs follow soon, or cancellations.
        """
        if payload.startswith(AWAITED):
            awaited.remember(payload)
            self.finisher.hurry()
            return False
        if payload == enqueue.CANCEL:
            self._cancellations.notify()
        elif self._idle.another_answers:
            return True
        now = time.monotonic()
        if payload == MORE:
            self._look_until = now + SECOND_POLL.total_seconds()
        self._notified = now
        self.wake()
        return False

    def stop(self) -> None:
        """Stop gracefully; a second call forces it."""
        if self._stop_requested:
            self._forced.set()
        self._stop_requested = True
        super().stop()

    def run(self) -> bool:
        self._swept = time.monotonic()
        threads: tuple[Loop | Runner, ...]
        threads = (self.finisher, self._deadlines, *self._runners, self._listener)
        for thread in threads:
            thread.start()
        try:
            return super().run()
        finally:
            self._listener.stop()

    def poll(self) -> float:
        """Claim once, feed the runners, and give back jobs that this process should not keep."""
        if self._limit_may_be_free:
            self.stopping.wait(max(0.0, self._claim_asked + LIMIT_WAIT_S[0] - time.monotonic()))
            self._limit_may_be_free = False
        if overdue := self._jobs.overdue():  # another process may be idle
            self._give_back(overdue, "waited behind a long job", level=logging.INFO)
            enqueue.wake_ups.after_commit(self.using)
        self._cancellations.poll()
        if not self._knows_timeline:
            # A failover can lose the last heartbeats; others might take the next jobs from a process that looks dead.
            if not self._leases.has_fresh_heartbeat():
                return _HEARTBEAT_LATE_S
            self._leases.timeline.record()
            self._knows_timeline = True
        self._claim()
        self._coroutines.report_waits()
        if time.monotonic() - self._swept > _SWEEP_S:
            self._give_back_unknown()
            self._swept = time.monotonic()
        ended_runs.flush_when_due(using=self.using)
        progress.writer.flush_when_due(using=self.using)
        if not self._left():
            self._hand_over()
            return 0.0
        if time.monotonic() - self._searched >= _FIND_S[bool(self._last_claim.jobs)]:
            found = registry.find_waiting(using=self.using)
            self._searched = time.monotonic()
            if found:
                return 0.0
        if self._hungry:
            return self._room_wait_s()
        return self._burst_wait_s() if self._options.burst else self._wait_s()

    def on_outage(self) -> None:
        """Sweep soon: a claim may have been committed although its answer never arrived."""
        self._swept = float("-inf")
        self._knows_timeline = False
        self._answer_no_wake_ups()

    def finish(self) -> bool:
        """Give back jobs that have not started; let the others run, then interrupt them, and finally abandon them."""
        self._answer_no_wake_ups()
        began = time.monotonic()
        grace_s, run_on_s = conf.shutdown_grace.total_seconds(), conf.shutdown_interrupt_after.total_seconds()
        runs = [run for runner in self._runners if (run := runner.current) is not None] + self._coroutines.runs
        jobs = ", ".join([*(f"{run.job.task} {run.id}" for run in runs[:_NAMED]), *(["…"] if runs[_NAMED:] else [])])
        log_event(logging.INFO, events.PROCESS_STOPPING, running=len(runs), jobs=jobs)
        unstarted = self._jobs.close()
        self._attempt_twice(lambda: self._leases.give_back(unstarted))
        self._wait_idle(began + run_on_s)
        if not self._jobs.wait_idle(0):
            for interrupt in (*(runner.interrupt_current for runner in self._runners), self._coroutines.interrupt_all):
                # Cancelling a query talks to the database, which may not answer: one thread each, so that no runner
                # waits for another.
                threading.Thread(target=interrupt, name="salon-jobs-interrupt", daemon=True).start()
            end = began + grace_s - min(_LEAVE_S, (grace_s - run_on_s) / 2)
            now = time.monotonic()
            self._wait_idle(min(end, now + _FORCED_S) if self._forced.is_set() else end, forcible=False)
        is_clean = self._jobs.wait_idle(0)
        self._abandon.set()
        if is_clean:
            for runner in self._runners:
                runner.join(_FORCED_S)
            self._coroutines.end(_FORCED_S)
        self.finisher.stop()
        self.finisher.join(_FORCED_S)
        self._deadlines.stop()
        self._deadlines.join()
        # Jobs that did not end, and claims with a lost answer.
        self._attempt_twice(lambda: self._give_back(self._leases.other_leases(()), "shutdown"))
        self._attempt_twice(lambda: ended_runs.flush(using=self.using))
        self._attempt_twice(lambda: progress.writer.flush(using=self.using))
        return is_clean

    def report(self) -> dict[str, Any]:
        """Return what was counted since the last report, for ``RunTotals.add``. Not thread-safe."""
        total = self._claimed + self._chunks.claimed
        claimed, self._reported_claimed = total - self._reported_claimed, total
        return {"claimed": claimed, "rows": ended_runs.take_report()}

    def facts(self) -> dict[str, Any]:
        """Return the age of the last claim and whether wake-ups are received."""
        silent_s = self._listener.silent_for_s()
        return {
            "claimed_s_ago": round(self._age_s(self._claim_answered), 1),
            "listening": self._listener.listening,
            "listener_silent_s": None if silent_s == float("inf") else round(silent_s, 1),
        }

    def require_ready(self) -> None:
        """Raise NotReady when draining, or when claims are stale or threads have ended."""
        if self._draining:
            raise NotReady("too many runs timed out: this process ends and is replaced")
        if any(lane.room() > 0 for lane in self._lanes) and self._left():  # otherwise it would not claim
            conf.require_alive(self._age_s(self._claim_answered), "no claim was answered")
        conf.require_alive(self.finisher.behind_s, "the end of a run could not be written")
        ended = 0 if self.stopping.is_set() else sum(runner.ended for runner in self._runners)
        if ended:
            raise NotReady(f"{ended} threads that run jobs have ended; restart the process")

    def _age_s(self, instant: float) -> float:
        """Return the seconds since an instant, or since the start of this loop if that is later."""
        return time.monotonic() - max(instant, self.began_at)

    @property
    def _lanes(self) -> tuple[_Lane, ...]:
        return (self._threads_lane, self._async_lane) if self._has_coroutines else (self._threads_lane,)

    def _claim(self, *, scans_again: bool = False) -> None:
        """Claim for each lane that has room, and note which have none, or a backlog."""
        self._has_coroutines = registry.has_coroutines()
        asked, had_backlog = time.monotonic(), self._last_claim.again_in_s == 0
        before, self._hungry = self._hungry, []
        for lane in self._lanes:
            room = min(lane.room(), self._left())
            # Polled for the sake of the other, a lane that has all it wants waits for wake-ups.
            is_early = bool(before) and asked - lane.asked < (lane.gather_s if lane in before else _ROOM_S)
            if room and (scans_again or not is_early or self._notified > lane.asked):
                self._fill(lane, room, scans_again=scans_again)
            lane.claimer.refresh_limits()
            if not room or lane.last.again_in_s == 0:
                self._hungry.append(lane)
        self._claim_asked = asked
        self._last_claim = self._threads_lane.last
        if self._has_coroutines:
            self._last_claim = self._last_claim.beside(self._async_lane.last)
        if self._idle.processes > 1 and self._last_claim.again_in_s == 0 and not had_backlog:
            # The others left the wake-up to this one.
            enqueue.wake_ups.notify(self.using, MORE if asked < self._look_until else "")

    def _fill(self, lane: _Lane, room: int, *, scans_again: bool) -> None:
        """Claim for a lane, and at once again while it has a backlog and much room.

        What comes between two polls gives the interpreter's lock away several times, and of eight threads with the
        smallest jobs each keeps it for 5 ms: they had run all that was claimed before the next claim began.
        """
        until = time.monotonic() + _FILL_S
        while True:
            lane.asked = time.monotonic()
            lane.last = claim = lane.claimer.claim(room, scans_again=scans_again)
            self._claim_answered = time.monotonic()
            self._claimed += len(claim.jobs)
            if claim.jobs:
                lane.put(claim.jobs)
                # After the put: a runner that still saw an empty buffer, and shows this process as idle, checks again.
                self._idle.show(idle=False)
            room = min(lane.room(), self._left())
            if (
                room < _FILLS_FROM
                or claim.again_in_s != 0
                or self._claim_answered > until
                or self._has_coroutines
                or self.stopping.is_set()
            ):
                return

    def _room_wait_s(self) -> float:
        """Wait a moment for room; or return for how long to wait for it, and for wake-ups of the other lane."""
        if not self._has_coroutines:
            self._jobs.wait_for_room(_ROOM_S)
            return 0.0
        now = time.monotonic()
        waits_s = (lane.asked + lane.gather_s - now if lane.room() else _ROOM_S for lane in self._hungry)
        return max(0.0, min(waits_s))

    def _left(self) -> int:
        """Return how many jobs this process may still claim."""
        return max(0, (self._options.max_jobs or 0) - self._claimed) if self._counts_jobs else sys.maxsize

    @property
    def _counts_jobs(self) -> bool:
        return self._options.max_jobs is not None and not self._options.burst

    def _hand_over(self) -> None:
        """Stop, to be replaced, once all claimed jobs have ended, however long that takes: none is interrupted."""
        self._answer_no_wake_ups()
        if self._jobs.wait_idle(_ROOM_S) and not self.stopping.is_set():
            log_event(logging.INFO, events.PROCESS_DRAINING, reason="jobs", jobs=self._claimed)
            super().stop()

    def _wait_s(self) -> float:
        """Return the seconds until another claim is worthwhile without a wake-up."""
        if self._notified > self._claim_asked:
            return 0.0
        waits_s = [conf.poll_interval.total_seconds()]
        if self._claim_asked < self._look_until:
            # The last of these claims comes when all jobs that the wake-up announced are committed.
            look_at = min(self._claim_asked + _LOOK_AGAIN_S[bool(self._last_claim.jobs)], self._look_until)
            waits_s.append(max(0.0, look_at - time.monotonic()))
        if self._last_claim.again_in_s is not None:
            waits_s.append(self._last_claim.again_in_s)
        if waiting := self._jobs.has_waiting():
            waits_s.append(OVERDUE_S)
        if running := self._jobs.running_count() + self._coroutines.running_count:
            waits_s.append(cancellations.POLL_EVERY_S)
        self._is_listening = self._listener.listening is True
        self._idle.show(idle=self._is_listening and not (waiting or running))
        return min(waits_s)

    def _burst_wait_s(self) -> float:
        """Return the seconds until another claim; stop if nothing is due any more."""
        claim = self._last_claim
        if claim.again_in_s is not None:
            return claim.again_in_s
        if not claim.jobs and self._jobs.wait_idle(min(conf.poll_interval.total_seconds(), _ROOM_S)):
            self._claim(scans_again=True)
            has_found = self._last_claim.jobs or self._last_claim.again_in_s is not None
            if not has_found and not registry.find_waiting(using=self.using):
                self.stopping.set()
        return 0.0

    def _job_ended(self) -> None:
        """Answer wake-ups if that was the last job. Claim again soon if a limit was full: a place may be free now."""
        # Not with a backlog: the others would leave wake-ups to this process, which wakes them only once.
        if self._is_listening and self._is_idle and all(lane.last.again_in_s != 0 for lane in self._lanes):
            self._idle.show(idle=True)
            if not (self._is_listening and self._is_idle):
                self._idle.show(idle=False)
        if self._has_coroutines and any(lane.has_room() for lane in self._hungry):
            self.wake()
        if self._last_claim.throttled:
            self._limit_may_be_free = True
            self.wake()

    @property
    def _is_idle(self) -> bool:
        return self._jobs.is_idle and not self._coroutines.running_count

    def _answer_no_wake_ups(self) -> None:
        self._is_listening = False
        self._idle.show(idle=False)

    def _count_timeout(self) -> None:
        """Stop after a number of timeouts, to be replaced: an interrupt may have left the process in any state."""
        count = next(self._timeouts)
        if count == conf.terminate_after_timeouts and not self.stopping.is_set() and not self._options.burst:
            log_event(logging.WARNING, events.PROCESS_DRAINING, reason="timeouts", timeouts=count)
            self._draining = True
            super().stop()

    def _give_back_unknown(self) -> None:
        """Give back rows leased to this process whose claim was never answered."""
        if not self._chunks.lock.acquire(timeout=PATIENCE_S):
            return  # the next sweep finds them
        try:
            leases = self._leases.other_leases(self._jobs.leases())
        finally:
            self._chunks.lock.release()
        if leases:
            self._give_back(leases, "claim answer lost")
            self.notify()

    def _give_back(self, leases: list[tuple[int, int]], reason: str, *, level: int = logging.WARNING) -> None:
        given_back = self._leases.give_back(leases)
        report_given_back(given_back, reason, level=level)
        if len(given_back) < len(leases):
            for job_id, lease in self._leases.begun_once().intersection(leases):
                end_begun(job_id, lease, self._leases)

    def _wait_idle(self, until: float, *, forcible: bool = True) -> None:
        while (remaining_s := until - time.monotonic()) > 0 and not (forcible and self._forced.is_set()):
            if self._jobs.wait_idle(min(remaining_s, 0.1)):
                return

    def _attempt_twice(self, work: Callable[[], object]) -> None:
        """Do the work, with one retry on a new connection. If both fail, other processes rescue our jobs eventually."""
        if not self.outage.attempt(work):
            self.outage.attempt(work)
