"""Tests what makes a worker not ready, and that what its processes count is reported once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError

from salon_jobs.core.errors import ConfigurationError, NotReady
from salon_jobs.jobs.statistics import TaskStatistics
from salon_jobs.worker.maintenance import Maintenance, Rescuer
from salon_jobs.worker.supervisor import RunTotals
from tests.e2e.worker_process import eventually
from tests.metrics import of, shown
from tests.support import change, seen

pytestmark = pytest.mark.usefixtures("database")
Require = Callable[..., None]


@pytest.fixture
def require(settings: Any) -> Require:
    """Set thresholds of readiness."""

    def set_(**thresholds: Any) -> None:
        settings.SALON_JOBS = {**settings.SALON_JOBS, "READINESS": thresholds}

    return set_


@contextmanager
def maintaining() -> Generator[Maintenance]:
    maintenance = Maintenance()
    maintenance.start()
    try:
        yield maintenance
    finally:
        maintenance.stop()
        assert maintenance.join(10)


def test_a_worker_is_not_ready_when_a_queue_is_later_than_it_may_be(require: Require) -> None:
    change(
        "INSERT INTO salon_jobs_job (task, queue, run_at) VALUES ('ping', 'slow', now() - interval '10 minutes'),"
        " ('ping', 'quick', now() - interval '10 minutes')"
    )
    with maintaining() as maintenance:
        eventually(lambda: maintenance.front.late_s.keys() == {"slow", "quick"})
        maintenance.require_ready()
        require(OLDEST_DUE={"slow": 3600, "quick": 60})
        with pytest.raises(NotReady, match=r"a job of queue 'quick' has been due for 6\d\d s"):
            maintenance.require_ready()
        require(OLDEST_DUE={"quick": 3600, "*": 60})
        with pytest.raises(NotReady, match="queue 'slow'"):
            maintenance.require_ready()


def test_a_worker_is_not_ready_when_nobody_is_rescued(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = threading.Event()

    def fail(_rescuer: Rescuer) -> None:
        swept.set()
        raise OperationalError("no")

    monkeypatch.setattr(Rescuer, "run_once", fail)
    monkeypatch.setattr("salon_jobs.worker.maintenance._SWEEP_STALE_S", 0.2)
    monkeypatch.setattr("salon_jobs.worker.maintenance._RESCUE_AFTER_BEATS", 0)
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
        statistics.flush()
    assert seen("SELECT task, rescued FROM salon_jobs_task_minute WHERE task = 'ping'") == [("ping", 2)]
    statistics.count_untimed("job_rescued", "ping", "default")
    statistics.flush()
    totals.add([*statistics.take_report(), *statistics.take_report()])
    values = shown(totals.samples())
    assert of(values, "finished_total", task="ping", outcome="rescued") == 3
    assert of(values, "finished_total", task="other", outcome="rescued") == 2
    assert ("salon_jobs_finished_total", (("outcome", "failed"), ("task", "test-store"))) in values


@pytest.mark.parametrize(
    ("readiness", "message"),
    [
        ({"RELAY_LAGS": 3}, "unknown key 'RELAY_LAGS'; did you mean 'RELAY_LAG'?"),
        ({"RELAY_LAG": -1}, r"\['RELAY_LAG'\] must be a timedelta or a number of seconds"),
        ({"OLDEST_DUE": {"mail": -1}}, r"\['OLDEST_DUE'\] must be a duration, or a dict of queues"),
    ],
)
def test_a_wrong_threshold_is_named(settings: Any, readiness: dict[str, Any], message: str) -> None:
    from salon_jobs.conf import settings as conf

    settings.SALON_JOBS = {**settings.SALON_JOBS, "READINESS": readiness}
    with pytest.raises(ConfigurationError, match=message):
        _ = conf.readiness
