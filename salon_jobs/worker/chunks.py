"""Chunks: several jobs of one store and task that run together, how they are gathered, run and ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from salon_jobs.core import events
from salon_jobs.core.error_report import report
from salon_jobs.core.errors import LeaseLost, ResultInvalid
from salon_jobs.core.events import log_event
from salon_jobs.core.outcomes import Errored, Outcome, Split, Succeeded
from salon_jobs.core.records import ClaimedJob, JobState
from salon_jobs.db.internals import break_cycles
from salon_jobs.db.statements import in_one_trip
from salon_jobs.jobs.current import CurrentJob
from salon_jobs.jobs.payload import ChunkPayload
from salon_jobs.jobs.registry import TaskDeclaration
from salon_jobs.jobs.run import MOST_PER_STATEMENT, JobRun, current_run, in_statements, refuse_open_transaction
from salon_jobs.process.loop import Outage
from salon_jobs.signals import job_started
from salon_jobs.tenancy.context import StoreJobContext
from salon_jobs.worker import ends, executor
from salon_jobs.worker.buffer import JobBuffer

if TYPE_CHECKING:
    from salon_jobs.worker.chunk_claim import ChunkClaimer


def joins_chunk(task: TaskDeclaration, job: ClaimedJob) -> bool:
    """Return whether the job may run together with others.

    A job that failed, or was in a chunk that failed, runs alone, since it would make the others fail again. So does one
    that waited too long, which ends without a run, and one whose payload is so large that its claim left it out.
    """
    if task.chunk is None or job.attempts or job.expired or job.alone or not job.payload:
        return False
    return task.timeouts is None or not task.timeouts.expiry(time.monotonic() - job.due_at)


class ChunkRun(JobRun):
    """Run of one job of a task with ``chunk``, alone or in a chunk.

    The first run of a chunk stands for all of them where a thread, a deadline, a slot in shared memory or a trace knows
    one run.
    """

    size = 1
    others: tuple[ChunkRun, ...] = ()

    @classmethod
    def of(cls, jobs: Sequence[ClaimedJob], *context: Any, **options: Any) -> ChunkRun:
        """Return the run of these jobs; the other arguments are those of a ``JobRun``."""
        first, *others = (cls(job, *context, **options) for job in jobs)
        first.others = tuple(others)
        for run in first.runs if others else ():
            run.started, run.size = first.started, len(jobs)
        return first

    @property
    def runs(self) -> tuple[ChunkRun, ...]:
        """All runs of the chunk that begins with this one."""
        return (self, *self.others)

    @property
    def log_fields(self) -> dict[str, object]:
        """The number of jobs in the chunk."""
        return {"chunk": self.size} if self.size > 1 else {}

    @property
    def duration_s(self) -> float:
        """This job's share of the seconds that the handler has run."""
        return self.ran_s / self.size

    def returned(self, value: object) -> None:
        """Keep the results of those jobs of the chunk whose result is kept.

        Raises ResultInvalid unless there is one per job.
        """
        runs = self.runs
        if not any(run.keeps_result for run in runs):
            return
        results: list[Any] = [None] * len(runs) if value is None else cast("list[Any]", value)
        if not isinstance(results, list) or len(results) != len(runs):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ResultInvalid(
                f"task {self.task!r} keeps results: for {len(runs)} jobs it must return None, or a list of {len(runs)}"
            )
        for run, result in zip(runs, results, strict=True):
            JobRun.returned(run, result)

    def execute(self) -> Outcome:
        """Run the chunk in one transaction; it succeeds as a whole or not at all. Raises only an interrupt."""
        if not self.others:
            return executor.execute(self)
        task, payload = self.declaration, cast("ChunkPayload", self.declaration.payload)
        in_transaction = self.connection.in_atomic_block
        token = current_run.set(self)
        try:
            arguments = payload.join([payload.decode(run.job.payload, run.job.store_id) for run in self.runs])
            if job_started.receivers:
                for run in self.runs:
                    job_started.send_robust(task, job=CurrentJob(run))
            with executor.store_transaction(self) as own:
                executor.call_handler(arguments, self)
                self._finish(own)
            for run in self.runs:
                run.finished = True
            if not in_transaction:
                refuse_open_transaction(self.connection)
            return Succeeded(finished=True)
        except BaseException as error:  # a handler may raise anything, even SystemExit; only the chunk fails
            break_cycles(error)
            return self.ended_by(error)
        finally:
            current_run.reset(token)

    def ended_by(self, error: BaseException) -> Outcome:
        """Return the outcome of a chunk that raised this error. If it is its own fault, its jobs then run alone."""
        outcome = executor.ended_by(self, error)
        return Split(error, alone=isinstance(outcome, Errored)) if self.others else outcome

    def _finish(self, own: StoreJobContext | None) -> None:
        """Finish all jobs of the chunk, and commit if nothing else is open. Raises LeaseLost."""
        self.check_end()
        self.is_unclear = True
        for runs in in_statements(self.runs, MOST_PER_STATEMENT):
            if self.leases.finish(runs) < len(runs):
                raise LeaseLost(f"jobs of the chunk of job {self.id} are no longer leased to this run")
        plain = [run for run in self.runs if run.result is None]
        with executor.lease_lost(self):
            # An empty statement commits alone.
            finish = self.leases.finish_call(plain) if plain else "SELECT"
            if own is None or not own.commit_after(finish):
                in_one_trip(self.connection, finish)

    def split(self, outcome: Split) -> bool:
        """Requeue the jobs of the chunk, which was rolled back; return False if none is ours."""
        error = outcome.error
        pairs = [(run.job.id, run.job.lease) for run in self.runs]
        ended = self.leases.requeue(pairs, delay=ends.delay_of_release(self), alone=outcome.alone)
        if not ended:
            return False
        described = report(error)
        if self.trace is not None:
            self.trace.error = error
        log_event(
            logging.WARNING,
            events.CHUNK_SPLIT,
            exc_info=error if self.interrupted_by is None else None,
            **ends.identify(self.job),
            jobs=self.size,
            queue=self.job.queue,
            error_class=described.error_class,
            code=described.code,
            error=described.message[: ends.LONGEST_LOGGED],
        )
        for run in self.runs:
            end = ended.get(run.id)
            if end is None:
                ends.log_end(logging.WARNING, events.JOB_LEASE_LOST, run)
                continue
            if end.state is JobState.CANCELLED:
                ends.log_end(logging.INFO, events.JOB_CANCELLED, run, reason=end.reason)
            else:
                ends.log_end(logging.INFO, events.JOB_RELEASED, run, reason="chunk split")
            ends.announce(run, end.state)
        return True


def gather(
    task: TaskDeclaration, jobs: list[ClaimedJob], buffer: JobBuffer, claimer: ChunkClaimer | None, *, using: str
) -> None:
    """Add to ``jobs``, of which there is one, those that run in one chunk with it: jobs that wait, then claimed ones.

    If the database does not answer, the chunk runs without more.
    """
    [first] = jobs
    if not joins_chunk(task, first):
        return
    most = task.chunk or 1
    # UUIDs compare as numbers, since comparing two of them is a call. Each claim brings only a few of each store.
    group, store = first.claim_group, getattr(first.store_id, "int", first.store_id)

    def matches(job: ClaimedJob) -> bool:
        is_alike = job.claim_group == group and getattr(job.store_id, "int", job.store_id) == store
        return is_alike and joins_chunk(task, job)

    jobs += buffer.take_matching(matches, most - 1)
    if claimer is not None and len(jobs) < most:
        Outage("chunk", using=using).attempt(lambda: jobs.extend(claimer.claim(jobs[-1], most - len(jobs))))
