"""What tests look at or set inside of the large classes: their private names stand here alone."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from salon_jobs.core import tracing
from salon_jobs.jobs import result_waits
from salon_jobs.jobs.leases import Leases
from salon_jobs.schedules.entries import cron_entries
from salon_jobs.worker.claim import Claimer
from salon_jobs.worker.worker import Worker


def has_answer_listener() -> bool:
    """Tell whether this process has a connection that hears of jobs that ended."""
    return result_waits._waiters._listener is not None


def waits_begun() -> int:
    """Return how many threads and coroutines of this process wait for a job that the workers have to know of."""
    return sum(wait.job_id > 0 for wait in result_waits._waiters._wakes.copy().values())


def is_told_to_workers(job_id: int) -> bool:
    """Name a job to the workers, after all that are waited for; tell whether that of this process knows of it."""
    result_waits._waiters.name(job_id, using="default")
    return result_waits.awaited.holds([job_id])


def trace_with(monkeypatch: pytest.MonkeyPatch, tracer: Any) -> None:
    """Have runs and messages traced by ``tracer``; by none if it is ``None``."""
    monkeypatch.setattr(tracing, "_tracer", tracer)


def declare_no_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the cron entries of the project during a test."""
    monkeypatch.setattr(cron_entries, "_by_name", {})


def list_groups_at(monkeypatch: pytest.MonkeyPatch, claimer: Claimer, monotonic: float) -> None:
    """Have the claimer look for all groups at that reading of the monotonic clock."""
    monkeypatch.setattr(claimer._scans, "_scan_at", monotonic)


def background_scan(claimer: Claimer) -> Future[Any]:
    """Return the look for groups that goes on beside the claims."""
    scan = claimer._scans._background
    assert scan is not None
    return scan


def wait_for_limits(worker: Worker, seconds: float) -> bool:
    """Have the worker wait that long for a limit, and tell whether its last claim said so."""
    worker._sources.all[0].claimer._limit_wait_s = seconds
    return worker._sources.last.again_in_s == seconds


def left_out(leases: Leases) -> dict[int, float]:
    """Return the jobs whose rows were refused, and until when they are left out."""
    return leases._left_out
