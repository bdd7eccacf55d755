"""Batched ends of successful runs: one statement for those without their own transaction, one write to the log."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from django.db import DataError, IntegrityError, OperationalError

from salon_jobs.core import events
from salon_jobs.core.events import log_event, logger
from salon_jobs.core.outcomes import Errored, Outcome, Succeeded
from salon_jobs.core.records import ClaimedJob
from salon_jobs.jobs import queries
from salon_jobs.jobs.current import RunningJob
from salon_jobs.process.loop import Loop
from salon_jobs.worker.executor import identify, report_successes, settle

# How long the first success of a batch waits for others; then up to _BATCH go in one statement.
_GATHER_S = 0.005
# Runs that are already finished and only need logging wait longer: a batch costs more than one line in it.
_LOG_EVERY_S = 0.05
_BATCH = 1000
# An end that another transaction holds up is tried again this often, and so many in one go: each takes a millisecond.
_HELD_EVERY_S = 1.0
_HELD_AT_ONCE = 100
# Errors of a result that the database cannot keep: JSON that jsonb refuses, or another result's public id.
_REFUSALS = (DataError, IntegrityError)


class Finisher(Loop):
    """Loop that records successful runs. ``forget`` gets every job whose end is written or whose lease is lost.

    Until then a job without a transaction stays ours; a crash in between repeats it, as always for such jobs.
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
        self._locked: list[RunningJob] = []
        self._held_up: deque[tuple[RunningJob, Outcome]] = deque()
        self._try_held_up_at = float("inf")
        self._writing_since: float | None = None

    @property
    def behind_s(self) -> float:
        """How long the oldest end of a run has been waiting to be written, in seconds; 0 if none is."""
        since = self._writing_since
        with suppress(IndexError):  # written in the meantime
            since = since or (self._locked or self._ended)[0].ended
        return 0.0 if since is None else time.monotonic() - since

    def add(self, running: RunningJob) -> None:
        """Accept a run that succeeded; ``running.finished`` if its own transaction finished the row."""
        self._ended.append(running)
        if not (running.finished or self._urgent.is_set()):
            self._urgent.set()
        if not self.woken.is_set():
            self.woken.set()

    def set_aside(self, running: RunningJob, outcome: Outcome) -> None:
        """Accept an end that another transaction holds up, by the row or by the job's key; try it until it is written.

        Thread-safe. Until then the job stays ours; if the process stops first, others rescue it.
        """
        for run in running.runs:
            log_event(logging.WARNING, events.JOB_HELD_UP, **identify(run.job), queue=run.job.queue)
        self._held_up.append((running, outcome))
        self._try_held_up_at = min(self._try_held_up_at, time.monotonic() + _HELD_EVERY_S)
        self.wake()

    def poll(self) -> float:
        if self._ended or self._locked:
            if self._urgent.wait(_LOG_EVERY_S):
                self._urgent.clear()
                time.sleep(_GATHER_S)
            self._write_all()
        if time.monotonic() >= self._try_held_up_at:
            self._settle_held_up()
        # The next round waits for others, or a while.
        return 0.0 if self._locked else max(0.0, self._try_held_up_at - time.monotonic())

    def finish(self) -> bool:
        self._write_all()
        return not (self._ended or self._locked or self._held_up)

    def _write_all(self) -> None:
        if self._locked and not self._abandon.is_set():
            locked, self._locked = self._locked, []
            self._write(locked, contended=True)
        # Appending and popping need no lock; any later append wakes the loop again.
        remaining = len(self._ended)
        while remaining and not self._abandon.is_set():
            batch = [self._ended.popleft() for _ in range(min(remaining, _BATCH))]
            remaining -= len(batch)
            self._write(batch)

    def _settle_held_up(self) -> None:
        """Write some of the ends that nothing holds up any more."""
        first = [self._held_up.popleft() for _ in range(min(len(self._held_up), _HELD_AT_ONCE))]
        free: set[int] = set()
        try:
            free.update(queries.unheld([run.id for running, _ in first for run in running.runs]))
            while first:
                running, outcome = first[-1]
                if all(run.id in free for run in running.runs):
                    self._settle(running, outcome)
                else:
                    self._held_up.append((running, outcome))
                first.pop()
        finally:
            self._held_up.extend(first)
            self._try_held_up_at = time.monotonic() + _HELD_EVERY_S if self._held_up else float("inf")

    def _settle(self, running: RunningJob, outcome: Outcome) -> None:
        """Write the end of a run; set it aside if another transaction holds it up. Raises other database errors."""
        try:
            settle(running, outcome)
        except OperationalError as error:
            if not queries.is_held_up(error):
                raise
            self._held_up.append((running, outcome))
            self._try_held_up_at = min(self._try_held_up_at, time.monotonic() + _HELD_EVERY_S)
            return
        except _REFUSALS:
            logger.exception("the end of job %s could not be written; it is given back", running.id)
        self._forget([run.job for run in running.runs])

    def _write(self, batch: list[RunningJob], *, contended: bool = False) -> None:
        """Write one batch and empty it, waiting out any outage. ``contended``: their rows were locked by others."""
        self._writing_since = batch[0].ended
        try:
            self.outage.wait_out(lambda: self._write_once(batch, contended), self._abandon.wait)
        except Exception:  # without this thread no job of the process would ever be recorded as ended
            logger.exception("the ends of %s jobs could not be written; they are given back", len(batch))
            self._forget([running.job for running in batch])
        self._writing_since = None

    def _write_once(self, batch: list[RunningJob], contended: bool) -> None:
        plain = [running.job for running in batch if not running.finished and running.result is None]
        self._report(batch, queries.finish_many(plain, self._process_id, contended) if plain else set())
        if kept := [running for running in batch if running.result is not None]:
            self._finish_results(batch, kept)
        if batch and not self.stopping.is_set():
            # A row that another transaction has locked, such as one that cancels the job, holds up only that job.
            locked = queries.owned([running.job for running in batch], self._process_id)
            self._locked += [running for running in batch if running.id in locked]
            batch[:] = [running for running in batch if running.id not in locked]
        while batch:
            # Either an earlier attempt finished it and the answer was lost, or it is no longer ours: this finds out. In
            # the last round it also waits for locked rows.
            try:
                settle(batch[-1], Succeeded(finished=False))
                self._forget([batch[-1].job])
            except _REFUSALS as error:
                self._settle(batch[-1], Errored(error))
            batch.pop()

    def _report(self, batch: list[RunningJob], ids: set[int]) -> None:
        """Remove from the batch what is finished, and report it."""
        finished = [running for running in batch if running.finished or running.job.id in ids]
        self._forget([running.job for running in finished])
        if len(finished) == len(batch):
            batch.clear()
        else:
            batch[:] = [running for running in batch if not (running.finished or running.job.id in ids)]
        report_successes(finished)

    def _finish_results(self, batch: list[RunningJob], kept: list[RunningJob]) -> None:
        """Finish runs that keep a result: together, or one by one if refused, so that only the one at fault fails."""
        results = [(running.job, running.result) for running in kept if running.result is not None]
        try:
            ids = queries.finish_results(results, self._process_id)
        except _REFUSALS as error:
            if len(kept) > 1:
                for running in kept:
                    self._finish_results(batch, [running])
                return
            self._settle(kept[0], Errored(error))
            batch.remove(kept[0])
        else:
            self._report(batch, ids)
