"""Tests of what wake-ups make a worker do: claim at once, look for more by itself, or leave it to another process."""

from __future__ import annotations

import time
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from salon_jobs.db.notify import MORE, SECOND_POLL
from salon_jobs.jobs import enqueue
from salon_jobs.worker import worker as worker_module
from salon_jobs.worker.claim import Claimer
from salon_jobs.worker.fair_claim import Claim
from salon_jobs.worker.in_flight import IdleTable
from tests import tasks
from tests.e2e.worker_process import eventually
from tests.settings import url_for
from tests.support import seen, working


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
            worker.notify(MORE)
            eventually(partial(more_than, claims, known))
        eventually(lambda: claims[-1] >= woken + SECOND_POLL.total_seconds(), 5)
    assert len(claims) <= 2 + 4 * wake_ups, "it does not spin"


def test_it_looks_for_more_by_itself_when_a_wake_up_stands_for_more(
    process_id: int, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "POLL_INTERVAL": 60, "LISTEN": False}
    monkeypatch.setattr(worker_module, "SECOND_POLL", timedelta(seconds=20))  # however slow the machine is
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
        worker.notify(MORE)
        eventually(lambda: len(claims) > 20)


class TwoProcesses(IdleTable):
    """Table of two processes, of which the first is idle or not as the test wants it."""

    first_is_idle = True

    @property
    def another_answers(self) -> bool:
        return self.first_is_idle


def test_a_wake_up_is_left_to_an_idle_process_of_the_same_worker(
    process_id: int, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "POLL_INTERVAL": 60, "LISTEN": False}
    claims: list[float] = []

    def claim_nothing(*_: object, **__: object) -> Claim:
        claims.append(time.monotonic())
        return Claim([], None)

    monkeypatch.setattr(Claimer, "claim", claim_nothing)
    idle = TwoProcesses(2, number=1)
    with working(process_id, idle=idle) as worker:
        eventually(lambda: claims)
        worker.notify()
        worker.notify(MORE)
        idle.first_is_idle = False
        known = len(claims)
        worker.notify()
        eventually(partial(more_than, claims, known))
    assert len(claims) == known + 1 == 2


def test_a_process_that_finds_a_backlog_wakes_those_that_left_it_the_wake_up(process_id: int, settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "POLL_INTERVAL": 60}
    with psycopg.connect(url_for("app"), autocommit=True) as other:
        other.execute(f"LISTEN {enqueue.CHANNEL}")
        with working(process_id, idle=IdleTable(2)) as worker:
            eventually(lambda: worker.facts()["listening"] is True)
            tasks.system.enqueue_many([tasks.system.call() for _ in range(5)])
            eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job") == [(0,)])
        pids = {each.pid for each in other.notifies(timeout=1)}
    assert len(pids) == 2, "the enqueuer's and the worker's"
