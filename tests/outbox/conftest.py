"""Quick settings and an empty broker for tests of the outbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.outbox import control, emit, marker, progress, relay, relay_publishers

# What no setting changes: how often something happens, and how much at once.
TUNED = {
    "emitted_at_once": (emit, "_BATCH"),
    "characters_at_once": (emit, "_CHARACTERS"),
    "changed_at_once": (control, "_BATCH"),
    "most_replayed": (control, "MOST"),
    "marker_pings_s": (marker, "_PING_EVERY_S"),
    "progress_s": (progress, "_EVERY_S"),
    "pings_again_s": (relay_publishers, "_PING_AGAIN_EVERY_S"),
    "pings_s": (relay_publishers, "_PING_EVERY_S"),
    "silent_for_s": (relay_publishers, "_SILENT_FOR_S"),
    "refresh_s": (relay, "_REFRESH_S"),
    "sweep_s": (relay, "_SWEEP_S"),
    "starved_for_s": (relay, "_STARVED_FOR_S"),
    "most_destinations": (relay, "_MOST"),
}


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Change values of ``TUNED``."""

    def change(**values: float) -> None:
        for name, value in values.items():
            monkeypatch.setattr(*TUNED[name], value)

    return change


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
