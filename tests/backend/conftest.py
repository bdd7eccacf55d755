"""Fixture that isolates the registry of cron entries."""

from __future__ import annotations

from tests.schedules.conftest import own_entries

__all__ = ["own_entries"]
