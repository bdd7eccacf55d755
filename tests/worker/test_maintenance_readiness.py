"""Tests what makes a worker not ready, and that what its processes count is reported once."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError

from salon_jobs.core.errors import NotReady
from salon_jobs.jobs import registry
from salon_jobs.jobs.statistics import TaskStatistics
from salon_jobs.jobs.waiting import QueueFront, look_at_queue
from salon_jobs.worker import maintenance as maintenance_module
from salon_jobs.worker.maintenance import Maintenance, Rescuer
from salon_jobs.worker.supervisor import RunTotals
from tests.metrics import of, shown
from tests.support import change, seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("database")


@contextmanager
def maintaining() -> Generator[Maintenance]:
    maintenance = Maintenance(using="default")
    maintenance.start()
    try:
        yield maintenance
    finally:
        maintenance.stop()
        assert maintenance.join(10)


def test_a_worker_is_not_ready_when_nobody_is_rescued(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = threading.Event()

    def fail(_rescuer: Rescuer) -> None:
        swept.set()
        raise OperationalError("no")

    monkeypatch.setattr(Rescuer, "run_once", fail)
    monkeypatch.setattr("salon_jobs.worker.maintenance._SWEEP_STALE_S", 0.2)
    with maintaining() as maintenance:
        assert swept.wait(10)
        eventually(lambda: of(shown(maintenance.samples()), "loop_age_seconds", loop="sweep") > 0.2)
        with pytest.raises(NotReady, match="no sweep for dead processes has succeeded"):
            maintenance.require_ready()


def test_what_was_counted_is_reported_once_and_tasks_of_another_release_are_one(process_id: int) -> None:
    statistics, totals = TaskStatistics(), RunTotals()
    for task in ("ping", "ping", "left-over", "left-behind"):
        statistics.count_untimed("job_rescued", task, "default")
    for _ in range(2):
        totals.add(statistics.take_report())  # also while the database is away
        statistics.flush(using="default")
    assert seen("SELECT task, rescued FROM salon_jobs_task_minute WHERE task = 'ping'") == [("ping", 2)]
    statistics.count_untimed("job_rescued", "ping", "default")
    statistics.flush(using="default")
    totals.add([*statistics.take_report(), *statistics.take_report()])
    values = shown(totals.samples())
    assert of(values, "finished_total", task="ping", outcome="rescued") == 3
    assert of(values, "finished_total", task="other", outcome="rescued") == 2
    assert ("salon_jobs_finished_total", (("outcome", "failed"), ("task", "test-store"))) in values


def test_a_task_that_a_finder_registers_meanwhile_is_not_unknown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Jobs are added while the queue is looked at: before each of the first two looks, one of another new task."""
    late = ["late", "later"]
    paths: set[str] = set()

    def find(using: str) -> bool:
        waiting = {task for (task,) in seen("SELECT task FROM salon_jobs_job")} & {"late", "later"} - paths
        paths.update(waiting)
        return bool(waiting)

    def look(*, using: str) -> QueueFront:
        if late:
            change("INSERT INTO salon_jobs_job (task) VALUES (%s), ('never-seen')", late.pop(0))
        return look_at_queue(using=using)

    monkeypatch.setattr(registry, "_finders", [find])
    monkeypatch.setattr(registry, "task_names", lambda: sorted(paths))
    monkeypatch.setattr(maintenance_module, "look_at_queue", look)
    maintenance = Maintenance(using="default")
    maintenance.poll()
    assert maintenance.front.unknown_tasks == ("never-seen",)
    fields: list[Any] = [vars(record).get("event_fields") for record in caplog.records if "tasks" in record.message]
    assert [each["tasks"] for each in fields] == [["never-seen"]]
