"""What a handler held is gone once its failure is written, before anything collects garbage."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from weakref import WeakSet

import pytest
from asgiref.sync import sync_to_async
from django.db import DataError, connection, transaction

from salon_jobs import Discard, Retry, Snooze
from salon_jobs.core import tracing
from salon_jobs.core.tracing import Run
from tests import tasks
from tests.tasks import Sale
from tests.tracers import RecordingTracer
from tests.waiting import eventually
from tests.worker.conftest import Busy
from tests.worker.effects import spin
from tests.worker.work import Work, rows

COUNT = 2


class Held:
    """What stands for 100 MB in the locals of a handler."""


@pytest.fixture
def held() -> Iterator[WeakSet[Held]]:
    """Return what handlers held and is still alive. Nothing is logged: pytest's handlers keep what they get."""
    logging.disable()
    gc.collect()
    gc.disable()
    yield WeakSet()
    gc.enable()
    logging.disable(logging.NOTSET)


class ForgetfulTracer(RecordingTracer):
    """Tracer that does not keep the runs, nor so their errors."""

    @contextmanager
    def running(self, run: Run) -> Generator[None]:
        yield


def fail() -> None:
    raise ValueError("bad")


def retry() -> None:
    try:
        fail()
    except ValueError as error:
        raise Retry(timedelta(hours=1)) from error


def discard() -> None:
    raise Discard("of no use")


def snooze() -> None:
    raise Snooze(timedelta(hours=1))


def divide_in_database() -> None:
    connection.cursor().execute("SELECT 1 / 0")


def divide_in_group() -> None:
    errors: list[Exception] = []
    try:
        divide_in_database()
    except DataError as error:
        errors.append(error)
    try:
        raise ExceptionGroup("of one", errors)
    finally:
        errors.clear()


def fail_after_commit() -> None:
    with transaction.atomic():
        transaction.on_commit(fail)


ENDS = [fail, retry, discard, snooze, divide_in_database, divide_in_group, fail_after_commit]
OF_DATABASE = (divide_in_database, divide_in_group, fail_after_commit)
THREADS = [tasks.system, tasks.in_store, tasks.outside, tasks.once, tasks.in_chunks]


def add(work: Work, declared: Any, handler: Callable[..., Any]) -> None:
    if declared is not tasks.in_chunks:
        for _ in range(COUNT):
            work.add(handler, declared)
        return
    work.hooks.store = handler
    tasks.in_chunks.enqueue_many(tasks.in_chunks.call(work.stores[0], Sale(number)) for number in range(COUNT))


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("declared", THREADS)
def test_threads_keep_no_frames(
    work: Work, held: WeakSet[Held], monkeypatch: pytest.MonkeyPatch, declared: Any, observed: bool
) -> None:
    ran: list[Callable[[], None]] = []
    monkeypatch.setattr(tracing, "_tracer", ForgetfulTracer({}) if observed else None)
    with work.on_thread() as runner:
        for end in ENDS:

            def handler(*, end: Callable[[], None] = end, **_: object) -> None:
                local = Held()
                held.add(local)
                ran.append(end)
                end()

            add(work, declared, handler)
            while jobs := work.claim():
                runner.end_all(jobs)
            assert end in ran
            eventually(lambda: len(held), 0, what=lambda: f"after {ran[-1].__name__}")


def test_interrupts_keep_no_frames(
    work: Work, held: WeakSet[Held], limit_runs: Callable[..., None], busy: Busy
) -> None:
    def handler(**_: object) -> None:
        local = Held()
        held.add(local)
        spin(busy)

    limit_runs(timeout=timedelta(milliseconds=1))
    for declared in (tasks.system, tasks.in_store, tasks.outside):
        work.add(handler, declared)
    with work.on_thread():
        eventually(lambda: len(held), 0)
    assert rows() == [("queued", 1, None)] * 3


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("declared", [tasks.async_system, tasks.async_store])
def test_coroutines_keep_no_frames(
    work: Work, held: WeakSet[Held], monkeypatch: pytest.MonkeyPatch, declared: Any, observed: bool
) -> None:
    """Nor do the functions that they run on a thread."""
    ran: list[Callable[[], None]] = []

    def on_thread(end: Callable[[], None]) -> None:
        local = Held()
        held.add(local)
        end()

    monkeypatch.setattr(tracing, "_tracer", ForgetfulTracer({}) if observed else None)
    for end in ENDS:
        for begin in (end, on_thread):

            async def handler(*, begin: Any = begin, end: Callable[[], None] = end, **_: object) -> None:
                local = Held()
                held.add(local)
                ran.append(end)
                if begin is on_thread or end in OF_DATABASE:
                    await sync_to_async(on_thread)(end)
                end()

            with work.in_lane(handler, declared, count=COUNT):
                pass
            assert end in ran
            eventually(lambda: len(held), 0, what=lambda: f"after {ran[-1].__name__}")
