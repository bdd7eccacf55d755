"""Runner thread: takes jobs from the buffer, executes each, hands over its end, and keeps connections clean."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from contextvars import copy_context
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import Error as PsycopgError
from psycopg.pq import TransactionStatus

from salon_jobs.core import events
from salon_jobs.core.errors import Interrupted
from salon_jobs.core.events import log_event, logger
from salon_jobs.core.outcomes import Outcome, Succeeded
from salon_jobs.core.records import ClaimedJob
from salon_jobs.core.tracing import is_observed, observing
from salon_jobs.core.vital import exits_on_error
from salon_jobs.db.upkeep import (
    TIDY_AFTER_S,
    clean_after_job,
    drop_connections,
    finish_cleaning_all,
    keep_wrappers,
    opened_connections,
    remember_connections,
    tidy_connections,
    watch_sessions,
)
from salon_jobs.jobs import registry
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.run import JobRun
from salon_jobs.worker import deadlines
from salon_jobs.worker.buffer import JobBuffer
from salon_jobs.worker.chunk_claim import ChunkClaimer, gather
from salon_jobs.worker.chunks import run_of
from salon_jobs.worker.deadlines import DeadlineWatcher
from salon_jobs.worker.ends import identify
from salon_jobs.worker.executor import execute, outcome_of
from salon_jobs.worker.finisher import Finisher
from salon_jobs.worker.forks import exit_if_forked
from salon_jobs.worker.in_flight import NEVER, InFlightTable


class Runner:
    """A thread that runs jobs until the buffer closes. ``interrupt`` ends its current run.

    Not a ``Loop``: it waits for the buffer, and another thread replaces it after an interrupt.
    """

    def __init__(
        self,
        buffer: JobBuffer,
        finisher: Finisher,
        leases: Leases,
        number: int,
        *,
        in_flight: InFlightTable,
        watcher: DeadlineWatcher,
        chunks: ChunkClaimer | None = None,
    ) -> None:
        """Prepare the thread; without ``chunks``, a chunk has only jobs that wait in the buffer."""
        self._buffer = buffer
        self._finisher = finisher
        self._leases = leases
        self._number = number
        self._in_flight = in_flight
        self._deadlines = watcher
        self._chunks = chunks
        self._connection: BaseDatabaseWrapper | None = None
        # Whether resets of this thread's sessions may have been sent and not answered.
        self._resets = False
        self._lock = threading.Lock()
        self._running: JobRun | None = None
        self._thread = self._new_thread()

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; return False if it has not."""
        end = time.monotonic() + timeout_s
        while (thread := self._thread).is_alive() and (remaining_s := end - time.monotonic()) > 0:
            thread.join(remaining_s)  # an interrupted thread starts another one before it ends
        return not self._thread.is_alive()

    @property
    def current(self) -> JobRun | None:
        """The run in progress."""
        return self._running

    def interrupt_current(self) -> None:
        """Interrupt the current run, which is rolled back; the attempt does not count."""
        running = self._running
        if running is not None:
            self.interrupt(running, Interrupted)

    def interrupt(self, running: JobRun, kind: type[Interrupted]) -> bool:
        """Raise ``kind`` in the handler of this run and cancel its query; return False if it cannot be interrupted now.

        Only a shutdown interrupts a second time. The lock is held until the server has received the cancel request, and
        the thread takes it as soon as the run has ended: neither the exception nor the cancel can hit later code.
        """
        with self._lock:
            if self._running is not running or (running.interrupted_by is not None and kind is not Interrupted):
                return False
            running.interrupted_by = running.interrupted_by or kind
            # Delivered at the thread's next bytecode: a handler inside one long C call is not interrupted.
            _raise_in(self._thread, kind)
            # Cancel only after raising: a query sent after the check for one would not be cancelled.
            raw: Any = running.connection.connection
            if raw is not None and raw.info.transaction_status == TransactionStatus.ACTIVE:
                try:
                    raw.cancel_safe(timeout=deadlines.CANCEL_S)
                except PsycopgError as error:
                    logger.warning("could not cancel the query of job %s: %s", running.id, error)
        return True

    def cancel(self, job_id: int, lease: int) -> None:
        """Show the cancellation to the handler of this job if the thread runs it, and interrupt it after the grace."""
        with self._lock:
            running = self._running
            if running is None or running.cancelled():
                return
            cancelled = [run for run in running.runs if (run.id, run.job.lease) == (job_id, lease)]
            if not cancelled:
                return
            running.cancel_at = time.monotonic() + deadlines.CANCEL_GRACE_S
            self._deadlines.watch(running, self.interrupt)
        log_event(logging.INFO, events.JOB_CANCEL_NOTICED, **identify(cancelled[0].job))

    @property
    def ended(self) -> bool:
        """Whether the thread was started and has ended."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=exits_on_error(self._run), name=f"salon-jobs-runner-{self._number}", daemon=True)

    def _run(self) -> None:
        """Run jobs until one is interrupted or the buffer is closed."""
        self._thread = threading.current_thread()
        watch_sessions(keep_all=True)
        idle_since = float("-inf")
        self._connection = None
        try:
            while (job := self._buffer.take(self._number)) is not None:
                jobs = [job]
                running: JobRun | None = None
                try:
                    running = self._prepare(jobs, idle_since)
                    # In a copy of the context: whatever a handler, or an exception inside our own code, leaves in it
                    # ends with the run.
                    copy_context().run(self._run_observed if is_observed() else self._run_job, running)
                except BaseException:  # else the process would lack this thread
                    logger.exception("the end of job %s could not be written; it is given back", job.id)
                    with self._lock:
                        self._running = None
                    if running is not None:
                        self._deadlines.forget(running)
                    self._connection = None
                    self._buffer.ran(self._number, jobs=len(jobs))
                    self._buffer.forget(jobs)  # a sweep gives them back
                self._in_flight.clear(self._number)
                if running is not None and running.interrupted_by is not None:
                    break
                idle_since = time.monotonic()
        finally:
            connections.close_all()
        if job is not None:
            # The interrupt may have kept any block from being left properly. A new thread has no thread-locals that
            # could still name this job's store.
            thread = self._new_thread()
            thread.start()
            self._thread = thread

    def _prepare(self, jobs: list[ClaimedJob], idle_since: float) -> JobRun:
        """Return the run of the only job in ``jobs``, and add to the list the jobs that run in one chunk with it."""
        [job] = jobs
        if self._resets:
            finish_cleaning_all()
            self._resets = False
        # Before the run begins: the run keeps the connection it finds, and this may replace it.
        if time.monotonic() - idle_since > TIDY_AFTER_S:
            tidy_connections(after_idling=True)
            self._connection = None
        if (task := registry.get_declaration(job.task)).chunk is not None:
            gather(task, jobs, self._buffer, self._chunks, using=self._leases.using)
        if (connection := self._connection) is None:
            connection = self._connection = self._leases.connection
            if connection.execute_wrappers:  # they belong to no job
                keep_wrappers(connection, connection.execute_wrappers)
        return run_of(jobs, task, self._leases, connection, resets_session=True)

    def _run_observed(self, running: JobRun) -> None:
        with observing(running.start_trace()):
            self._run_job(running)

    def _run_job(self, running: JobRun) -> None:
        self._deadlines.begin(running, self.interrupt, self._in_flight, self._number)
        outcome = self._execute(running)
        exit_if_forked()  # a fork by a callback after the commit, or by a receiver
        self._free_thread(running, outcome)
        try:
            self._finisher.end(running, outcome)
        finally:
            del outcome  # as in _execute
        running.forget_error()

    def _execute(self, running: JobRun) -> Outcome:
        """Call the handler; an interrupt of it, or of our own code around it, decides the outcome."""
        outcome: Outcome | None = None
        while True:
            try:
                if outcome is None:
                    self._running = running
                    outcome = execute(running)
                with self._lock:
                    # From here on no interrupt is sent, and one not delivered yet is withdrawn: the outcome counts.
                    self._running = None
                    if running.interrupted_by is not None:
                        _raise_in(self._thread, None)
                try:
                    return outcome
                finally:
                    # The frame of a handler that raised leads to this one, and the outcome to that frame: a cycle would
                    # keep all that the handler held.
                    del outcome
            except Interrupted as error:
                # The interrupt hit code around the handler. The fence shows whether the handler's transaction had
                # committed.
                outcome = outcome or outcome_of(running, error)

    def _free_thread(self, running: JobRun, outcome: Outcome) -> None:
        """Stop all interrupts of the thread, and leave its connections clean for the next job."""
        running.ended = time.monotonic()
        runs = running.runs
        for run in runs:
            run.ended = running.ended
        self._buffer.ran(self._number, jobs=len(runs))
        if running.times_out_at is not None:
            self._in_flight.move(self._number, NEVER)
        if running.times_out_at is not None or running.cancel_at is not None:
            self._deadlines.forget(running)
        if running.interrupted_by is None:
            connection = running.connection
            if not isinstance(outcome, Succeeded) or connection.execute_wrappers or connection.force_debug_cursor:
                remember_connections()
            if opened_connections():
                # It may have been replaced. Looking it up takes longer than a small job, so do it only then.
                self._connection = None
                self._resets = clean_after_job(wait=False)
        else:
            # The interrupt may have left them in any state.
            drop_connections()


def _raise_in(thread: threading.Thread, kind: type[Interrupted] | None) -> None:
    """Raise ``kind`` in a thread at its next bytecode; None withdraws an exception not yet raised."""
    assert thread.ident is not None  # noqa: S101 - it runs
    raised = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), raised)
