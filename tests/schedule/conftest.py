"""Gives tests of the schedule cron entries of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from salon_jobs.schedule.entries import cron_entries


@pytest.fixture
def own_entries() -> Iterator[None]:
    """Give the test no entries, and the project its own back."""
    before = cron_entries.all()
    cron_entries.clear()
    yield
    cron_entries.clear()
    for entry in before:
        cron_entries.add(entry)
