"""Writes as a handler makes them, and reads of the result as the owner."""

from __future__ import annotations

from uuid import uuid4

import pytest

from project.salon.models import Customer
from salon_jobs import current_store_id
from tests.support import seen


def write(name: str = "effect") -> None:
    """Add a row of the current store, as the worker role under row-level security."""
    store_id = current_store_id()
    assert store_id is not None
    Customer.objects.create(id=uuid4(), store_id=store_id, name=name, email="a@example.com")


def written() -> list[str]:
    """Return the names of all rows that are committed, in any store."""
    return [row[0] for row in seen("SELECT name FROM customer ORDER BY name")]


def job_events(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the names of the events about jobs, in the order of the log."""
    events: list[str] = [getattr(record, "event", "") for record in caplog.records]
    return [event for event in events if event.startswith("job_")]


def states() -> list[str]:
    """Return the states of all jobs, oldest first."""
    return [row[0] for row in seen("SELECT state FROM salon_jobs_job ORDER BY id")]
