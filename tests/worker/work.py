"""Jobs of one process: a test adds them with a handler, runs them in a way a worker does, and reads the log."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from salon_jobs.core.outcomes import Outcome
from salon_jobs.core.records import ClaimedJob
from salon_jobs.jobs.leases import Leases
from salon_jobs.worker.lane import CoroutineRunner
from salon_jobs.worker.worker import Worker, WorkerOptions
from tests import tasks
from tests.management.operator import run as terminal
from tests.plans.explain import signed_in
from tests.support import (
    OneRunner,
    change,
    claim,
    event_fields,
    event_names,
    leases_of,
    run_due,
    running_coroutines,
    running_on_a_thread,
    seen,
    working,
)

ERRORS = "SELECT attempt, error_class, code FROM salon_jobs_job_error ORDER BY id"
ROWS = "SELECT state, attempts, leased_by FROM salon_jobs_job ORDER BY id"
SLEEPING = """
SELECT count(*) FROM pg_stat_activity
 WHERE query LIKE 'SELECT pg_sleep%%' AND state = 'active' AND datname = current_database()
"""
JOBS = "/admin/salon_jobs/job/"


@dataclass
class Work:
    """A process, three stores, and what the tests' tasks do."""

    process_id: int
    stores: list[UUID]
    hooks: tasks.Hooks
    log: pytest.LogCaptureFixture

    @property
    def leases(self) -> Leases:
        return leases_of(self.process_id)

    def add(
        self, handler: Callable[..., Any] | None = None, declared: Any = tasks.in_store, *, store: int = 0, **given: Any
    ) -> int:
        """Enqueue a job, of a store if its task is for stores, for all of which this handler runs; return its id."""
        if handler is not None:
            self.hooks.store = self.hooks.system = self.hooks.coroutine = handler
        if getattr(declared, "task", declared).is_store_task:
            given["store_id"] = self.stores[store]
        return int(declared.enqueue(**given).id)

    def claim(self, room: int = 100) -> list[ClaimedJob]:
        return claim(self.process_id, room)

    def claim_one(self, handler: Callable[..., Any] | None = None, declared: Any = tasks.in_store, **given: Any) -> Any:
        """Add a job, and claim it."""
        job_id = self.add(handler, declared, **given)
        [job] = self.claim()
        assert job.id == job_id
        return job

    def run_due(self) -> list[Outcome]:
        """Claim once, and run what was claimed in this thread."""
        return run_due(self.process_id)

    def run(self, handler: Callable[..., Any] | None = None, declared: Any = tasks.in_store, **given: Any) -> Outcome:
        """Add a job, and run it in this thread."""
        self.add(handler, declared, **given)
        [outcome] = self.run_due()
        return outcome

    def again(self) -> Outcome:
        """Run the job that waits for a retry."""
        make_due()
        [outcome] = self.run_due()
        return outcome

    @contextmanager
    def on_thread(self, **options: Any) -> Generator[OneRunner]:
        """Run what is due on a worker's thread, and leave that open."""
        with running_on_a_thread(self.process_id, self.claim(), **options) as runner:
            yield runner

    def run_on_thread(
        self, handler: Callable[..., Any] | None = None, declared: Any = None, *, room: int = 100, **given: Any
    ) -> int:
        """Run what is due on a worker's threads, after adding one job of a task that is named; return its id."""
        job_id = 0 if declared is None else self.add(handler, declared, **given)
        if declared is not None and getattr(declared, "task", declared).is_async:
            with running_coroutines(self.process_id) as (lane, _):
                lane.start(self.claim())
        else:
            with running_on_a_thread(self.process_id, self.claim(room)):
                pass
        return job_id

    @contextmanager
    def in_lane(
        self, handler: Callable[..., Any], declared: Any = tasks.async_system, *, count: int = 1
    ) -> Generator[CoroutineRunner]:
        """Begin jobs of coroutines, and wait at last until they have ended."""
        for _ in range(count):
            self.add(handler, declared)
        with running_coroutines(self.process_id) as (lane, _):
            lane.start(self.claim())
            yield lane

    def burst(self, **options: Any) -> None:
        """Run a worker until nothing is due."""
        assert Worker(self.process_id, WorkerOptions(burst=True, **options), using="default").run()

    @contextmanager
    def working(self, concurrency: int = 1) -> Generator[Worker]:
        with working(self.process_id, concurrency) as worker:
            yield worker

    @property
    def events(self) -> list[str]:
        """The names of the events about jobs, in the order of the log."""
        return [event for event in event_names(self.log) if event.startswith("job_")]

    def fields(self, event: str) -> list[dict[str, Any]]:
        """Return the fields of each record of an event, in the order of the log."""
        return event_fields(self.log, event)


def make_due() -> None:
    """Have what waits for a retry be due."""
    change("UPDATE salon_jobs_job SET run_at = now() WHERE state = 'queued'")


def rows() -> list[tuple[Any, ...]]:
    """Return state, attempts and process of all jobs, oldest first."""
    return seen(ROWS)


def errors() -> list[tuple[Any, ...]]:
    """Return attempt, class and code of every error."""
    return seen(ERRORS)


def shown_to_people(job_id: int) -> list[str]:
    """Return the page of a job in the admin, and what the terminal shows of it."""
    with signed_in("boss") as client:
        page = client.get(f"{JOBS}{job_id}/change/").content.decode()
    return [page, terminal("show", str(job_id))[0]]


def states() -> list[str]:
    """Return the states of all jobs, oldest first."""
    return [row[0] for row in seen("SELECT state FROM salon_jobs_job ORDER BY id")]


def error_classes() -> list[str]:
    return [row[1].rpartition(".")[2] for row in seen(ERRORS)]
