"""Claims for chunks: more due jobs of the same store and task, for a chunk that begins."""

from __future__ import annotations

import threading
from collections.abc import Callable

from salon_jobs.conf.store_key import store_key
from salon_jobs.core.records import ClaimedJob
from salon_jobs.jobs import registry
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.limits import Limits
from salon_jobs.jobs.registry import TaskDeclaration
from salon_jobs.process.loop import Outage
from salon_jobs.worker.buffer import JobBuffer
from salon_jobs.worker.chunks import can_join_chunk
from salon_jobs.worker.claim import claim_groups
from salon_jobs.worker.group_scanner import ClaimGroup
from salon_jobs.worker.quotas import Quota

# How long a chunk, or the worker's sweep, waits for another thread's claim, so that a hanging connection holds up only
# its own thread.
PATIENCE_S = 1.0


class ChunkClaimer:
    """Claimer of more jobs for a chunk that begins, on the thread that runs it. Thread-safe.

    It holds its ``lock`` until the buffer knows the jobs it has claimed, or the sweep would give them back. It claims
    no jobs under a limit: only the thread that claims for the process counts running jobs, under a lock in the
    database.
    """

    def __init__(self, leases: Leases, buffer: JobBuffer, limits: Callable[[], Limits]) -> None:
        """Prepare; ``limits`` returns the limits in effect."""
        self._leases = leases
        self._buffer = buffer
        self._limits = limits
        self.lock = threading.Lock()
        self.claimed = 0

    def claim(self, last: ClaimedJob, room: int) -> list[ClaimedJob]:
        """Claim up to ``room`` due jobs of the claim group of ``last`` that come after it, for the same chunk.

        Puts jobs that must run alone into the buffer. Claims nothing if another thread's claim takes long. Raises
        database errors.
        """
        group = ClaimGroup(
            last.store_id or store_key().none, last.claim_group, last.queue, last.task, last.priority, None, due=True
        )
        limits = self._limits()
        if limits and (not limits.allow(group.scopes) or limits.counted(group.scopes)):
            return []
        task = registry.get_declaration(last.task)
        low_water = {group.id: (round(last.run_at_s * 1_000_000), last.id)}
        if not self.lock.acquire(timeout=PATIENCE_S):
            return []
        try:
            jobs = claim_groups(self._leases, [Quota(group, room, room)], room, low_water)
            self.claimed += len(jobs)
            chunk, alone = list[ClaimedJob](), list[ClaimedJob]()
            for job in jobs:
                (chunk if can_join_chunk(task, job) else alone).append(job)
            self._buffer.add_running(chunk)
            if alone and not self._buffer.put(alone):
                self._leases.give_back([(job.id, job.lease) for job in alone])
        finally:
            self.lock.release()
        return chunk


def gather(
    task: TaskDeclaration, jobs: list[ClaimedJob], buffer: JobBuffer, claimer: ChunkClaimer | None, *, using: str
) -> None:
    """Add to ``jobs``, which has one job, the jobs to run with it in one chunk: first waiting ones, then claimed ones.

    If the database does not answer, the chunk runs without more.
    """
    [first] = jobs
    if not can_join_chunk(task, first):
        return
    most = task.chunk or 1
    # UUIDs compare as numbers, since comparing two UUIDs is a call. Each claim brings only a few of each store.
    group, store = first.claim_group, getattr(first.store_id, "int", first.store_id)

    def matches(job: ClaimedJob) -> bool:
        is_alike = job.claim_group == group and getattr(job.store_id, "int", job.store_id) == store
        return is_alike and can_join_chunk(task, job)

    jobs += buffer.take_matching(matches, most - 1)
    if claimer is not None and len(jobs) < most:
        Outage("chunk", using=using).attempt(lambda: jobs.extend(claimer.claim(jobs[-1], most - len(jobs))))
