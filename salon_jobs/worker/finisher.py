"""Finisher: writes how runs ended, successes in batches by one statement and one log write, the rest one at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from django.db import DataError, Error, IntegrityError
from psycopg import errors

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.error_report import report
from salon_jobs.core.events import log_event, logger
from salon_jobs.core.outcomes import Errored, Outcome, Succeeded
from salon_jobs.db import statements
from salon_jobs.db.statements import is_lock_conflict
from salon_jobs.db.upkeep import finish_cleaning_all, tidy_connections
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.result_waits import awaited
from salon_jobs.jobs.run import MOST_PER_STATEMENT, JobRun, batched_by_size
from salon_jobs.process.loop import Loop, Outage
from salon_jobs.worker.buffer import JobBuffer
from salon_jobs.worker.ends import identify, refused, report_successes, settle

# How long the first success of a batch waits for others, if the process has other jobs; then up to _BATCH share one
# statement.
_GATHER_S = 0.005
# Runs that are already finished and only need logging wait longer: a batch costs more than one line in it.
_LOG_EVERY_S = 0.05
_BATCH = 1000
# An end that another transaction holds up is tried again this often, this many at a time: each takes a millisecond.
_HELD_EVERY_S = 1.0
_HELD_AT_ONCE = 100
# Characters of results and payloads in memory with unwritten ends. Small ones are limited by their number.
MOST_KEPT: Final = 64_000_000
_SMALL: Final = 16_000
_LOOK_AGAIN_S: Final = 0.2
# Errors of a result that the database cannot keep: JSON that jsonb refuses, or the public id of another result; ...
_REFUSALS: Final = (DataError, IntegrityError)
# ... of a statement that is too much for the server, for the protocol or for our memory, ...
_TOO_MUCH: Final = (errors.ProgramLimitExceeded, errors.OutOfMemory, errors.InternalError_, MemoryError)
# ... and SQLSTATEs that do not concern the data: connections, read-only servers, locks, a full disk, rights.
_OUTAGES: Final = ("08", "25", "40", "42", "53100", "53300", "55", "57P", "58")
# Resources that a statement lacks for its size, or because others have them: locks beyond statement_timeout, memory.
_TIMEOUT, _RESOURCES = "57014", "53"
# Before these errors a statement has waited, most likely for a lock on the whole table: any other process would wait
# too.
_WAITED: Final = ("55P03", _TIMEOUT)
# Any other error counts as a refusal after so many repetitions, each from a database that answers.
_TRIES: Final = 3


class WriteVerdict(Enum):
    """Decision about a part of a batch that could not be written.

    =========  ========================================================  =======================================
    Verdict    After                                                     Then
    =========  ========================================================  =======================================
    WAIT       an outage, or an error that has not come back often       the same part is written again
    SPLIT      a refusal of several runs, or what is too much at once    its halves are written, one by one
    FAIL       a refusal of one run                                      its failure is written instead
    GIVE_BACK  a refusal of that, too                                    the job is given back by a sweep
    =========  ========================================================  =======================================
    """

    WAIT = "wait"
    SPLIT = "split"
    FAIL = "fail"
    GIVE_BACK = "give back"


@dataclass(slots=True)
class _Part:
    """Runs with ends to write together, and how often the server has refused them."""

    runs: list[JobRun]
    # How often an error that may have another cause must come back until the part is split.
    tries: int = _TRIES
    refusals: int = 0
    # The failure to write instead of the success of one run.
    failure: Outcome | None = None

    def verdict(self, error: Exception, answers: Callable[[], bool]) -> WriteVerdict:
        """Return what to do after this error; ``answers`` tells whether the database answers."""
        is_alone = len(self.runs) == 1
        if (
            not (_sqlstate(error).startswith(_OUTAGES) or (is_alone and self._is_resource_shortage(error)))
            and answers()
        ):
            self.refusals += 1
        is_too_much = isinstance(error.__cause__ or error, _TOO_MUCH) and not is_alone
        needed = 1 if isinstance(error, _REFUSALS) or is_too_much else _TRIES if is_alone else self.tries
        if self.refusals < needed:
            return WriteVerdict.WAIT
        if not is_alone:
            return WriteVerdict.SPLIT
        return WriteVerdict.FAIL if self.failure is None else WriteVerdict.GIVE_BACK

    def halves(self) -> tuple[_Part, _Part]:
        """Return the later and the earlier half."""
        half = len(self.runs) // 2
        return _Part(self.runs[half:], tries=1), _Part(self.runs[:half], tries=1)

    def _is_resource_shortage(self, error: Exception) -> bool:
        """Return whether a single end met a server without time or resources; an end of this size is not the cause.

        The end of a run without a result, and a failure, are the smallest ends.
        """
        [running] = self.runs
        is_least = self.failure is not None or running.result is None
        if _sqlstate(error) == _TIMEOUT:
            return is_least or not size_of(running)
        return is_least and _sqlstate(error).startswith(_RESOURCES)


class Finisher(Loop):
    """Writer of the ends of a process's runs: this loop writes successes in batches; runner threads write the others.

    The buffer forgets every job with a written end or a lost lease. Until then a job without a transaction stays ours;
    a crash in between repeats it, as always for such jobs.
    """

    def __init__(
        self,
        leases: Leases,
        buffer: JobBuffer,
        abandon: threading.Event,
        *,
        most_per_statement: int = MOST_PER_STATEMENT,
        most_kept: int = MOST_KEPT,
    ) -> None:
        """Prepare; once ``abandon`` is set, nothing more is written.

        ``most_per_statement`` and ``most_kept`` are characters of results; a larger result is written, and waits,
        alone.
        """
        super().__init__("finisher", using=leases.using)
        self._leases = leases
        self._buffer = buffer
        self._abandon = abandon
        # Whether a success has still to be written, and not only to be logged.
        self._urgent = threading.Event()
        # Whether a caller waits for one of these ends.
        self._is_awaited = threading.Event()
        self._ended: deque[JobRun] = deque()
        self._held_up: deque[tuple[JobRun, Outcome]] = deque()
        self._try_held_up_at = float("inf")
        # The part of the current batch that is not yet written.
        self._parts: list[_Part] = []
        self._progressed_at = time.monotonic()
        self._most_per_statement, self._most_kept = most_per_statement, most_kept

    @property
    def behind_s(self) -> float:
        """Seconds that the oldest success has waited to be written; 0 if none waits."""
        now = time.monotonic()
        return max((now - (run.ended or now) for run in (*self._of_batch(), *self._ended.copy())), default=0.0)

    @property
    def stuck_s(self) -> float:
        """Seconds since the last write of a success or call of a receiver while successes are pending; 0 if none is.

        Successes whose row or table others have locked do not count.
        """
        return min(self.behind_s, time.monotonic() - self._progressed_at)

    def unwritten_ids(self) -> list[int]:
        """Return the jobs without a written end, and perhaps some of the current batch that have one."""
        return [run.id for run in self._unwritten()]

    def end(self, running: JobRun, outcome: Outcome) -> None:
        """Write the end of a run, on its thread, waiting out any outage: until then the job is ours, and runs once.

        A success is written later, or only reported if its own transaction has written it; this call waits while the
        results and payloads of runs with unwritten ends leave no room. An outcome that can never be written, such as a
        Snooze beyond the calendar, becomes an error of the job.
        """
        if isinstance(outcome, Succeeded):
            size = sum(map(size_of, running.runs))
            while size and (kept := sum(map(size_of, self._unwritten()))) and kept + size > self._most_kept:
                if self._abandon.wait(_LOOK_AGAIN_S):
                    break
            for run in running.runs:
                run.is_written = outcome.finished
                self._ended.append(run)
            if awaited.until and awaited.holds(run.id for run in running.runs):
                self._is_awaited.set()
                self._urgent.set()
            if not (outcome.finished or self._urgent.is_set()):
                self._urgent.set()
            if not self.woken.is_set():
                self.woken.set()
            return
        outage = Outage("settle", using=self.using)
        finish_cleaning_all()
        while True:
            try:
                self._settle(running, outcome)
            except BaseException as error:
                if isinstance(error, Error) and not isinstance(error, DataError):
                    if self._abandon.wait(outage.lost(error, **identify(running.job))):
                        break
                    tidy_connections()
                elif isinstance(outcome, Errored):
                    # Not even the error can be recorded; counting the attempt keeps the job from returning forever.
                    self._leases.fail(
                        running.job,
                        report(error),
                        delay=conf.backoff.cap,
                        final=False,
                        reason="attempts_exhausted",
                        ran_s=running.ran_s,
                    )
                    logger.error("the end of job %s could not be recorded: %s", running.id, type(error).__name__)
                    break
                else:
                    outcome = Errored(error)
            else:
                outage.over()
                return
        self._buffer.forget([run.job for run in running.runs])

    def hurry(self) -> None:
        """Write at once if a caller has just begun to wait for one of the ends."""
        if self._ended and awaited.holds(run.id for run in self._ended.copy()):
            self._is_awaited.set()

    def poll(self) -> float:
        if self._ended:
            if self._urgent.wait(_LOG_EVERY_S):
                self._urgent.clear()
                if self._buffer.more_than(len(self._ended)):
                    self._is_awaited.wait(_GATHER_S)
            self._is_awaited.clear()
            self._write_all(is_tidy=True)
        if time.monotonic() >= self._try_held_up_at:
            self._settle_held_up()
        # If rows were locked, their runs wait in ``_ended`` again, for the next batch.
        return 0.0 if self._ended else max(0.0, self._try_held_up_at - time.monotonic())

    def finish(self) -> bool:
        self._write_all()
        return not (self._ended or self._held_up)

    def _write_all(self, *, is_tidy: bool = False) -> None:
        # Appending and popping need no lock; any later append wakes the loop again.
        remaining = len(self._ended)
        while remaining and not self._abandon.is_set():
            batch = [self._ended.popleft() for _ in range(min(remaining, _BATCH))]
            remaining -= len(batch)
            self._write(batch, is_tidy=is_tidy)
            is_tidy = False  # receivers were called

    def _write(self, batch: list[JobRun], *, is_tidy: bool) -> None:
        """Write one batch, waiting out any outage; split what the server refuses, and write the halves.

        So the single refused run is found, and fails. ``is_tidy``: the loop has just tidied the connections.
        """
        parts = self._parts = [_Part(batch)]
        try:
            while parts:
                part = parts[-1]
                try:
                    if not is_tidy:
                        tidy_connections()
                    is_tidy = False
                    if part.failure is None:
                        self._write_once(part.runs)
                    else:
                        self._settle(part.runs[0], part.failure)
                        part.runs.clear()
                except (Error, MemoryError) as error:
                    for running in part.runs:
                        running.is_unclear = True
                    if _sqlstate(error) in _WAITED:
                        self._progressed()
                    match part.verdict(error, self._answers):
                        case WriteVerdict.WAIT:
                            if self._abandon.wait(self.outage.lost(error)):
                                break
                        case WriteVerdict.SPLIT:
                            parts[-1:] = part.halves()
                        case WriteVerdict.FAIL:
                            part.refusals, part.failure = 0, refused(part.runs[0], error)
                        case WriteVerdict.GIVE_BACK:
                            running = part.runs.pop()
                            logger.exception("the end of job %s could not be written; it is given back", running.id)
                            self._buffer.forget([running.job])
                else:
                    self.outage.over()
                    self._progressed()
                if not part.runs:
                    parts.pop()
        except Exception:  # without this thread no job of the process would ever be recorded as ended
            jobs = [running.job for running in self._of_batch()]
            logger.exception("the ends of %s jobs could not be written; they are given back", len(jobs))
            self._buffer.forget(jobs)
        self._parts = []

    def _write_once(self, part: list[JobRun]) -> None:
        """Write and report what can be written, and remove it from the part; keep locked rows for the next round."""
        self._report_written(part)
        plain = [running for running in part if running.result is None]
        for runs in (*([plain] if plain else ()), *batched_by_size(part, self._most_per_statement)):
            fences = self._leases.finish_many(runs)
            for running in runs:
                running.is_written = running.job.fence in fences
            self._report_written(part)
        if part and not self.stopping.is_set():
            # A row that another transaction has locked, for example to cancel the job, holds up only that job.
            locked = self._leases.owned([running.job for running in part])
            self._ended.extend(running for running in part if running.job.fence in locked)
            part[:] = [running for running in part if running.job.fence not in locked]
        while part:
            # Either an earlier attempt finished it and the answer was lost, or it is no longer ours: settling finds
            # out. In the last round it also waits for locked rows.
            settle(part[-1], Succeeded(finished=False))
            self._buffer.forget([part.pop().job])
            self._progressed()

    def _report_written(self, part: list[JobRun]) -> None:
        """Remove the written runs from the part, and report them."""
        written = [running for running in part if running.is_written]
        if written:
            part[:] = [running for running in part if not running.is_written]
            self._buffer.forget([running.job for running in written])
            self._progressed()
            report_successes(written, self._progressed)

    def _settle(self, running: JobRun, outcome: Outcome) -> None:
        """Write an end; if another transaction holds it up, by the row or by the job's key, try until it is written.

        Until then the job stays ours; if the process stops first, others rescue it. Raises other database errors.
        """
        try:
            settle(running, outcome)
        except Error as error:
            if not is_lock_conflict(error):
                raise
            for run in running.runs:
                log_event(logging.WARNING, events.JOB_HELD_UP, **identify(run.job), queue=run.job.queue)
            self._held_up.append((running, outcome))
            self._try_held_up_at = min(self._try_held_up_at, time.monotonic() + _HELD_EVERY_S)
            self.wake()
        else:
            self._buffer.forget([run.job for run in running.runs])

    def _settle_held_up(self) -> None:
        """Write some of the ends that are no longer held up."""
        first = [self._held_up.popleft() for _ in range(min(len(self._held_up), _HELD_AT_ONCE))]
        free: set[int] = set()
        try:
            free.update(self._leases.unheld([run.id for running, _ in first for run in running.runs]))
            while first:
                running, outcome = first[-1]
                if not all(run.id in free for run in running.runs):
                    self._held_up.append((running, outcome))
                else:
                    try:
                        self._settle(running, outcome)
                    except _REFUSALS:
                        logger.exception("the end of job %s could not be written; it is given back", running.id)
                        self._buffer.forget([run.job for run in running.runs])
                    running.forget_error()
                first.pop()
        finally:
            self._held_up.extend(first)
            self._try_held_up_at = time.monotonic() + _HELD_EVERY_S if self._held_up else float("inf")

    def _answers(self) -> bool:
        """Return whether the database answers: if it does, an error that repeats is no outage."""
        try:
            tidy_connections()
            statements.ping(using=self.using)
        except Error:
            return False
        return True

    def _unwritten(self) -> list[JobRun]:
        held_up = [run for running, _ in self._held_up.copy() for run in running.runs]
        return [*self._of_batch(), *held_up, *self._ended.copy()]

    def _of_batch(self) -> list[JobRun]:
        return [run for part in self._parts for run in part.runs]

    def _progressed(self) -> None:
        self._progressed_at = time.monotonic()


def size_of(running: JobRun) -> int:
    """Return how many characters a run keeps in memory until its end is written; 0 for a few."""
    size = len(running.job.payload) + (0 if running.result is None else len(running.result.value))
    return size if size > _SMALL else 0


def _sqlstate(error: Exception) -> str:
    return getattr(error.__cause__, "sqlstate", None) or ""
