"""Tells when a job that keeps failing would run again, as far as can be known: jitter makes spans of the instants."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from salon_jobs.conf import settings as conf
from salon_jobs.core.records import JobState
from salon_jobs.jobs import registry
from salon_jobs.models import Job

# So many are told; a job can have 32,767.
SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Retry:
    """Names an attempt, and between which instants it becomes due if all before it fail at once."""

    attempt: int
    earliest: datetime
    latest: datetime


def retries_ahead(job: Job, now: datetime) -> list[Retry]:
    """Return the next attempts of a queued or running job, at most ``SHOWN``; none of one that ended.

    The first of a queued job is its ``run_at``, exactly. How long the runs take, and how long the job waits for a free
    worker, comes on top. Reckons with the backoff of this process's code; with the settings' for tasks it lacks.
    """
    row: Any = job  # the types of Django's fields are known to mypy alone
    if row.state not in (JobState.QUEUED, JobState.RUNNING):
        return []
    backoff = registry.get_task(row.task).backoff if row.task in registry.task_names() else conf.backoff
    earliest = latest = row.run_at if row.state == JobState.QUEUED else now
    ahead = [Retry(row.attempts + 1, earliest, latest)] if row.state == JobState.QUEUED else []
    for failed in range(row.attempts + 1, min(row.max_attempts, row.attempts + SHOWN + 1)):
        shortest, longest = backoff.bounds(failed)
        # A job that is due already runs now, whenever it was due.
        earliest, latest = max(earliest, now) + shortest, max(latest, now) + longest
        ahead.append(Retry(failed + 1, earliest, latest))
    return ahead[:SHOWN]
