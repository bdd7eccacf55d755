"""Runs jobs on one thread: takes them from the local queue, executes and settles each, keeps its connections clean."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from contextvars import copy_context
from typing import Any

from django.db import DatabaseError, DataError, InterfaceError, connections
from psycopg import Error as PsycopgError

from salon_jobs.conf import settings as conf
from salon_jobs.core import log_events
from salon_jobs.core.error_report import report
from salon_jobs.core.errors import Interrupted
from salon_jobs.core.log_events import log_event, logger
from salon_jobs.core.outcomes import Errored, Outcome, Released, Succeeded
from salon_jobs.core.telemetry import run_scope
from salon_jobs.jobs import store
from salon_jobs.jobs.current import RunningJob
from salon_jobs.jobs.executor import execute, identify, settle
from salon_jobs.jobs.finisher import Finisher
from salon_jobs.jobs.local_queue import LocalQueue
from salon_jobs.runtime.connections import tidy_connections
from salon_jobs.runtime.run_board import RunBoard

_SETTLE_RETRY_S = 0.5
# A thread that waited so long looks at its connections before the next job; a busy one did after the last.
_TIDY_AFTER_S = 0.05


class Runner:
    """Is one thread that runs jobs until the local queue closes. ``interrupt`` ends its current one."""

    def __init__(
        self,
        jobs: LocalQueue,
        finisher: Finisher,
        process_id: int,
        number: int,
        abandon: threading.Event,
        *,
        board: RunBoard | None = None,
    ) -> None:
        self._jobs = jobs
        self._finisher = finisher
        self._process_id = process_id
        self._abandon = abandon
        self._number = number
        self._board = board or RunBoard(number + 1)
        self._lock = threading.Lock()
        self._running: RunningJob | None = None
        self._thread = threading.Thread(target=self._run, name=f"salon-jobs-runner-{number}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; False when it has not."""
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def interrupt(self) -> None:
        """Cancel the query in flight and raise Interrupted in the handler: rolled back, attempt not counted."""
        with self._lock:
            running, ident = self._running, self._thread.ident
            if running is None or ident is None:
                return
            running.interrupted = True
            # Delivered at the thread's next bytecode: a handler inside one long C call does not feel it.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Interrupted))
        raw: Any = running.connection.connection
        if raw is not None:
            try:
                raw.cancel_safe(timeout=2)
            except PsycopgError as error:
                logger.warning("could not cancel the query of job %s: %s", running.id, error)

    @property
    def ended(self) -> bool:
        """Tell whether the thread was started and runs no more."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def _run(self) -> None:
        idle_since = float("-inf")
        try:
            while (job := self._jobs.take()) is not None:
                running = RunningJob(job, self._process_id)
                if running.started - idle_since > _TIDY_AFTER_S:
                    tidy_connections(after_idling=True)
                self._board.show(self._number, job.id, job.lease)
                try:
                    # Whatever a handler, or an exception in the midst of ours, leaves in the context ends with the run.
                    copy_context().run(self._run_in_scope, running)
                except BaseException:  # a thread that ends takes a share of the capacity with it
                    logger.exception(
                        "the end of job %s could not be written; it stays leased and is given back", job.id
                    )
                    self._jobs.forget([job])
                self._board.clear(self._number)
                idle_since = time.monotonic()
        finally:
            connections.close_all()

    def _run_in_scope(self, running: RunningJob) -> None:
        with run_scope():
            self._run_job(running)

    def _run_job(self, running: RunningJob) -> None:
        outcome: Outcome
        try:
            self._running = running
            outcome = execute(running)
            # From here on nobody interrupts: the outcome is written whatever happens.
            with self._lock:
                self._running = None
        except Interrupted:
            # It struck beside the handler. Whether that had finished, the fenced row tells.
            self._running = None
            outcome = Released()
        running.ended = time.monotonic()
        self._jobs.ran(running.claimed)
        tidy_connections()
        if isinstance(outcome, Succeeded) and outcome.finished is running.finished:
            self._finisher.add(running)
        else:
            self._settle(running, outcome)
            self._jobs.forget([running.claimed])

    def _settle(self, running: RunningJob, outcome: Outcome) -> None:
        """Write the outcome, through an outage if need be: until it is written the job is ours and not run twice.

        An outcome that can not be written at all (a Snooze beyond the calendar) becomes an error of the job.
        """
        while True:
            try:
                settle(running, outcome)
            except BaseException as error:
                if isinstance(error, DataError) or not isinstance(error, (DatabaseError, InterfaceError)):
                    if isinstance(outcome, Errored):
                        self._fail_plainly(running, error)
                        return
                    outcome = Errored(error)
                    continue
                connections[conf.database].errors_occurred = True
                log_event(
                    logging.WARNING, log_events.DATABASE_LOST, loop="settle", error=str(error).strip(),
                    **identify(running),
                )  # fmt: skip
                if self._abandon.wait(_SETTLE_RETRY_S):
                    return
                tidy_connections()
            else:
                return

    def _fail_plainly(self, running: RunningJob, error: BaseException) -> None:
        """Charge the attempt when even the error's own end can not be told: else the job would come back for ever."""
        reason, retry_in = "attempts_exhausted", conf.backoff.cap
        store.fail(running.claimed, self._process_id, report(error), delay=retry_in, final=False, reason=reason)
        logger.error("the end of job %s could not be told: %s", running.id, type(error).__name__)
