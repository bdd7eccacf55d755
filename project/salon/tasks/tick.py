"""Tells a system task which instant it works for."""

from __future__ import annotations

from datetime import UTC, datetime

from salon_jobs import current_job


def current_tick() -> datetime:
    """Return the cron tick the current job stems from, in UTC; for a job enqueued by hand, when that was.

    Never the clock of the moment: a retried or backfilled job computes the same cutoffs again.
    """
    job = current_job()
    return (job.tick or job.created_at).astimezone(UTC)
