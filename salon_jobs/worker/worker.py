"""Loop that claims due jobs in batches, feeds the threads that run them, and ends."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.errors import NotReady
from salon_jobs.core.events import log_event
from salon_jobs.core.states import moved
from salon_jobs.db.notify import MORE
from salon_jobs.db.pools import refuse_small_pool
from salon_jobs.jobs import enqueue, progress, registry
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.result_waits import AWAITED, awaited
from salon_jobs.jobs.statistics import ended_runs
from salon_jobs.process.listener import Listener, ListenerEvent
from salon_jobs.process.loop import Loop
from salon_jobs.worker import cancellations
from salon_jobs.worker.buffer import OVERDUE_S, JobBuffer
from salon_jobs.worker.cancellations import Cancellations
from salon_jobs.worker.chunk_claim import PATIENCE_S, ChunkClaimer
from salon_jobs.worker.claim import Claimer
from salon_jobs.worker.crew import Crew
from salon_jobs.worker.ends import end_begun, report_given_back
from salon_jobs.worker.finisher import Finisher
from salon_jobs.worker.in_flight import IdleTable, InFlightTable
from salon_jobs.worker.sources import ROOM_S, ClaimSource, ClaimSources

# How often to look for jobs leased to this process that it does not have.
_SWEEP_S: Final = 30.0
# How long a stop that is forced waits for the runs it has interrupted.
_FORCED_S: Final = 1.0
# How many of the running jobs a stopping worker names.
_NAMED: Final = 5
# The part of the grace reserved for giving jobs back, ending the other threads and signing off; at most half of the
# time after the interrupt.
_LEAVE_S: Final = 1.5
# How long places of coroutines, which become free one by one, are gathered for one claim.
_GATHER_S: Final = 0.03
# How often a worker with a late heartbeat checks whether it has come.
_HEARTBEAT_LATE_S: Final = 0.05
# How often a worker without due jobs, and a busy one, looks for jobs whose task it could import.
_FIND_S: Final = (1.0, 10.0)
# Claims, batched writes of successes, and the listener's ping.
OTHER_THREADS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of a worker. ``queues`` None means all but those ``excluded``.

    ``async_concurrency`` coroutines run at once, in addition to ``concurrency`` other functions.

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


class State(Enum):
    """State of one process of a worker.

    ============  =================================================================  =================================
    State         Meaning                                                            Goes on to
    ============  =================================================================  =================================
    DOUBTING      claims nothing: it may have been declared dead, since it has just  CLAIMING, DRAINING, STOPPING
                  started or met an outage, and has sent no heartbeat since
    CLAIMING      claims, as it has room                                             DOUBTING, HANDING_OVER, DRAINING,
                                                                                     STOPPING
    HANDING_OVER  has claimed its ``max_jobs``; another process takes its place      DOUBTING, DRAINING, STOPPING
                  once they have ended
    DRAINING      too many runs timed out: is not ready, and stops as below          STOPPING
    STOPPING      was asked to stop: gives back jobs that have not begun, and        FORCED
                  interrupts runs that go on near the end of the grace
    FORCED        was asked twice: interrupts at once, and waits one more second
    ============  =================================================================  =================================
    """

    DOUBTING = "doubting"
    CLAIMING = "claiming"
    HANDING_OVER = "handing over"
    DRAINING = "draining"
    STOPPING = "stopping"
    FORCED = "forced"


_STOPS: Final = (State.DRAINING, State.STOPPING, State.FORCED)
_NEXT: Final = {
    State.DOUBTING: (State.DOUBTING, State.CLAIMING, State.DRAINING, State.STOPPING),
    State.CLAIMING: (State.DOUBTING, State.HANDING_OVER, State.DRAINING, State.STOPPING),
    State.HANDING_OVER: (State.DOUBTING, State.HANDING_OVER, State.DRAINING, State.STOPPING),
    State.DRAINING: (State.STOPPING,),
    State.STOPPING: (State.FORCED,),
    State.FORCED: (State.FORCED,),
}


class Worker(Loop):
    """One process of a worker: claims and runs jobs until stopped (or, with ``burst``, until nothing is due).

    This loop claims; the threads of its ``Crew`` run the jobs and write their ends. ``run`` returns whether every job
    ended or was given back in time. A second ``stop`` forces the end.
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

        ``in_flight`` shows the runs of the threads to a supervisor; ``idle`` shows the worker's other processes whether
        a thread is idle. Raises ConfigurationError if a pool is too small for the threads.
        """
        super().__init__("claim", using=using)
        refuse_small_pool(options.threads, using=using)
        self._options, self._idle = options, idle or IdleTable()
        self._state, self._moving = State.DOUBTING, threading.Lock()
        self.woken = event = ListenerEvent()
        self._listener = Listener(enqueue.wake_ups.channel, self.notify, event, using=using)
        leases = self._leases = Leases(process_id, using=using, is_direct=lambda: self._listener.is_direct)
        buffer = self._buffer = JobBuffer(options.concurrency, self._job_ended)
        new_claimer = partial(Claimer, leases, options.queues, excluded=options.excluded)
        of_functions = new_claimer(tasks=partial(registry.task_names, is_async=False))
        of_coroutines = new_claimer(tasks=partial(registry.task_names, is_async=True))
        self._chunks = ChunkClaimer(leases, buffer, lambda: of_functions.limits)
        most = None if options.burst else options.max_jobs
        self._crew = Crew(
            buffer,
            leases,
            threads=options.concurrency,
            coroutines=options.async_concurrency,
            in_flight=in_flight,
            chunks=self._chunks if most is None else None,  # a number of jobs is exact only if one thread claims them
            on_room=self._job_ended,
            on_timeout=self._count_timeout,
        )
        lane = self._crew.lane
        self._sources = ClaimSources(
            ClaimSource(of_functions, buffer.room, buffer.put, lambda: buffer.is_low, 0.0),
            ClaimSource(of_coroutines, lambda: lane.room, lane.start, lambda: lane.room == 1, _GATHER_S),
            most=most,
        )
        self._cancellations = Cancellations(leases, buffer, self._crew.members)
        self._timeouts = itertools.count(1)
        self._swept = self._searched = float("-inf")
        self._reported_claimed = 0
        # How many jobs a burst had claimed when it last looked for more, after all of them had ended.
        self._looked_after: int | None = None

    @property
    def finisher(self) -> Finisher:
        """The thread that writes successes."""
        return self._crew.finisher

    def notify(self, payload: str = "") -> bool:
        """Claim now; or return True if another process of this worker is idle, and leave it to that one. Thread-safe.

        ``payload`` may announce that more jobs follow soon, ask for cancellations, or name jobs whose end is awaited.
        """
        if payload.startswith(AWAITED):
            awaited.remember(payload)
            self.finisher.hurry()
            return False
        if payload == enqueue.CANCEL:
            self._cancellations.notify()
        elif self._idle.another_answers:
            return True
        self._sources.notify(more=payload == MORE)
        self.wake()
        return False

    def stop(self) -> None:
        """Stop gracefully; a second call forces it."""
        if not self._move(State.STOPPING):
            self._move(State.FORCED)
        super().stop()

    def run(self) -> bool:
        self._swept = time.monotonic()
        self._crew.start()
        self._listener.start()
        try:
            return super().run()
        finally:
            self._listener.stop()

    def poll(self) -> float:
        """Claim as there is room, and do what else is due on this thread; return the seconds until the next round.

        That is: give back jobs that waited too long or whose claim was lost, read requests for cancellation, and write
        counts and progress.
        """
        self._sources.wait_for_limit(self.stopping)
        if overdue := self._buffer.overdue():  # another process may be idle
            self._give_back(overdue, "waited behind a long job", level=logging.INFO)
            enqueue.wake_ups.after_commit(self.using)
        self._cancellations.poll()
        if self._state is State.DOUBTING:
            # A failover can lose the last heartbeats; others might take the next jobs from a process that looks dead.
            if not self._leases.has_fresh_heartbeat():
                return _HEARTBEAT_LATE_S
            self._leases.timeline.record()
            self._move(State.CLAIMING)
        self._claim()
        self._crew.lane.report_waits()
        if time.monotonic() - self._swept > _SWEEP_S:
            self._give_back_unknown()
            self._swept = time.monotonic()
        ended_runs.flush_when_due(using=self.using)
        progress.writer.flush_when_due(using=self.using)
        if not self._sources.left:
            self._move(State.HANDING_OVER)
            self._hand_over()
            return 0.0
        if time.monotonic() - self._searched >= _FIND_S[bool(self._sources.last.jobs)]:
            found = registry.find_waiting_tasks(using=self.using)
            self._searched = time.monotonic()
            if found:
                return 0.0
        if self._sources.are_hungry:
            return self._sources.room_wait_s(self._buffer.wait_for_room)
        return self._burst_wait_s() if self._options.burst else self._wait_s()

    def on_outage(self) -> None:
        """Sweep soon: a claim may have been committed although its answer never arrived."""
        self._swept = float("-inf")
        self._move(State.DOUBTING)
        self._idle.answer(listening=False)

    def finish(self) -> bool:
        """Give back jobs that have not started; let the others run, then interrupt them, and finally abandon them."""
        self._idle.answer(listening=False)
        began = time.monotonic()
        grace_s, run_on_s = conf.shutdown_grace.total_seconds(), conf.shutdown_interrupt_after.total_seconds()
        runs = self._crew.runs
        jobs = ", ".join([*(f"{run.job.task} {run.id}" for run in runs[:_NAMED]), *(["…"] if runs[_NAMED:] else [])])
        log_event(logging.INFO, events.PROCESS_STOPPING, running=len(runs), jobs=jobs)
        unstarted = self._buffer.close()
        self._attempt_twice(lambda: self._leases.give_back(unstarted))
        self._wait_until_idle(began + run_on_s)
        if not self._buffer.wait_until_empty(0):
            self._crew.interrupt_all()
            end = began + grace_s - min(_LEAVE_S, (grace_s - run_on_s) / 2)
            is_forced = self._state is State.FORCED
            self._wait_until_idle(min(end, time.monotonic() + _FORCED_S) if is_forced else end, forcible=False)
        is_clean = self._buffer.wait_until_empty(0)
        self._crew.end(is_idle=is_clean)
        # Jobs that did not end, and claims with a lost answer.
        self._attempt_twice(lambda: self._give_back(self._leases.other_leases(()), "shutdown"))
        self._attempt_twice(lambda: ended_runs.flush(using=self.using))
        self._attempt_twice(lambda: progress.writer.flush(using=self.using))
        return is_clean

    def report(self) -> dict[str, Any]:
        """Return the counts since the last report, for ``RunTotals.add``. Not thread-safe."""
        total = self._sources.claimed + self._chunks.claimed
        claimed, self._reported_claimed = total - self._reported_claimed, total
        return {"claimed": claimed, "rows": ended_runs.take_report()}

    def facts(self) -> dict[str, Any]:
        """Return the age of the last claim and whether wake-ups are received."""
        silent_s = self._listener.silent_for_s()
        return {
            "claimed_s_ago": round(self._age_s(self._sources.answered), 1),
            "listening": self._listener.listening,
            "listener_silent_s": None if silent_s == float("inf") else round(silent_s, 1),
        }

    def require_ready(self) -> None:
        """Raise NotReady when draining, when claims or the ends of runs are late, or when threads have ended."""
        if self._state is State.DRAINING:
            raise NotReady("too many runs timed out: this process ends and is replaced")
        if any(source.room() > 0 for source in self._sources.all) and self._sources.left:  # else it would not claim
            conf.require_alive(self._age_s(self._sources.answered), "no claim was answered")
        conf.require_alive(self.finisher.behind_s, "the end of a run could not be written")
        ended = 0 if self.stopping.is_set() else self._crew.ended_threads
        if ended:
            raise NotReady(f"{ended} threads that run jobs have ended; restart the process")

    def _move(self, state: State) -> bool:
        """Change the state; return False if it already stops, when only the states after that are left. Thread-safe."""
        with self._moving:
            if self._state in _STOPS and state not in _NEXT[self._state]:
                return False
            self._state = moved(self._state, state, _NEXT)
        return True

    def _age_s(self, instant: float) -> float:
        """Return the seconds since an instant, or since the start of this loop if that is later."""
        return time.monotonic() - max(instant, self.began_at)

    def _claim(self, *, scans_again: bool = False) -> None:
        had_backlog = self._sources.has_backlog
        # After the put: a runner that still saw an empty buffer, and shows this process as idle, checks again.
        self._sources.claim(self.stopping, lambda: self._idle.show(idle=False), scans_again=scans_again)
        if self._idle.processes > 1 and self._sources.has_backlog and not had_backlog:
            # The other processes left the wake-up to this one.
            enqueue.wake_ups.notify(self.using, MORE if self._sources.expects_more else "")

    def _hand_over(self) -> None:
        """Stop, to be replaced, once all claimed jobs have ended, however long that takes; interrupt none."""
        self._idle.answer(listening=False)
        if self._buffer.wait_until_empty(ROOM_S) and not self.stopping.is_set():
            log_event(logging.INFO, events.PROCESS_DRAINING, reason="jobs", jobs=self._sources.claimed)
            super().stop()

    def _wait_s(self) -> float:
        """Return the seconds until another claim is worthwhile without a wake-up."""
        if not (wait_s := self._sources.wait_s()):
            return 0.0
        waits_s = [wait_s]
        if waiting := self._buffer.has_waiting():
            waits_s.append(OVERDUE_S)
        if running := self._buffer.running_count() + self._crew.lane.running_count:
            waits_s.append(cancellations.POLL_EVERY_S)
        self._idle.answer(listening=self._listener.listening is True, idle=not (waiting or running))
        return min(waits_s)

    def _burst_wait_s(self) -> float:
        """Return the seconds until another claim; stop if nothing is due any more."""
        claim = self._sources.last
        if claim.again_in_s is not None:
            return claim.again_in_s
        if not claim.jobs and self._buffer.wait_until_empty(min(conf.poll_interval.total_seconds(), ROOM_S)):
            if self._looked_after != self._sources.claimed:
                self._looked_after = self._sources.claimed
                self._claim(scans_again=True)
            # That claim may have begun a round of many scans, which the next claims continue.
            is_over = self._sources.last.again_in_s is None and self._looked_after == self._sources.claimed
            if is_over and not registry.find_waiting_tasks(using=self.using):
                self.stopping.set()
        return 0.0

    def _job_ended(self) -> None:
        """Answer wake-ups if that was the last job. Claim again soon if a limit was full: a place may be free now."""
        # Not with a backlog: the others would leave wake-ups to this process, which wakes them only once.
        if self._idle.is_listening and self._is_idle and not self._sources.has_backlog:
            self._idle.show(idle=True)
            if not (self._idle.is_listening and self._is_idle):
                self._idle.show(idle=False)
        if self._sources.job_ended():
            self.wake()

    @property
    def _is_idle(self) -> bool:
        return self._buffer.is_idle and not self._crew.lane.running_count

    def _count_timeout(self) -> None:
        """Stop after a number of timeouts, to be replaced: an interrupt may have left the process in any state."""
        count = next(self._timeouts)
        if count == conf.terminate_after_timeouts and not self.stopping.is_set() and not self._options.burst:
            log_event(logging.WARNING, events.PROCESS_DRAINING, reason="timeouts", timeouts=count)
            self._move(State.DRAINING)
            super().stop()

    def _give_back_unknown(self) -> None:
        """Give back jobs leased to this process that it does not hold.

        Their claim was never answered, or their end could not be written.
        """
        if not self._chunks.lock.acquire(timeout=PATIENCE_S):
            return  # the next sweep finds them
        try:
            leases = self._leases.other_leases(self._buffer.leases())
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

    def _wait_until_idle(self, until: float, *, forcible: bool = True) -> None:
        while (remaining_s := until - time.monotonic()) > 0 and not (forcible and self._state is State.FORCED):
            if self._buffer.wait_until_empty(min(remaining_s, 0.1)):
                return

    def _attempt_twice(self, work: Callable[[], object]) -> None:
        """Do the work, with one retry on a new connection. If both fail, other processes rescue our jobs eventually."""
        if not self.outage.attempt(work):
            self.outage.attempt(work)
