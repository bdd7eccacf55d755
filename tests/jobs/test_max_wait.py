"""Shows that ``max_wait`` bounds how long replacing a waiting job postpones it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from salon_jobs import enqueue_job, fan_out
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.jobs import EnqueueAction
from tests import tasks
from tests.support import change, seen

HOUR = timedelta(hours=1)
# How long after it was added the only job is due, in minutes.
DUE_AFTER = "SELECT round(extract(epoch FROM run_at - created_at) / 60)::int FROM salon_jobs_job"
debounced = tasks.keyed_system.using(run_in=timedelta(minutes=30), max_wait=HOUR)


@pytest.mark.parametrize("many", [False, True])
def test_max_wait_bounds_postponement(process_id: int, many: bool) -> None:
    def enqueue() -> EnqueueAction:
        if many:
            return debounced.enqueue_many([tasks.keyed_system.call(note="a")])[0].action
        return debounced.enqueue(note="a").action

    assert enqueue() is EnqueueAction.INSERTED
    for waited, due_after in ((20, 50), (20, 60), (40, 60)):
        change(f"UPDATE salon_jobs_job SET created_at = created_at - interval '{waited} min'")
        assert enqueue() is EnqueueAction.REPLACED
        assert seen(DUE_AFTER) == [(due_after,)]
    # Without the option, the next one does as ever.
    tasks.keyed_system.using(run_in=timedelta(minutes=30)).enqueue(note="a")
    assert seen(DUE_AFTER) == [(80 + 30,)]


def test_max_wait_makes_no_job_later(process_id: int) -> None:
    debounced.enqueue(note="a")
    tasks.keyed_system.using(max_wait=HOUR, run_at=datetime(2020, 1, 1, tzinfo=UTC)).enqueue(note="a")
    assert seen("SELECT run_at = '2020-01-01 00:00+00' FROM salon_jobs_job") == [(True,)]


def test_max_wait_bounds_fan_outs(process_id: int, stores: list[UUID]) -> None:
    for _ in range(2):
        fan_out(tasks.in_store.using(job_key="k", run_in=timedelta(minutes=30), max_wait=HOUR))
        change("UPDATE salon_jobs_job SET created_at = created_at - interval '45 min'")
    fan_out(tasks.in_store.using(job_key="k", run_in=timedelta(minutes=30), max_wait=HOUR))
    assert set(seen(DUE_AFTER)) == {(60,)}


def test_max_wait_needs_replacement() -> None:
    message = "max_wait bounds how long job_key_mode='replace' postpones a job: pass a job_key, and no other mode"
    with pytest.raises(OptionInvalid, match=message):
        tasks.system.using(max_wait=HOUR)
    with pytest.raises(OptionInvalid, match=message):
        tasks.keyed_system.using(max_wait=HOUR, job_key_mode="preserve_run_at")
    with pytest.raises(OptionInvalid, match=message):
        enqueue_job("test-system", {}, max_wait=HOUR)
    with pytest.raises(OptionInvalid, match="max_wait must be a timedelta from zero to 36,500 days, not 5"):
        debounced.task.using(max_wait=5)  # type: ignore[arg-type]
