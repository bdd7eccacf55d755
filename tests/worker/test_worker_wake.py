"""Shows that one look is owed after the last wake-up heard, since some are left out."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import pytest

from salon_jobs.core.records import ClaimedJob
from salon_jobs.db.notify import SECOND_LOOK
from salon_jobs.jobs import queries
from salon_jobs.worker.worker import Worker, WorkerOptions
from tests.e2e.worker_process import eventually


def more_than(looks: list[float], known: int) -> bool:
    return len(looks) > known


@pytest.mark.parametrize("wake_ups", [1, 2, 5])
def test_a_look_follows_the_last_of_many_wake_ups(
    process_id: int, settings: Any, monkeypatch: pytest.MonkeyPatch, wake_ups: int
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "POLL_INTERVAL": 60}
    looks: list[float] = []

    def claim_nothing(*_: object, **__: object) -> list[ClaimedJob]:
        looks.append(time.monotonic())
        return []

    monkeypatch.setattr(queries, "claim_due", claim_nothing)
    worker = Worker(process_id, WorkerOptions(concurrency=1))
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        eventually(lambda: len(looks) == 1)
        woken = 0.0
        for _ in range(wake_ups):
            known, woken = len(looks), time.monotonic()
            worker.wake()
            eventually(partial(more_than, looks, known))
        eventually(lambda: looks[-1] >= woken + SECOND_LOOK.total_seconds(), 5)
    finally:
        worker.stop()
        thread.join(10)
    assert not thread.is_alive()
    assert len(looks) <= 2 + 2 * wake_ups, "it does not spin"
