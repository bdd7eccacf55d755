"""Shows that jobs are picked up at all."""

from __future__ import annotations

from salon_jobs import task


@task(name="ping")
def ping() -> None:
    """Do nothing; that the job succeeds is the answer."""
