"""Fixtures that isolate the registry of cron entries, and what tasks have seen."""

from __future__ import annotations

import pytest

from tests.backend import calls
from tests.schedules.conftest import own_entries

__all__ = ["own_entries"]


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    calls.seen.clear()
