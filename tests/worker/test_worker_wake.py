"""Tests of what wake-ups make a worker do: claim at once, look for more by itself, or leave it to another process."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from salon_jobs.db.notify import MORE, SECOND_POLL, WakeUps
from salon_jobs.jobs import enqueue
from salon_jobs.worker import deadlines, in_flight
from salon_jobs.worker import worker as worker_module
from salon_jobs.worker.claim import Claimer
from salon_jobs.worker.fair_claim import Claim
from salon_jobs.worker.in_flight import IdleTable
from salon_jobs.worker.worker import Worker
from tests import tasks
from tests.settings import url_for
from tests.support import seen, working
from tests.waiting import eventually


def more_than(claims: list[float], known: int) -> bool:
    return len(claims) > known


@pytest.fixture(autouse=True)
def rarely_polling(settings: Any) -> None:
    """Make a wake-up the only reason for a claim."""
    settings.SALON_JOBS = {**settings.SALON_JOBS, "POLL_INTERVAL": 60}


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Have every claim find nothing; return when they came."""
    found: list[float] = []
    claim = Worker._claim

    def record(worker: Worker, **options: Any) -> Any:
        found.append(time.monotonic())
        return claim(worker, **options)

    monkeypatch.setattr(Claimer, "claim", lambda *_, **__: Claim([], None))
    monkeypatch.setattr(Worker, "_claim", record)
    return found


@pytest.mark.parametrize("wake_ups", [1, 3])
def test_a_claim_follows_the_last_of_many_notifications(process_id: int, claims: list[float], wake_ups: int) -> None:
    with working(process_id) as worker:
        eventually(lambda: claims)
        woken = 0.0
        for _ in range(wake_ups):
            known, woken = len(claims), time.monotonic()
            worker.notify(MORE)
            eventually(partial(more_than, claims, known))
        eventually(lambda: claims[-1] >= woken + SECOND_POLL.total_seconds())
    assert len(claims) <= 2 + 4 * wake_ups, "it does not spin"


def test_it_looks_for_more_by_itself_when_a_wake_up_stands_for_more(
    process_id: int, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "LISTEN": False}
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
    process_id: int, settings: Any, claims: list[float]
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "LISTEN": False}
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


@pytest.fixture
def idle_tables() -> Iterator[list[IdleTable]]:
    """Yield the tables of two processes of one worker."""
    with tempfile.TemporaryFile() as file:
        file.truncate(IdleTable.size(2))
        yield [IdleTable(2, number=number, fileno=file.fileno()) for number in range(2)]


@pytest.mark.parametrize("news", ["", MORE])
def test_a_process_that_finds_a_backlog_wakes_those_that_left_it_the_wake_up(
    process_id: int, idle_tables: list[IdleTable], monkeypatch: pytest.MonkeyPatch, news: str
) -> None:
    ours, others = idle_tables
    monkeypatch.setattr(WakeUps, "news", lambda _: news)
    monkeypatch.setattr(worker_module, "SECOND_POLL", timedelta(minutes=1))  # however slow the machine is
    with psycopg.connect(url_for("app"), autocommit=True) as other:
        other.execute(f"LISTEN {enqueue.wake_ups.channel}".encode())
        with working(process_id, idle=ours):
            eventually(lambda: others.another_answers)  # it listens, and has no claim before it
            tasks.system.enqueue_many([tasks.system.call() for _ in range(5)])
            eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job"), [(0,)])
        wake_ups = list(other.notifies(timeout=3))
    assert len({each.pid for each in wake_ups}) == 2, "the enqueuer's and the worker's"
    assert {each.payload for each in wake_ups} == {news}, "what follows unannounced is theirs too"


def test_a_process_with_a_backlog_is_not_idle_between_two_jobs(
    process_id: int, hooks: tasks.Hooks, idle_tables: list[IdleTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes the others only when a backlog begins: a wake-up that they left it now would be lost."""
    ours, others = idle_tables
    first = threading.Event()
    started: list[str] = []

    def start(note: str) -> None:
        started.append(note)
        first.wait(20)

    hooks.system = start
    was_idle: list[bool] = []
    claim = Claimer.claim

    def claim_later(*arguments: Any, **options: Any) -> Claim:
        if first.is_set() and not was_idle:
            eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job"), [(0,)])  # the thread has said so before
            was_idle.append(others.another_answers)
        return claim(*arguments, **options)

    monkeypatch.setattr(Claimer, "claim", claim_later)
    with working(process_id, idle=ours) as worker:
        eventually(lambda: worker.facts()["listening"] is True)
        eventually(lambda: others.another_answers)
        tasks.system.enqueue()
        eventually(lambda: started)
        first.set()
        eventually(lambda: was_idle)
        eventually(lambda: others.another_answers)
    assert was_idle == [False]


def test_a_thread_that_ends_its_job_during_a_claim_does_not_show_its_process_as_idle(
    process_id: int, hooks: tasks.Hooks, idle_tables: list[IdleTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "POLL_EVERY_S", 60.0)  # nor does it say so later
    monkeypatch.setattr(in_flight, "_IDLE_FOR_S", 60.0)
    ours, others = idle_tables
    show = ours.show
    runs, gate, late = threading.Semaphore(0), threading.Event(), threading.Event()

    def run(note: str) -> None:
        runs.release()
        if note == "second":
            gate.wait(20)

    def show_late(*, idle: bool) -> None:
        if idle and not late.is_set() and threading.current_thread().name.startswith("salon-jobs-runner"):
            tasks.system.enqueue(note="second")
            assert runs.acquire(timeout=20)
            show(idle=idle)
            late.set()
        else:
            show(idle=idle)

    hooks.system = run
    with working(process_id, 2, idle=ours) as worker:
        eventually(lambda: worker.facts()["listening"] is True)
        eventually(lambda: others.another_answers)
        monkeypatch.setattr(ours, "show", show_late)
        tasks.system.enqueue()
        assert runs.acquire(timeout=20)
        assert late.wait(20)
        try:
            eventually(lambda: not others.another_answers)
        finally:
            gate.set()
