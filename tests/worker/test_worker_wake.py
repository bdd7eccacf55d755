"""Tests that one more claim follows the last notification, since notifications are coalesced."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

from salon_jobs.db.notify import SECOND_POLL
from salon_jobs.worker import worker as worker_module
from salon_jobs.worker.claim import Claimer
from salon_jobs.worker.fair_claim import Claim
from tests import tasks
from tests.e2e.worker_process import eventually
from tests.support import working


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
    with working(process_id) as worker:
        eventually(lambda: claims)
        woken = 0.0
        for _ in range(wake_ups):
            known, woken = len(claims), time.monotonic()
            worker.notify()
            eventually(partial(more_than, claims, known))
        eventually(lambda: claims[-1] >= woken + SECOND_POLL.total_seconds(), 5)
    assert len(claims) <= 2 + 2 * wake_ups, "it does not spin"


def test_while_jobs_keep_coming_it_looks_for_more_by_itself(
    process_id: int, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "POLL_INTERVAL": 5, "LISTEN": False}
    # However slow the machine is.
    monkeypatch.setattr(worker_module, "_LOOK_AGAIN_S", (0.003, 2.0))
    monkeypatch.setattr(worker_module, "_LOOK_FOR_S", 0.1)
    claims: list[float] = []
    claim = Claimer.claim

    def add_and_claim(claimer: Claimer, *arguments: Any, **options: Any) -> Claim:
        claims.append(time.monotonic())
        if len(claims) <= 20:
            tasks.system.enqueue()
        return claim(claimer, *arguments, **options)

    monkeypatch.setattr(Claimer, "claim", add_and_claim)
    with working(process_id) as worker:
        eventually(lambda: claims)
        worker.notify()  # of two jobs, the second says how soon to look for the next
        eventually(lambda: len(claims) > 20)
        eventually(lambda: time.monotonic() - claims[-1] > 0.5)
    assert len(claims) < 100, "it does not go on"
