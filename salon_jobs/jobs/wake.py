"""Wakes workers after the commit of whoever added a job that is due."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from salon_jobs.conf import settings as conf
from salon_jobs.tenancy.wake_up import WakeUps

CHANNEL: Final = "salon_jobs_job"
# What a notification carries when somebody wants running jobs cancelled; whose they are, each process looks up.
CANCEL: Final = "cancel"
wake_ups: Final = WakeUps(CHANNEL)


def after_commit(due: datetime | None, *, using: str | None = None) -> None:
    """Arrange one wake-up for when the caller's transaction commits; none for a job due later. Never fails it."""
    if due is None or due <= datetime.now(UTC):
        wake_ups.after_commit(using or conf.database)
