"""Claims, finishes and gives back jobs: every fenced statement of a worker, on Django's own connection.

All run as the worker role in autocommit, but ``finish``, which runs inside the handler's transaction when there is one.
The cursors are psycopg's own, for speed; errors come as Django's, so that the connection knows of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

from django.db import DataError, IntegrityError, transaction

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.error_report import ErrorReport, storable
from salon_jobs.core.events import log_event
from salon_jobs.core.records import ClaimedJob, JobState
from salon_jobs.db.statements import many_rows_of, rows_changed, rows_of

T = TypeVar("T")
LEASE_LOST = "SJ001"  # the error code of sql/finish_function.sql
# Up to so many are claimed by a plan that is kept: with one due job, planning is half of a claim.
FEW = 64
_TWIN_TRIES = 5


@dataclass(frozen=True, slots=True)
class Ended:
    """Says what became of a job after a run without success."""

    state: JobState
    reason: str


@dataclass(frozen=True, slots=True)
class Rescued:
    """Names one job that a burial took from a dead process."""

    id: int
    task: str
    store_id: Any
    state: JobState
    attempts: int
    charged: bool
    queue: str


def claim_due(
    process_id: int,
    tasks: Sequence[str],
    room: int,
    *,
    queues: Sequence[str] | None = None,
    now: datetime | None = None,
) -> list[ClaimedJob]:
    """Claim up to ``room`` due jobs in claim order; ``queues`` None means all. A buried process gets none."""
    rows = many_rows_of(
        "claim_few" if room <= FEW else "claim_due",
        {
            "process_id": process_id, "tasks": list(tasks), "room": room, "now": now,
            "queues": None if queues is None else list(queues), "clock": time.monotonic(),
        },
    )  # fmt: skip
    return in_claim_order(rows)


def in_claim_order(rows: Iterable[tuple[Any, ...]]) -> list[ClaimedJob]:
    """Return claimed rows as records, the first to run first."""
    return sorted(map(ClaimedJob._make, rows), key=_claim_order)


_claim_order = attrgetter("priority", "run_at_s", "id")


def finish(job: ClaimedJob, process_id: int) -> bool:
    """Delete (or keep as succeeded) a job this run still owns; False: the lease is lost."""
    return rows_changed("finish_keep" if conf.keep_succeeded else "finish", _fence(job, process_id)) == 1


def finish_call(job: ClaimedJob, process_id: int) -> str:
    """Return the statement that finishes as ``finish`` does, but fails with LEASE_LOST where that returns False."""
    return f"SELECT salon_jobs_finish({job.id:d}, {job.lease:d}, {process_id:d}, {conf.keep_succeeded is True})"


def finish_many(jobs: Sequence[ClaimedJob], process_id: int) -> set[int]:
    """Finish many jobs in one statement; returns the ids finished. The others are locked just now, or lost."""
    # Arrays as PostgreSQL writes them: psycopg would go through them element by element.
    ids, leases = (",".join([str(getattr(job, name)) for job in jobs]) for name in ("id", "lease"))
    parameters = {"ids": f"{{{ids}}}", "leases": f"{{{leases}}}", "process_id": process_id}
    return {row[0] for row in many_rows_of("finish_many_keep" if conf.keep_succeeded else "finish_many", parameters)}


def fail(
    job: ClaimedJob, process_id: int, error: ErrorReport, *, delay: timedelta, final: bool, reason: str
) -> Ended | None:
    """Record the attempt's error and retry, fail or supersede the job; None: the lease is lost."""
    parameters = {
        **_fence(job, process_id), "wait": delay, "final": final, "reason": reason, **asdict(error),
    }  # fmt: skip
    rows = _despite_twins(lambda: rows_of("fail", parameters))
    return Ended(JobState(rows[0][0]), rows[0][1]) if rows else None


def cancel_run(job: ClaimedJob, process_id: int, reason: str) -> bool:
    """End a run as cancelled and count the attempt. False: the lease is lost."""
    return rows_changed("cancel_run", {**_fence(job, process_id), "reason": storable(reason)[:255]}) == 1


def expire_run(job: ClaimedJob, process_id: int, error: ErrorReport, reason: str) -> bool:
    """End a claimed job as cancelled before its run began, and record the error. False: the lease is lost."""
    return bool(rows_of("expire_run", {**_fence(job, process_id), "reason": reason, **asdict(error)}))


def requeue(jobs: Iterable[tuple[int, int]], process_id: int, *, delay: timedelta | None = None) -> dict[int, Ended]:
    """Queue (id, lease) pairs again without counting an attempt; returns what became of those still owned, by id."""
    pairs = list(jobs)

    def run(some: Sequence[tuple[int, int]]) -> list[Any]:
        ids, leases = [pair[0] for pair in some], [pair[1] for pair in some]
        parameters = {"ids": ids, "leases": leases, "process_id": process_id, "wait": delay}
        return rows_of("requeue", parameters)

    rows = chain.from_iterable(_row_by_row(run, pairs)) if pairs else ()
    return {job_id: Ended(JobState(state), reason) for job_id, state, reason in rows}


def cancel_requests(process_id: int) -> set[tuple[int, int]]:
    """Return (id, lease) of jobs leased to this process that somebody wants cancelled."""
    return {(row[0], row[1]) for row in rows_of("cancel_requests", {"process_id": process_id})}


def unknown_leases(process_id: int, known: Iterable[int]) -> list[tuple[int, int]]:
    """Return (id, lease) of jobs leased to this process that it does not know."""
    return [(row[0], row[1]) for row in rows_of("unknown_leases", {"process_id": process_id, "known": list(known)})]


def committed(job: ClaimedJob, process_id: int) -> bool:
    """Tell, after an unclear end, whether this run's own COMMIT arrived: the row is gone or succeeded by this lease."""
    rows = rows_of("lease_state", _fence(job, process_id))
    return not rows or bool(rows[0][1])


def failed_by(job: ClaimedJob) -> bool:
    """Tell whether the job failed by this run's own lease; every later claim or rescue has another one."""
    rows = rows_of("failed_by", {"id": job.id, "lease": job.lease})
    return bool(rows)


def leased_job(process_id: int, job_id: int, lease: int) -> ClaimedJob | None:
    """Return a job that this process still holds by this lease."""
    rows = rows_of("leased_job", {"id": job_id, "lease": lease, "process_id": process_id})
    return ClaimedJob._make(rows[0]) if rows else None


def rescue(process_id: int, message: str, *, charged: Collection[int] | None = None) -> list[Rescued]:
    """Queue the jobs of a process whose row is deleted again; one by one where one of them can not be changed.

    ``charged`` are the ids that count a rescue and get an error with ``message``; None, all: nobody knows which of them
    had started.

    One that met a twin is tried again; one that the database refuses is logged and left to the next sweep.
    """
    ids = [pair[0] for pair in unknown_leases(process_id, ())]

    def run(some: Sequence[int]) -> list[Rescued]:
        parameters = {
            "ids": list(some), "process_id": process_id, "message": message,
            "charged": None if charged is None else list(charged),
        }  # fmt: skip
        rows = rows_of("rescue", parameters)
        return [Rescued(row[0], row[1], row[2], JobState(row[3]), row[4], row[5], row[6]) for row in rows]

    try:
        with transaction.atomic(using=conf.database):
            return run(ids) if ids else []
    except (DataError, IntegrityError):
        return [rescued for job_id in ids for rescued in _or_leave(partial(run, [job_id]), job_id)]


def _fence(job: ClaimedJob, process_id: int) -> dict[str, Any]:
    return {"id": job.id, "lease": job.lease, "process_id": process_id}


def _despite_twins(run: Callable[[], T]) -> T:
    """Run a statement that can meet a twin enqueued at this very moment; the next try sees it."""
    for _ in range(_TWIN_TRIES - 1):
        try:
            with transaction.atomic(using=conf.database):
                return run()
        except IntegrityError:
            continue
    return run()


def _or_leave(run: Callable[[], list[T]], job_id: int) -> list[T]:
    try:
        with transaction.atomic(using=conf.database):
            return _despite_twins(run)
    except (DataError, IntegrityError) as error:
        log_event(logging.ERROR, events.JOB_NOT_RESCUED, job_id=job_id, error=str(error).strip())
        return []


def _row_by_row(run: Callable[[Sequence[Any]], T], items: Sequence[Any]) -> list[T]:
    """Run for all items in one statement; where one of them meets a twin, one by one."""
    try:
        with transaction.atomic(using=conf.database):
            return [run(items)]
    except IntegrityError:
        return [_despite_twins(partial(run, [item])) for item in items]
