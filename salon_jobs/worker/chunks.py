"""Runs of jobs that one handler takes together: one, or a chunk of one store and task."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

from django.db.backends.base.base import BaseDatabaseWrapper

from salon_jobs.core.errors import ResultInvalid
from salon_jobs.core.records import ClaimedJob
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.payload import ChunkPayload
from salon_jobs.jobs.registry import TaskDeclaration
from salon_jobs.jobs.run import JobRun
from salon_jobs.worker.executor import why_expired


def can_join_chunk(task: TaskDeclaration, job: ClaimedJob) -> bool:
    """Return whether the job may run together with others.

    A job that failed, alone or in a chunk, runs alone, since it would make the others fail again. So does a job that
    waited too long, which ends without a run, and a job whose payload is too large for a claim to carry.
    """
    if task.chunk is None or job.attempts or job.alone or not job.payload:
        return False
    return why_expired(task, job, time.monotonic() - job.due_at) is None


def run_of(
    jobs: Sequence[ClaimedJob],
    task: TaskDeclaration,
    leases: Leases,
    connection: BaseDatabaseWrapper,
    *,
    resets_session: bool = False,
) -> JobRun:
    """Return the run of these jobs of a task; a run of several jobs if the task has ``chunk``."""
    if task.chunk is None:
        [job] = jobs
        return JobRun(job, task, leases, connection, resets_session)
    first, *others = (ChunkRun(job, task, leases, connection, resets_session) for job in jobs)
    first.others = tuple(others)
    for run in first.runs if others else ():
        run.started, run.size = first.started, len(jobs)
    return first


class ChunkRun(JobRun):
    """Run of one job of a task with ``chunk``, alone or in a chunk.

    The first run represents the chunk to threads, deadlines, slots in shared memory and traces.
    """

    size = 1
    others: tuple[ChunkRun, ...] = ()

    @property
    def runs(self) -> tuple[ChunkRun, ...]:
        """All runs of the chunk that begins with this one."""
        return (self, *self.others)

    @property
    def log_fields(self) -> dict[str, object]:
        """The log field with the number of jobs in the chunk."""
        return {"chunk": self.size} if self.size > 1 else {}

    @property
    def duration_s(self) -> float:
        """This job's share of the handler's duration in seconds."""
        return self.ran_s / self.size

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the handler. Raises PayloadInvalid."""
        payload = cast("ChunkPayload", self.declaration.payload)
        return payload.join([JobRun.arguments(run) for run in self.runs])

    def keep_returned(self, value: object) -> None:
        """Keep the results of those jobs whose task keeps results.

        Raises ResultInvalid unless there is one result per job.
        """
        runs = self.runs
        if not any(run.result_kept_for for run in runs):
            return
        results: list[Any] = [None] * len(runs) if value is None else cast("list[Any]", value)
        if not isinstance(results, list) or len(results) != len(runs):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ResultInvalid(
                f"task {self.task!r} keeps results: for {len(runs)} jobs it must return None, or a list of {len(runs)}"
            )
        for run, result in zip(runs, results, strict=True):
            JobRun.keep_returned(run, result)
