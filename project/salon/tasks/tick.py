"""The instant a system task works for."""

from __future__ import annotations

from datetime import UTC, datetime

from salon_jobs import current_job


def current_tick() -> datetime:
    """Return the cron tick of the current job, in UTC; for a job enqueued by hand, when it was enqueued.

    Never the current time, so that a retried or backfilled job computes the same cutoffs again.
    """
    job = current_job()
    return (job.tick or job.created_at).astimezone(UTC)
