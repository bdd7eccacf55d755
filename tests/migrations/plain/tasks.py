"""The app's only task."""

from salon_jobs import task


@task(name="ping")
def ping() -> None:
    """Do nothing."""
