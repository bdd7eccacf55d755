"""Batched ends of successful runs: one statement for those without their own transaction, one write to the log."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from django.db import DatabaseError, InterfaceError, connections

from salon_jobs.core.events import logger
from salon_jobs.core.outcomes import Succeeded
from salon_jobs.core.records import ClaimedJob
from salon_jobs.jobs import queries
from salon_jobs.jobs.current import RunningJob
from salon_jobs.tenancy.connections import log_lost, tidy_connections
from salon_jobs.worker.executor import report_successes, settle

# How long the first success of a batch waits for others; then up to _AT_ONCE go in one statement.
_GATHER_S = 0.005
# Runs that are already finished and only need logging wait longer: a batch costs more than a line.
_LOG_EVERY_S = 0.05
_AT_ONCE = 1000
_RETRY_S = 0.5


class Finisher:
    """Background thread that records successful runs. ``forget`` gets every job whose end is written or lease is lost.

    Until then a job without a transaction stays ours: a crash in between repeats it, as always for such jobs.
    """

    def __init__(
        self, process_id: int, forget: Callable[[Sequence[ClaimedJob]], None], abandon: threading.Event
    ) -> None:
        self._process_id = process_id
        self._forget = forget
        self._abandon = abandon
        self._added = threading.Event()
        self._urgent = threading.Event()
        self._ended: deque[RunningJob] = deque()
        self._writing_since: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="salon-jobs-finisher", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Write what was added and end the thread, waiting at most ``timeout_s``. Idempotent."""
        self._stop.set()
        self._urgent.set()
        self._added.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def behind_s(self) -> float:
        """How long the oldest end of a run has been waiting to be written, in seconds; 0 if none is."""
        since = self._writing_since
        with suppress(IndexError):  # written in the meantime
            since = since or self._ended[0].ended
        return 0.0 if since is None else time.monotonic() - since

    def add(self, running: RunningJob) -> None:
        """Accept a run that succeeded; ``running.finished`` if its own transaction finished the row."""
        self._ended.append(running)
        if not (running.finished or self._urgent.is_set()):
            self._urgent.set()
        if not self._added.is_set():
            self._added.set()

    def _run(self) -> None:
        try:
            while not (self._stop.is_set() and not self._ended) and not self._abandon.is_set():
                self._added.wait()
                self._added.clear()
                if not self._stop.is_set() and self._urgent.wait(_LOG_EVERY_S):
                    self._urgent.clear()
                    time.sleep(_GATHER_S)
                # Appending and popping need no lock; any later append sets the event again.
                left = len(self._ended)
                while left:
                    batch = [self._ended.popleft() for _ in range(min(left, _AT_ONCE))]
                    left -= len(batch)
                    self._write(batch)
        finally:
            connections.close_all()

    def _write(self, batch: list[RunningJob]) -> None:
        """Write one batch and empty it, waiting out any outage."""
        self._writing_since = time.monotonic()
        self._write_until_written(batch)
        self._writing_since = None

    def _write_until_written(self, batch: list[RunningJob]) -> None:
        while True:
            tidy_connections()
            try:
                self._write_once(batch)
            except (DatabaseError, InterfaceError) as error:
                log_lost(error, loop="finish")
                if self._abandon.wait(_RETRY_S):
                    return
            except Exception:  # without this thread no job of the process would ever be recorded as ended
                logger.exception("the ends of %s jobs could not be written; they are given back", len(batch))
                self._forget([running.claimed for running in batch])
                return
            else:
                return

    def _write_once(self, batch: list[RunningJob]) -> None:
        unfinished = [running.claimed for running in batch if not running.finished]
        ids = queries.finish_many(unfinished, self._process_id) if unfinished else set[int]()
        finished = [running for running in batch if running.finished or running.id in ids]
        self._forget([running.claimed for running in finished])
        batch[:] = [running for running in batch if not (running.finished or running.id in ids)]
        report_successes(finished)
        while batch:
            # Just locked by someone, finished by a try whose answer was lost, or no longer ours: this finds out.
            settle(batch[-1], Succeeded(finished=False))
            self._forget([batch.pop().claimed])
