"""Gives the tests of the outbox quick settings and an empty broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from salon_jobs.brokers.memory import MemoryPublisher


@pytest.fixture(autouse=True)
def outbox(settings: Any, database: None) -> Iterator[None]:
    """Wait for nothing longer than needed."""
    quick = {"POLL_INTERVAL": 0.2, "RETRY_BACKOFF": 0.1, "THROUGHPUT": None, "THROUGHPUT_OF": {"sns": 3000}}
    settings.SALON_JOBS = {**settings.SALON_JOBS, "OUTBOX": {**settings.SALON_JOBS["OUTBOX"], **quick}}
    MemoryPublisher.forget()
    yield
    MemoryPublisher.forget()
