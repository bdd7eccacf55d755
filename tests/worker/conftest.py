"""Fixtures that run one job with a given handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol
from uuid import UUID

import pytest

from salon_jobs.core.outcomes import Outcome
from salon_jobs.worker import fair_claim, group_scanner
from salon_jobs.worker.deadlines import DeadlineWatcher
from tests import tasks
from tests.support import claim, run_due, running_coroutines, running_on_a_thread


class RunHere(Protocol):
    """Callable that runs one job in the test's own thread and returns how it ended."""

    def __call__(self, handler: Callable[..., Any], declared: Any = tasks.in_store) -> Outcome: ...


class RunOnThread(Protocol):
    """Callable that runs one job on a worker's thread and returns its ID."""

    def __call__(self, handler: Callable[..., Any], declared: Any = tasks.system) -> int: ...


@pytest.fixture
def limits_and_groups_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load limits and scan claim groups anew at every claim, however slow the machine is."""
    monkeypatch.setattr("salon_jobs.worker.claim._LOAD_LIMITS_EVERY_S", 0.0)
    monkeypatch.setattr(fair_claim, "_SCAN_EVERY_S", (0.0, 0.0))
    monkeypatch.setattr(fair_claim, "_BACKGROUND_S", float("inf"))
    monkeypatch.setattr(group_scanner, "_SCAN_S", float("inf"))


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


Enqueue = Callable[[Callable[..., Any], Any], int]


@pytest.fixture
def enqueue_with(stores: list[UUID], hooks: tasks.Hooks) -> Enqueue:
    """Enqueue a job of the first store, or of none, that a handler will run; return its id."""

    def enqueue(handler: Callable[..., Any], declared: Any) -> int:
        hooks.store = hooks.system = hooks.coroutine = handler
        is_store_task = getattr(declared, "task", declared).is_store_task
        return int(declared.enqueue(**({"store_id": stores[0]} if is_store_task else {})).id)

    return enqueue


@pytest.fixture
def run_here(enqueue_with: Enqueue, process_id: int) -> RunHere:
    def run(handler: Callable[..., Any], declared: Any = tasks.in_store) -> Outcome:
        enqueue_with(handler, declared)
        [outcome] = run_due(process_id)
        return outcome

    return run


@pytest.fixture
def run_on_thread(enqueue_with: Enqueue, process_id: int) -> RunOnThread:
    def run(handler: Callable[..., Any], declared: Any = tasks.system) -> int:
        job_id = enqueue_with(handler, declared)
        if getattr(declared, "task", declared).is_async:
            with running_coroutines(process_id) as (lane, _):
                lane.start(claim(process_id))
        else:
            with running_on_a_thread(process_id, claim(process_id)):
                pass
        return job_id

    return run
