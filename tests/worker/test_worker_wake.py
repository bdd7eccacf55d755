"""Tests that one more claim follows the last notification, since notifications are coalesced."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import pytest

from salon_jobs.db.notify import SECOND_POLL
from salon_jobs.worker.claim import Claimer
from salon_jobs.worker.fair_claim import Claim
from salon_jobs.worker.worker import Worker, WorkerOptions
from tests.e2e.worker_process import eventually


def more_than(claims: list[float], known: int) -> bool:
    return len(claims) > known


@pytest.mark.parametrize("wake_ups", [1, 2, 5])
def test_a_claim_follows_the_last_of_many_notifications(
    process_id: int, settings: Any, monkeypatch: pytest.MonkeyPatch, wake_ups: int
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "POLL_INTERVAL": 60}
    claims: list[float] = []

    def claim_nothing(*_: object, **__: object) -> Claim:
        claims.append(time.monotonic())
        return Claim([], None)

    monkeypatch.setattr(Claimer, "claim", claim_nothing)
    worker = Worker(process_id, WorkerOptions(concurrency=1))
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        eventually(lambda: claims)
        woken = 0.0
        for _ in range(wake_ups):
            known, woken = len(claims), time.monotonic()
            worker.notify()
            eventually(partial(more_than, claims, known))
        eventually(lambda: claims[-1] >= woken + SECOND_POLL.total_seconds(), 5)
    finally:
        worker.stop()
        thread.join(10)
    assert not thread.is_alive()
    assert len(claims) <= 2 + 2 * wake_ups, "it does not spin"
