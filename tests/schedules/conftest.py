"""Fixture that isolates the registry of cron entries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from salon_jobs.schedules.entries import cron_entries


@pytest.fixture
def own_entries() -> Iterator[None]:
    """Start with no entries; restore the project's afterwards."""
    before, left_out = cron_entries.all(), {**cron_entries.left_out}
    cron_entries.clear()
    yield
    cron_entries.clear()
    cron_entries.left_out |= left_out
    for entry in before:
        cron_entries.add(entry)
