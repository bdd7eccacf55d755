"""Shows that a fan-out happens once per tick, where its jobs are put in time, and how far they are."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction

from salon_jobs import fan_out
from salon_jobs.core.errors import UnknownFanOut
from salon_jobs.core.records import ClaimedJob
from salon_jobs.jobs import FanOut, FanOutProgress, FanOutResult, control, fan_out_progress
from salon_jobs.jobs.current import running
from tests import tasks
from tests.support import change, claim, elsewhere, run_due, running_job, seen, wait_until_waiting

TICK = datetime(2026, 5, 5, 18, tzinfo=UTC)
NEXT = TICK + timedelta(days=1)


def at_tick(tick: datetime | None, work: Callable[[], Any]) -> Any:
    """Run as a handler whose job stems from a tick."""
    seconds = None if tick is None else tick.timestamp()
    job = ClaimedJob(1, "test-system", None, "{}", "default", 0, 0.0, 0, 3, 1, False, seconds, 0.0, 0)
    token = running.set(running_job(job, 1))
    try:
        return work()
    finally:
        running.reset(token)


def test_a_second_one_for_the_same_tick_adds_nothing_though_the_jobs_are_gone(
    stores: list[UUID], process_id: int
) -> None:
    first = at_tick(TICK, lambda: fan_out(tasks.in_store, number=7))
    assert first == FanOutResult(inserted=3, kept=0)
    run_due(process_id)
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)], "all have succeeded"
    again = at_tick(TICK, lambda: fan_out(tasks.in_store, FanOut(exclude=stores[:1]), number=7))
    assert (again, again.id) == (FanOutResult(inserted=0, kept=3), first.id)
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]


def test_other_arguments_ticks_labels_and_tasks_are_other_fan_outs(stores: list[UUID]) -> None:
    others: list[Callable[[], FanOutResult]] = [
        lambda: at_tick(TICK, lambda: fan_out(tasks.in_store, number=1)),
        lambda: at_tick(TICK, lambda: fan_out(tasks.in_store, number=2)),
        lambda: at_tick(NEXT, lambda: fan_out(tasks.in_store, number=1)),
        lambda: at_tick(TICK, lambda: fan_out(tasks.in_store, FanOut(label="evening"), number=1)),
        lambda: at_tick(TICK, lambda: fan_out(tasks.outside, number=1)),
    ]
    assert [other().inserted for other in others] == [3] * 5
    assert [other().inserted for other in others] == [0] * 5
    assert [at_tick(None, lambda: fan_out(tasks.in_store, number=1)).inserted for _ in range(2)] == [3, 3]


@pytest.mark.parametrize("commits", [True, False])
def test_two_at_once_for_one_tick_are_one_unless_the_first_rolls_back(stores: list[UUID], commits: bool) -> None:
    def fan() -> FanOutResult:
        result: FanOutResult = at_tick(TICK, lambda: fan_out(tasks.in_store))
        return result

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            first = fan()
            second = elsewhere(pool, fan)
            wait_until_waiting(1)
            transaction.set_rollback(not commits)
        assert second.result(10) == FanOutResult(inserted=0 if commits else 3, kept=3 if commits else 0)
        assert (second.result().id == first.id) is commits
    assert seen("SELECT store_id FROM salon_jobs_job ORDER BY 1") == [(store,) for store in stores]


def test_a_stores_place_in_the_jitter_is_its_own_and_stays(stores: list[UUID]) -> None:
    places = []
    for base in (TICK, NEXT):
        fan_out(tasks.in_store.using(run_at=base, priority=5), FanOut(jitter=timedelta(minutes=5)))
        rows = seen("SELECT store_id, run_at, priority FROM salon_jobs_job ORDER BY 1")
        assert {row[2] for row in rows} == {5}
        places.append([run_at - base for _, run_at, _ in rows])
        change("DELETE FROM salon_jobs_job")
    assert places[0] == places[1]
    assert len(set(places[0])) == 3
    assert all(timedelta(0) <= place < timedelta(minutes=5) for place in places[0])
    fan_out(tasks.in_store.using(run_at=TICK))
    assert seen("SELECT DISTINCT run_at FROM salon_jobs_job") == [(TICK,)]
    change("DELETE FROM salon_jobs_job")
    fan_out(tasks.in_store.using(run_in=timedelta(hours=1)))
    waits = "SELECT DISTINCT run_at - created_at >= '1 hour' AND run_at - now() <= '1 hour' FROM salon_jobs_job"
    assert seen(waits) == [(True,)]


@pytest.mark.parametrize("task", [tasks.in_store, tasks.keyed])
def test_excluded_stores_get_no_job(stores: list[UUID], task: Any) -> None:
    assert fan_out(task, FanOut(exclude={stores[1]}), number=1) == FanOutResult(inserted=2, kept=0)
    assert seen("SELECT store_id FROM salon_jobs_job ORDER BY 1") == [(stores[0],), (stores[2],)]


def test_progress_counts_what_became_of_the_jobs_it_added(stores: list[UUID], process_id: int) -> None:
    result = fan_out(tasks.keyed, number=1)
    assert fan_out_progress(result.id) == FanOutProgress(3, done=0, running=0, queued=3, failed=0, cancelled=0)
    assert str(fan_out_progress(result.id)) == "0 of 3 done"
    claimed = claim(process_id, 1)
    assert fan_out_progress(result.id).running == 1
    other = fan_out(tasks.keyed, number=1)
    assert other == FanOutResult(inserted=1, kept=2), "a running job is left alone"
    assert fan_out_progress(other.id).total == 1, "those met belong to the one that added them"
    change("DELETE FROM salon_jobs_job WHERE id = %s", claimed[0].id)
    control.cancel_jobs([id_ for (id_,) in seen("SELECT id FROM salon_jobs_job WHERE store_id = %s", stores[2])])
    assert str(fan_out_progress(result.id, using="operator")) == "1 of 3 done, 1 cancelled"
    with pytest.raises(UnknownFanOut, match="ID 99"):
        fan_out_progress(99)


def test_progress_reads_as_people_say_it() -> None:
    progress = FanOutProgress(100, done=97, running=1, queued=1, failed=1, cancelled=0)
    assert str(progress) == "97 of 100 done, 1 failed"
