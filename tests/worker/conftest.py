"""Fixtures that run jobs with a given handler, when and as a test wants it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from salon_jobs import store_task
from salon_jobs.jobs import registry
from salon_jobs.jobs.options import Timeouts
from salon_jobs.jobs.task import Task
from salon_jobs.worker import group_scanner
from salon_jobs.worker.deadlines import DeadlineWatcher
from tests import tasks
from tests.worker.work import Work


@pytest.fixture
def work(process_id: int, stores: list[UUID], hooks: tasks.Hooks, caplog: pytest.LogCaptureFixture) -> Work:
    """Return the jobs of one process."""
    caplog.set_level("INFO")
    return Work(process_id, stores, hooks, caplog)


@pytest.fixture
def limits_and_groups_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load limits and scan claim groups anew at every claim, however slow the machine is."""
    monkeypatch.setattr("salon_jobs.worker.claim._LOAD_LIMITS_EVERY_S", 0.0)
    monkeypatch.setattr(group_scanner, "_SCAN_EVERY_S", (0.0, 0.0))
    monkeypatch.setattr(group_scanner, "_BACKGROUND_S", float("inf"))
    monkeypatch.setattr(group_scanner, "_SCAN_S", float("inf"))


Declare = Callable[..., Task[..., Any]]


@pytest.fixture
def declare(database: None) -> Iterator[Declare]:
    """Declare the task ``test-declared`` with the options given."""

    def declared(**options: Any) -> Task[..., Any]:
        def handler(store_id: UUID, line: str = "a", number: int = 0) -> None:
            tasks.hooks.store(store_id=store_id, line=line)

        decorate: Any = store_task(name="test-declared", **options)
        task: Task[..., Any] = decorate(handler)
        return task

    yield declared
    registry.unregister("test-declared")


class Busy:
    """A flag like ``threading.Event``, without the lock that an interrupt in the midst of ``set`` leaves locked."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Busy:
    """Have a run whose time is up be interrupted only once this is set, however slow the machine is."""
    busy = Busy()
    interrupt = DeadlineWatcher._interrupt

    def interrupt_if_busy(watcher: DeadlineWatcher, watched: Any) -> None:
        if busy.is_set():  # else the watcher soon tries again
            interrupt(watcher, watched)

    monkeypatch.setattr(DeadlineWatcher, "_interrupt", interrupt_if_busy)
    return busy


@pytest.fixture
def limit_runs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give the tests' tasks timeouts."""
    limited = (tasks.system, tasks.in_store, tasks.outside, tasks.in_chunks, tasks.async_store, tasks.async_system)

    def give(**options: Any) -> None:
        for each in limited:
            monkeypatch.setattr(each, "timeouts", Timeouts(**options))

    return give
