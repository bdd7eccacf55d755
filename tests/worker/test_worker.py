"""What wakes a worker and makes it claim, leave a wake-up to another process, or call itself not ready."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from itertools import cycle
from typing import Any

import psycopg
import pytest

from salon_jobs.conf import Settings
from salon_jobs.core.errors import NotReady
from salon_jobs.db.notify import MORE, SECOND_POLL, WakeUps
from salon_jobs.jobs import enqueue
from salon_jobs.worker import cancellations, in_flight, sources
from salon_jobs.worker import worker as worker_module
from salon_jobs.worker.buffer import JobBuffer
from salon_jobs.worker.claim import Claim, Claimer
from salon_jobs.worker.in_flight import IdleTable
from salon_jobs.worker.runner import Runner
from salon_jobs.worker.sources import ROOM_S
from salon_jobs.worker.worker import State, Worker, WorkerOptions
from tests import tasks
from tests.settings import url_for
from tests.support import change, working
from tests.waiting import LIMIT_S, eventually
from tests.worker.work import Work, states


def more_than(claims: list[float], known: int) -> bool:
    return len(claims) > known


@pytest.fixture(autouse=True)
def rarely_polling(settings: Any) -> None:
    """Make a wake-up the only reason for a claim."""
    settings.SALON_JOBS = {**settings.SALON_JOBS, "POLL_INTERVAL": 600}


@pytest.fixture
def without_listener(settings: Any, rarely_polling: None) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "LISTEN": False}


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Have every claim find nothing; return when they came."""
    found: list[float] = []
    claim = Worker._claim

    def record(worker: Worker, **options: Any) -> None:
        claim(worker, **options)
        found.append(time.monotonic())

    monkeypatch.setattr(Claimer, "claim", lambda *_, **__: Claim([], None))
    monkeypatch.setattr(Worker, "_claim", record)
    return found


@pytest.mark.parametrize("wake_ups", [1, 3])
def test_claim_follows_last_notification(process_id: int, claims: list[float], wake_ups: int) -> None:
    with working(process_id) as worker:
        eventually(lambda: claims)
        woken = 0.0
        for _ in range(wake_ups):
            known, woken = len(claims), time.monotonic()
            worker.notify(MORE)
            eventually(partial(more_than, claims, known))
        eventually(lambda: claims[-1] >= woken + SECOND_POLL.total_seconds())
    assert len(claims) <= 2 + 4 * wake_ups, "it does not spin"


def test_stop_during_last_timeout(process_id: int, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was asked to stop no longer drains, and a second request forces its end."""
    settings.SALON_JOBS = {**settings.SALON_JOBS, "TERMINATE_AFTER_TIMEOUTS": 1}
    worker = Worker(process_id, WorkerOptions(concurrency=1), using="default")
    monkeypatch.setattr(worker_module, "log_event", lambda *_, **__: worker.stop())
    worker._count_timeout()
    worker.require_ready()
    worker.stop()
    assert worker._state is State.FORCED


@pytest.mark.usefixtures("without_listener", "claims")
def test_full_worker_without_backlog(process_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for wake-ups, not for room: nothing else is due."""
    rooms = cycle([1, 0])  # before and after the claim
    monkeypatch.setattr(JobBuffer, "room", lambda _: next(rooms))
    worker = Worker(process_id, WorkerOptions(concurrency=1), using="default")
    assert worker.poll() > ROOM_S


@pytest.mark.usefixtures("without_listener")
def test_wake_up_for_more(process_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker looks for more by itself."""
    monkeypatch.setattr(sources, "SECOND_POLL", timedelta(seconds=2 * LIMIT_S))  # however slow the machine is
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


@pytest.mark.usefixtures("without_listener")
def test_wake_up_is_left_to_idle_process(process_id: int, claims: list[float]) -> None:
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
def test_backlog_wakes_other_processes(
    process_id: int, idle_tables: list[IdleTable], monkeypatch: pytest.MonkeyPatch, news: str
) -> None:
    """They left the wake-up to this one; what follows unannounced is theirs too."""
    ours, others = idle_tables
    monkeypatch.setattr(WakeUps, "record_commit", lambda _: news)
    monkeypatch.setattr(sources, "SECOND_POLL", timedelta(minutes=1))  # however slow the machine is
    channel = enqueue.wake_ups.channel
    with psycopg.connect(url_for("app"), autocommit=True) as other:
        other.execute(f"LISTEN {channel}".encode())
        with working(process_id, idle=ours):
            eventually(lambda: others.another_answers)  # it listens, and has no claim before it
            tasks.system.enqueue_many([tasks.system.call() for _ in range(5)])
            eventually(states, [])
        change(f"NOTIFY {channel}, 'the last'")
        wake_ups = []
        for each in other.notifies(timeout=LIMIT_S):
            if each.payload == "the last":
                break
            wake_ups.append(each)
    assert len({each.pid for each in wake_ups}) == 2, "the enqueuer's and the worker's"
    assert {each.payload for each in wake_ups} == {news}


def test_process_with_backlog_is_not_idle(
    work: Work, idle_tables: list[IdleTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes the others only when a backlog begins: a wake-up that they left it now would be lost."""
    ours, others = idle_tables
    first = threading.Event()
    started: list[str] = []

    def start(note: str) -> None:
        started.append(note)
        first.wait(LIMIT_S)

    was_idle: list[bool] = []
    claim = Claimer.claim

    def claim_later(*arguments: Any, **options: Any) -> Claim:
        if first.is_set() and not was_idle:
            eventually(states, [])  # the thread has said so before
            was_idle.append(others.another_answers)
        return claim(*arguments, **options)

    monkeypatch.setattr(Claimer, "claim", claim_later)
    with working(work.process_id, idle=ours) as worker:
        eventually(lambda: worker.facts()["listening"] is True)
        eventually(lambda: others.another_answers)
        work.add(start, tasks.system)
        eventually(lambda: started)
        first.set()
        eventually(lambda: was_idle)
        eventually(lambda: others.another_answers)
    assert was_idle == [False]


def test_job_ending_during_claim(work: Work, idle_tables: list[IdleTable], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread does not show the process as idle."""
    monkeypatch.setattr(cancellations, "POLL_EVERY_S", 2 * LIMIT_S)  # nor does it say so later
    monkeypatch.setattr(in_flight, "_IDLE_FOR_S", 2 * LIMIT_S)
    ours, others = idle_tables
    show = ours.show
    runs, gate, late = threading.Semaphore(0), threading.Event(), threading.Event()

    def run(note: str) -> None:
        runs.release()
        if note == "second":
            gate.wait(LIMIT_S)

    def show_late(*, idle: bool) -> None:
        if idle and not late.is_set() and threading.current_thread().name.startswith("salon-jobs-runner"):
            work.add(run, tasks.system, note="second")
            assert runs.acquire(timeout=LIMIT_S)
            show(idle=idle)
            late.set()
        else:
            show(idle=idle)

    with working(work.process_id, 2, idle=ours) as worker:
        eventually(lambda: worker.facts()["listening"] is True)
        eventually(lambda: others.another_answers)
        monkeypatch.setattr(ours, "show", show_late)
        work.add(run, tasks.system)
        assert runs.acquire(timeout=LIMIT_S)
        assert late.wait(LIMIT_S)
        try:
            eventually(lambda: not others.another_answers)
        finally:
            gate.set()


@pytest.mark.parametrize(("lives", "fault"), [(True, ""), (False, "2 threads that run jobs have ended")])
def test_readiness_needs_living_threads(
    process_id: int, monkeypatch: pytest.MonkeyPatch, lives: bool, fault: str
) -> None:
    entered = threading.Semaphore(0)
    run = Runner._run

    def run_or_end(self: Runner) -> None:
        entered.release()
        if lives:
            run(self)

    monkeypatch.setattr(Runner, "_run", run_or_end)
    with working(process_id, concurrency=2) as worker:
        assert all(entered.acquire(timeout=LIMIT_S) for _ in range(2))
        eventually(lambda: fault in fault_of(worker))
        assert bool(fault_of(worker)) is not lives
        assert worker.facts().keys() == {"claimed_s_ago", "listening", "listener_silent_s"}


def test_readiness_needs_written_ends(work: Work, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "POLL_INTERVAL": 0.05}
    monkeypatch.setattr(Settings, "stale_after_s", 0.2)
    with psycopg.connect(url_for(None)) as holder:
        job_id = work.add(None, tasks.system)
        lock = "SELECT FROM salon_jobs_job WHERE id = %s FOR UPDATE"
        work.hooks.system = lambda note: holder.execute(lock, [job_id])
        with work.working() as worker:
            try:
                eventually(lambda: "the end of a run could not be written" in fault_of(worker))
                holder.rollback()
                eventually(lambda: fault_of(worker), "")
            finally:
                holder.rollback()


def fault_of(worker: Worker) -> str:
    try:
        worker.require_ready()
    except NotReady as error:
        return str(error)
    return ""
