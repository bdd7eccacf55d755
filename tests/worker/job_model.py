"""Model of jobs in plain Python, written from the documentation rather than the SQL, for ``test_job_model``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

Identity = tuple[str, UUID | None, str]
MAX_DEATHS = 5
QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELLED = "queued", "running", "succeeded", "failed", "cancelled"


@dataclass(frozen=True, slots=True)
class Soon:
    """Instant by the database's clock: when the operation ran, plus a delay."""

    wait: timedelta = timedelta(0)


@dataclass(slots=True)
class ModelJob:
    """Expected row of a job."""

    id: int
    task: str
    store_id: UUID | None
    queue: str
    priority: int
    max_attempts: int
    run_at: datetime | Soon
    expires_at: datetime | None
    payload: str
    job_key: str | None
    concurrency_key: str | None
    state: str = QUEUED
    attempts: int = 0
    lease: int = 0
    leased_by: int | None = None
    rescues: int = 0
    reason: str = ""

    @property
    def identity(self) -> Identity | None:
        """Return the scope in which a key is unique; None without a key."""
        return None if self.job_key is None else (self.task, self.store_id, self.job_key)


@dataclass(frozen=True, slots=True)
class Run:
    """One claim of one job, which a worker may hold for too long."""

    job_id: int
    process_id: int
    lease: int


@dataclass(slots=True)
class Model:
    """All jobs, with the expected result of each operation."""

    keep_succeeded: bool
    jobs: dict[int, ModelJob] = field(default_factory=dict[int, ModelJob])
    processes: set[int] = field(default_factory=set[int])
    # Runs whose key a newer job took. They are never queued again.
    superseded: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    # Runs to be cancelled: (job, lease). They are never queued again either.
    unwanted: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    errors: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])

    def expect(self, new: ModelJob, mode: str) -> tuple[str, int | None]:
        """Return the expected result of an enqueue, and the ID of the existing job (None: a new one)."""
        waiting, running = self._holders(new.identity)
        if mode == "unsafe_dedupe" and (waiting or running):
            return "kept", max(job.id for job in waiting + running)
        if waiting:
            return "kept" if mode == "preserve_run_at" else "replaced", waiting[0].id
        return "superseded_running" if running else "inserted", None

    def enqueue(self, new: ModelJob, mode: str) -> None:
        """Add a job under the ID that the database gave, or change the one that waits under its key."""
        waiting, running = self._holders(new.identity)
        if mode == "unsafe_dedupe" and (waiting or running):
            return
        for job in waiting:
            job.queue, job.priority, job.max_attempts = new.queue, new.priority, new.max_attempts
            job.expires_at, job.payload, job.reason = new.expires_at, new.payload, ""
            job.concurrency_key = new.concurrency_key
            if mode == "replace":
                job.run_at, job.attempts, job.rescues = new.run_at, 0, 0
        if not waiting:
            self.superseded |= {(job.id, job.lease) for job in running}
            self.jobs[new.id] = new

    def claim(
        self, process_id: int, tasks: Iterable[str], room: int, queues: Sequence[str] | None, now: datetime, lease: int
    ) -> list[Run]:
        """Lease due jobs, in claim order; none for a process that was declared dead."""
        known = set(tasks)
        due = [
            job
            for job in self.jobs.values()
            if job.state == QUEUED
            and instant(job) <= now
            and job.task in known
            and (queues is None or job.queue in queues)
            and process_id in self.processes
        ]
        due.sort(key=lambda job: (job.priority, instant(job), job.id))
        for job in due[:room]:
            job.state, job.leased_by, job.lease = RUNNING, process_id, lease
        return [Run(job.id, process_id, job.lease) for job in due[:room]]

    def finish(self, run: Run) -> bool:
        """End a run as succeeded: the row is deleted, or kept."""
        job = self._owned(run)
        if job is None:
            return False
        if self.keep_succeeded:
            job.attempts += 1
            self._end(job, SUCCEEDED, "")
        else:
            del self.jobs[job.id]
        return True

    def fail(self, run: Run, wait: timedelta, *, final: bool, reason: str, code: str) -> tuple[str, str] | None:
        """Count an attempt; retry, unless all are used up or a newer job took the key."""
        job = self._owned(run)
        if job is None:
            return None
        superseded = self._is_superseded(job)
        job.attempts += 1
        self.errors.append((job.id, job.attempts, code))
        if (job.id, job.lease) in self.unwanted:
            self._end(job, CANCELLED, "cancelled")
        elif final or job.attempts >= job.max_attempts:
            self._end(job, FAILED, reason)
        else:
            self._queue_again(job, superseded, Soon(wait))
        return job.state, job.reason

    def requeue(self, runs: Sequence[Run], wait: timedelta | None) -> int:
        """Queue again without counting an attempt: after a wait, or at the same time as before."""
        owned = [job for run in runs if (job := self._owned(run))]
        for job in owned:
            self._queue_again(job, self._is_superseded(job), None if wait is None else Soon(wait))
        return len(owned)

    def cancel_run(self, run: Run, reason: str, *, code: str = "") -> bool:
        """End a run as cancelled; with a code, it had not begun, counts no attempt and has an error row."""
        job = self._owned(run)
        if job is None:
            return False
        if code:
            self.errors.append((job.id, job.attempts + 1, code))
        else:
            job.attempts += 1
        self._end(job, CANCELLED, reason)
        return True

    def operator_retry(self, job_ids: Sequence[int]) -> list[bool]:
        """Queue ended jobs again, due now, unless another one waits under the key, or a newer one runs."""
        changed: list[bool] = []
        for job_id in job_ids:
            job = self.jobs.get(job_id)
            waiting, running = ([], []) if job is None else self._holders(job.identity)
            is_free = not waiting and all(each.id < job_id for each in running)
            possible = job is not None and job.state in (FAILED, CANCELLED) and is_free
            if job is not None and possible:
                job.state, job.reason, job.run_at, job.rescues = QUEUED, "", Soon(), 0
                job.max_attempts = max(job.max_attempts, job.attempts + 1)
                if job.expires_at is not None and job.expires_at <= datetime.now(UTC):
                    job.expires_at = None
            changed.append(possible)
        return changed

    def operator_cancel(self, job_ids: Sequence[int]) -> list[bool]:
        """Cancel jobs that are not running, and request the end of the others."""
        found = [self.jobs.get(job_id) for job_id in job_ids]
        changed = [job is not None and job.state in (QUEUED, FAILED, RUNNING) for job in found]
        self.unwanted |= {(job.id, job.lease) for job in found if job is not None and job.state == RUNNING}
        for job in found:
            if job is not None and job.state in (QUEUED, FAILED):
                self._end(job, CANCELLED, "cancelled")
        return changed

    def rescue_process(self, process_id: int, charged: Collection[int] | None) -> tuple[int, int]:
        """Requeue a dead process's jobs; return how many did not fail, and how many did.

        Jobs that had started (None: unknown, so all) count a rescue.
        """
        self.processes.discard(process_id)
        theirs = [job for _, job in sorted(self.jobs.items()) if job.state == RUNNING and job.leased_by == process_id]
        for job in theirs:
            superseded, unwanted = self._is_superseded(job), (job.id, job.lease) in self.unwanted
            job.lease = 0
            started = charged is None or job.id in charged
            if started:
                job.rescues += 1
                self.errors.append((job.id, job.attempts + 1, "JOB.PROCESS_DIED"))
            if unwanted:
                self._end(job, CANCELLED, "cancelled")
            elif started and job.rescues >= MAX_DEATHS:
                self._end(job, FAILED, "process_died")
            else:
                self._queue_again(job, superseded, None)
        failed = sum(job.state == FAILED for job in theirs)
        return len(theirs) - failed, failed

    def held_by(self, process_id: int) -> set[tuple[int, int]]:
        """Return the (ID, lease) of each job that a process holds."""
        return {
            (job.id, job.lease) for job in self.jobs.values() if job.state == RUNNING and job.leased_by == process_id
        }

    def _holders(self, identity: Identity | None) -> tuple[list[ModelJob], list[ModelJob]]:
        same = [job for job in self.jobs.values() if identity is not None and job.identity == identity]
        return [job for job in same if job.state == QUEUED], [job for job in same if job.state == RUNNING]

    def _owned(self, run: Run) -> ModelJob | None:
        job = self.jobs.get(run.job_id)
        held = (RUNNING, run.process_id, run.lease)
        return job if job is not None and (job.state, job.leased_by, job.lease) == held else None

    def _is_superseded(self, job: ModelJob) -> bool:
        return (job.id, job.lease) in self.superseded or bool(self._holders(job.identity)[0])

    def _queue_again(self, job: ModelJob, superseded: bool, due: Soon | None) -> None:
        if superseded or (job.id, job.lease) in self.unwanted:
            self._end(job, CANCELLED, "cancelled" if (job.id, job.lease) in self.unwanted else "superseded")
            return
        job.state, job.leased_by, job.reason = QUEUED, None, ""
        job.run_at = due or job.run_at

    @staticmethod
    def _end(job: ModelJob, state: str, reason: str) -> None:
        job.state, job.leased_by, job.reason = state, None, reason


def instant(job: ModelJob) -> datetime:
    """Return when a job is due, as compared with the database before."""
    assert isinstance(job.run_at, datetime), job
    return job.run_at
