"""Batched ends of successful runs: one statement for those without their own transaction, one write to the log."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from django.db import DataError, Error, IntegrityError, OperationalError
from psycopg import errors

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.events import log_event, logger
from salon_jobs.core.outcomes import Outcome, Succeeded
from salon_jobs.core.records import ClaimedJob
from salon_jobs.db import statements
from salon_jobs.db.statements import is_held_up
from salon_jobs.jobs.current import RunningJob
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.results import MOST_PER_STATEMENT, in_statements
from salon_jobs.process.loop import Loop
from salon_jobs.tenancy.connections import tidy_connections
from salon_jobs.worker.ends import identify, refused, report_successes, settle

# How long the first success of a batch waits for others; then up to _BATCH go in one statement.
_GATHER_S = 0.005
# Runs that are already finished and only need logging wait longer: a batch costs more than one line in it.
_LOG_EVERY_S = 0.05
_BATCH = 1000
# An end that another transaction holds up is tried again this often, and so many in one go: each takes a millisecond.
_HELD_EVERY_S = 1.0
_HELD_AT_ONCE = 100
# Characters of results and payloads in memory whose ends are not written. What is small is bounded by its number.
MOST_KEPT: Final = 64_000_000
_SMALL: Final = 16_000
_LOOK_AGAIN_S: Final = 0.2
# Errors of a result that the database cannot keep: JSON that jsonb refuses, or another result's public id; ...
_REFUSALS: Final = (DataError, IntegrityError)
# ... of a statement that is too much for the server, for the protocol or for our memory, ...
_TOO_MUCH: Final = (errors.ProgramLimitExceeded, errors.OutOfMemory, errors.InternalError_, MemoryError)
# ... and SQLSTATEs that say nothing about what is written: connections, read-only servers, locks, a full disk, rights.
_OUTAGES: Final = ("08", "25", "40", "42", "53100", "53300", "55", "57P", "58")
# What a statement lacks for its size, or because others have it: locks that outlast statement_timeout, or memory.
_TIMEOUT, _RESOURCES = "57014", "53"
# After these a statement has waited, for a lock on the whole table most likely: any other process would wait as well.
_WAITED: Final = ("55P03", _TIMEOUT)
# Any other error counts as a refusal once it has come back so often, each time from a database that answers.
_TRIES: Final = 3


class Finisher(Loop):
    """Loop that records successful runs. ``forget`` gets every job whose end is written or whose lease is lost.

    Until then a job without a transaction stays ours; a crash in between repeats it, as always for such jobs.
    """

    def __init__(
        self,
        leases: Leases,
        forget: Callable[[Sequence[ClaimedJob]], None],
        abandon: threading.Event,
        *,
        most_per_statement: int = MOST_PER_STATEMENT,
        most_kept: int = MOST_KEPT,
    ) -> None:
        """Prepare; once ``abandon`` is set, nothing more is written.

        ``most_per_statement`` and ``most_kept`` are characters of results; a larger one goes, and waits, alone.
        """
        super().__init__("finisher", using=leases.using)
        self._leases = leases
        self._forget = forget
        self._abandon = abandon
        self._urgent = threading.Event()
        self._ended: deque[RunningJob] = deque()
        self._locked: list[RunningJob] = []
        self._held_up: deque[tuple[RunningJob, Outcome]] = deque()
        self._try_held_up_at = float("inf")
        self._batch: list[RunningJob] = []
        self._writing_since: float | None = None
        self._progressed_at = time.monotonic()
        self._most_per_statement, self._most_kept = most_per_statement, most_kept
        # Characters in memory of runs whose end is not written (``_size``).
        self._kept = 0
        self._room = threading.Condition()

    @property
    def behind_s(self) -> float:
        """How long the oldest end of a run has been waiting to be written, in seconds; 0 if none is."""
        since = self._writing_since
        with suppress(IndexError):  # written in the meantime
            since = since or (self._locked or self._ended)[0].ended
        return 0.0 if since is None else time.monotonic() - since

    @property
    def stuck_s(self) -> float:
        """How long no end was written, nor a receiver told, although some wait; 0 if none does.

        An end whose row or table is locked by others does not count.
        """
        since = self._writing_since
        with suppress(IndexError):
            since = since or self._ended[0].ended
        return 0.0 if since is None else time.monotonic() - max(since, self._progressed_at)

    def unwritten_ids(self) -> list[int]:
        """Return the jobs whose end is not written, and perhaps some of those of the current batch whose end is."""
        held_up = [running for running, _ in self._held_up.copy()]
        return [running.id for running in (*self._batch, *self._locked, *held_up, *self._ended.copy())]

    def add(self, running: RunningJob) -> None:
        """Accept a run that succeeded; ``running.finished`` if its own transaction finished the row.

        Waits while the results and payloads of other runs whose end is not written leave no room.
        """
        if size := _size(running):
            with self._room:
                while self._kept and self._kept + size > self._most_kept and not self._abandon.is_set():
                    self._room.wait(_LOOK_AGAIN_S)
                self._kept += size
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
        with self._room:
            self._kept += sum(map(_size, running.runs))
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
            self._write(locked)
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
            free.update(self._leases.unheld([run.id for running, _ in first for run in running.runs]))
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
            if not is_held_up(error):
                raise
            self._held_up.append((running, outcome))
            self._try_held_up_at = min(self._try_held_up_at, time.monotonic() + _HELD_EVERY_S)
            return
        except _REFUSALS:
            logger.exception("the end of job %s could not be written; it is given back", running.id)
        self._drop(running.runs)

    def _write(self, batch: list[RunningJob]) -> None:
        """Write one batch and empty it, waiting out any outage."""
        self._batch, self._writing_since = list(batch), batch[0].ended
        try:
            self._write_or_split(batch)
        except Exception:  # without this thread no job of the process would ever be recorded as ended
            logger.exception("the ends of %s jobs could not be written; they are given back", len(batch))
            self._drop(batch)
        self._batch, self._writing_since = [], None

    def _write_or_split(self, batch: list[RunningJob], *, tries: int = _TRIES) -> None:
        """Write a batch; split what the server refuses in halves, down to the one run that it refuses, which fails.

        ``tries`` is how often an error that may have another reason must come back until the batch is split.
        """
        refusals, failure = 0, None
        while batch:
            try:
                tidy_connections()
                if failure is None:
                    self._write_once(batch)
                else:
                    self._settle(batch[-1], failure)
                    batch.pop()
            except (Error, MemoryError) as error:
                for running in batch:
                    running.is_unclear = True
                if _sqlstate(error) in _WAITED:
                    self._progressed()
                is_alone = len(batch) == 1
                is_outage = _is_outage(error) or (is_alone and _lacks(error, batch[0], failure))
                refusals += not is_outage and self._answers()
                if isinstance(error, _REFUSALS) or (isinstance(error.__cause__ or error, _TOO_MUCH) and not is_alone):
                    needed = 1
                else:
                    needed = _TRIES if is_alone else tries
                if refusals < needed:
                    if self._abandon.wait(self.outage.lost(error)):
                        return
                elif not is_alone:
                    half = batch[: len(batch) // 2]
                    del batch[: len(half)]
                    self._write_or_split(half, tries=1)
                elif failure is None:
                    refusals, failure = 0, refused(batch[0], error)
                else:  # not even its failure can be written
                    logger.exception("the end of job %s could not be written; it is given back", batch[0].id)
                    self._drop([batch.pop()])
            else:
                self.outage.over()

    def _answers(self) -> bool:
        """Return whether the database answers: then an error that repeats is no outage."""
        try:
            tidy_connections()
            statements.ping(using=self.using)
        except Error:
            return False
        return True

    def _write_once(self, batch: list[RunningJob]) -> None:
        plain = [running for running in batch if not running.finished and running.result is None]
        jobs = [running.job for running in plain]
        ran_s = [running.ran_s for running in plain] if conf.keep_succeeded else ()
        self._report(batch, self._leases.finish_many(jobs, ran_s=ran_s) if jobs else set())
        kept = [(running.job, running.result) for running in batch if running.result is not None]
        for some in in_statements(kept, self._most_per_statement):
            jobs, results = [job for job, _ in some], [result for _, result in some]
            ran_s = [result.ran_s for result in results] if conf.keep_succeeded else ()
            self._report(batch, self._leases.finish_many(jobs, results=results, ran_s=ran_s))
        if batch and not self.stopping.is_set():
            # A row that another transaction has locked, such as one that cancels the job, holds up only that job.
            locked = self._leases.owned([running.job for running in batch])
            self._locked += [running for running in batch if running.job.fence in locked]
            batch[:] = [running for running in batch if running.job.fence not in locked]
        while batch:
            # Either an earlier attempt finished it and the answer was lost, or it is no longer ours: this finds out. In
            # the last round it also waits for locked rows.
            settle(batch[-1], Succeeded(finished=False))
            self._drop([batch.pop()])

    def _report(self, batch: list[RunningJob], fences: set[int]) -> None:
        """Remove from the batch what is finished, and report it."""
        finished = batch[:]
        if len(fences) < len(batch):
            finished = [running for running in batch if running.finished or running.job.fence in fences]
        self._drop(finished)
        if len(finished) == len(batch):
            batch.clear()
        else:
            batch[:] = [running for running in batch if not (running.finished or running.job.fence in fences)]
        report_successes(finished, self._progressed)

    def _drop(self, runs: Sequence[RunningJob]) -> None:
        """Forget runs whose end is written or whose lease is lost, and make room for others."""
        self._forget([running.job for running in runs])
        self._progressed()
        if self._kept:
            with self._room:
                self._kept -= sum(map(_size, runs))
                self._room.notify_all()

    def _progressed(self) -> None:
        self._progressed_at = time.monotonic()


def _size(running: RunningJob) -> int:
    """Return how many characters a run keeps in memory until its end is written; 0 if that is little."""
    size = len(running.job.payload) + (0 if running.result is None else len(running.result.value))
    return size if size > _SMALL else 0


def _is_outage(error: Exception) -> bool:
    return _sqlstate(error).startswith(_OUTAGES)


def _lacks(error: Exception, running: RunningJob, failure: Outcome | None) -> bool:
    """Return whether one end met a server without time or resources, which is no fault of an end of this size.

    The end of a run without a result, and a failure, are as small as ends can be.
    """
    is_least = failure is not None or running.result is None
    if _sqlstate(error) == _TIMEOUT:
        return is_least or not _size(running)
    return is_least and _sqlstate(error).startswith(_RESOURCES)


def _sqlstate(error: Exception) -> str:
    return getattr(error.__cause__, "sqlstate", None) or ""
