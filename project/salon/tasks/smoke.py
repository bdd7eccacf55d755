"""Smoke test: are jobs picked up at all?"""

from __future__ import annotations

from salon_jobs import task


@task(name="ping")
def ping() -> None:
    """Do nothing; success of the job is the answer."""
