"""Batched ends of successful runs: one statement for those without their own transaction, one write to the log."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from django.db import DataError

from salon_jobs.core.events import logger
from salon_jobs.core.outcomes import Errored, Succeeded
from salon_jobs.core.records import ClaimedJob
from salon_jobs.jobs import queries
from salon_jobs.jobs.current import RunningJob
from salon_jobs.process.loop import Loop
from salon_jobs.worker.executor import report_successes, settle

# How long the first success of a batch waits for others; then up to _BATCH go in one statement.
_GATHER_S = 0.005
# Runs that are already finished and only need logging wait longer: a batch costs more than a line.
_LOG_EVERY_S = 0.05
_BATCH = 1000


class Finisher(Loop):
    """Loop that records successful runs. ``forget`` gets every job whose end is written or lease is lost.

    Until then a job without a transaction stays ours: a crash in between repeats it, as always for such jobs.
    """

    def __init__(
        self, process_id: int, forget: Callable[[Sequence[ClaimedJob]], None], abandon: threading.Event
    ) -> None:
        """Prepare; once ``abandon`` is set, nothing more is written."""
        super().__init__("finisher")
        self._process_id = process_id
        self._forget = forget
        self._abandon = abandon
        self._urgent = threading.Event()
        self._ended: deque[RunningJob] = deque()
        self._writing_since: float | None = None

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
        if not self.woken.is_set():
            self.woken.set()

    def poll(self) -> float:
        if self._ended:
            if self._urgent.wait(_LOG_EVERY_S):
                self._urgent.clear()
                time.sleep(_GATHER_S)
            self._write_all()
        return float("inf")

    def finish(self) -> bool:
        self._write_all()
        return not self._ended

    def _write_all(self) -> None:
        # Appending and popping need no lock; any later append wakes the loop again.
        remaining = len(self._ended)
        while remaining and not self._abandon.is_set():
            batch = [self._ended.popleft() for _ in range(min(remaining, _BATCH))]
            remaining -= len(batch)
            self._write(batch)

    def _write(self, batch: list[RunningJob]) -> None:
        """Write one batch and empty it, waiting out any outage."""
        self._writing_since = time.monotonic()
        try:
            self.outage.wait_out(lambda: self._write_once(batch), self._abandon.wait)
        except Exception:  # without this thread no job of the process would ever be recorded as ended
            logger.exception("the ends of %s jobs could not be written; they are given back", len(batch))
            self._forget([running.job for running in batch])
        self._writing_since = None

    def _finish(self, runs: list[RunningJob]) -> set[int]:
        """Finish runs without a transaction of their own; return the ids of those that are finished."""
        kept = [(running.job, running.result) for running in runs if running.result is not None]
        ids = set[int]()
        if kept:
            with suppress(DataError):  # a result that jsonb refuses fails its own job alone, which is settled by itself
                ids = queries.finish_results(kept, self._process_id)
        if len(kept) < len(runs):
            ids |= queries.finish_many([run.job for run in runs if run.result is None], self._process_id)
        return ids

    def _write_once(self, batch: list[RunningJob]) -> None:
        ids = self._finish([running for running in batch if not running.finished])
        finished = [running for running in batch if running.finished or running.id in ids]
        self._forget([running.job for running in finished])
        batch[:] = [running for running in batch if not (running.finished or running.id in ids)]
        report_successes(finished)
        while batch:
            # Just locked by someone, finished by a try whose answer was lost, or no longer ours: this finds out.
            try:
                settle(batch[-1], Succeeded(finished=False))
            except DataError as error:
                settle(batch[-1], Errored(error))
            self._forget([batch.pop().job])
