"""Claims for chunks: more due jobs of the store and the task of one that is about to run."""

from __future__ import annotations

import threading
from collections.abc import Callable

from salon_jobs.core.records import NO_STORE, ClaimedJob
from salon_jobs.jobs import queries, registry
from salon_jobs.jobs.limits import Limits
from salon_jobs.worker.buffer import JobBuffer
from salon_jobs.worker.executor import joins_chunk
from salon_jobs.worker.fair_claim import Quota, claim_groups
from salon_jobs.worker.group_scanner import ClaimGroup

# How long a chunk, or the worker's sweep, waits for a claim of another thread: one whose connection hangs holds up no
# thread but its own.
PATIENCE_S = 1.0


def arrange(jobs: list[ClaimedJob]) -> list[ClaimedJob]:
    """Put the jobs that can run in one chunk where the first of them is; keep the order otherwise."""
    chunked = {task.name for task in registry.tasks() if task.chunk is not None}
    if not chunked or chunked.isdisjoint([job.task for job in jobs]):
        return jobs
    runs: dict[object, list[ClaimedJob]] = {}
    for job in jobs:
        key = (job.claim_group, job.store_id and job.store_id.int) if job.task in chunked else job.id
        runs.setdefault(key, []).append(job)
    return [job for run in runs.values() for job in run]


class ChunkClaimer:
    """Claimer of more jobs for chunks that begin, on the threads that run them. Thread-safe.

    While its ``lock`` is held, no job is claimed that the buffer does not know yet. A job is claimed here only where no
    limit counts it: limited ones come from the claims of the worker alone, which count under a lock.
    """

    def __init__(self, process_id: int, jobs: JobBuffer, limits: Callable[[], Limits]) -> None:
        """Prepare; ``limits`` returns those in effect."""
        self._process_id = process_id
        self._jobs = jobs
        self._limits = limits
        self.lock = threading.Lock()
        self.claimed = 0

    def claim(self, last: ClaimedJob, room: int) -> list[ClaimedJob]:
        """Claim up to ``room`` due jobs of the claim group of ``last`` that come after it, for the same chunk.

        Those that may join none go to the buffer. Claims nothing while another thread's claim takes long. Raises
        database errors.
        """
        group = ClaimGroup(
            last.store_id or NO_STORE, last.claim_group, last.queue, last.task, last.priority, None, due=True
        )
        limits = self._limits()
        if limits and (not limits.allows(group) or limits.limits_of(group)):
            return []
        task = registry.get_declaration(last.task)
        low_water = {group.id: (round(last.run_at_s * 1_000_000), last.id)}
        if not self.lock.acquire(timeout=PATIENCE_S):
            return []
        try:
            jobs = claim_groups(self._process_id, [Quota(group, room, room)], room, low_water)
            self.claimed += len(jobs)
            alone = [job for job in jobs if not joins_chunk(task, job)]
            chunk = jobs if not alone else [job for job in jobs if joins_chunk(task, job)]
            self._jobs.lease(chunk)
            if alone and not self._jobs.put(alone):
                queries.requeue([(job.id, job.lease) for job in alone], self._process_id)
        finally:
            self.lock.release()
        return chunk
