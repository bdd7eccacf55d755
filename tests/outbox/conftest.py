"""Quick settings and an empty broker for tests of the outbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.outbox import relay


@pytest.fixture
def change_settings(settings: Any) -> Callable[..., None]:
    """Change settings; those of OUTBOX are merged."""

    def change(**changes: Any) -> None:
        changes["OUTBOX"] = {**settings.SALON_JOBS["OUTBOX"], **changes.get("OUTBOX", {})}
        settings.SALON_JOBS = {**settings.SALON_JOBS, **changes}

    return change


@pytest.fixture(autouse=True)
def outbox(change_settings: Callable[..., None], database: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wait for nothing longer than needed."""
    quick = {"POLL_INTERVAL": 0.2, "RETRY_BACKOFF": 0.1, "THROUGHPUT": {"*": None, "sns": 3000}}
    change_settings(OUTBOX=quick)
    monkeypatch.setattr(relay, "_REFRESH_S", 0.1)
    MemoryPublisher.forget()
    yield
    MemoryPublisher.forget()
