"""A fan-out adds a job per store in one statement, once per tick, and knows how far they are."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from project.salon.tasks.reservation import expire_tentative_for_store
from salon_jobs import fan_out
from salon_jobs.conf.store_key import store_key
from salon_jobs.control import limit, pause, resume
from salon_jobs.core.errors import ConfigurationError, OptionInvalid, PayloadInvalid, SalonJobsError, UnknownFanOut
from salon_jobs.core.records import ClaimedJob
from salon_jobs.jobs import FanOut, FanOutProgress, FanOutResult, Task, control, fan_out_progress
from salon_jobs.jobs.run import current_run
from tests import tasks
from tests.jobs.rows import count, jobs
from tests.support import behind_transaction, change, claim, run_due, running_job, seen

TICK = datetime(2030, 1, 1, tzinfo=UTC)
NEXT = TICK + timedelta(days=1)
MINUTES = timedelta(minutes=5)


def test_fan_out_is_one_statement(stores: list[UUID]) -> None:
    with transaction.atomic():
        fan_out(tasks.in_store)
        transaction.set_rollback(True)
    with CaptureQueriesContext(connection) as queries:
        assert fan_out(tasks.keyed.using(run_at=TICK), number=7) == FanOutResult(inserted=3, kept=0)
    assert len([q for q in queries.captured_queries if "salon_jobs_add_jobs" in q["sql"]]) == 1
    columns = "store_id, job_key, payload->>'number', run_at, state"
    assert sorted(jobs(columns)) == [(store, "k:7", "7", TICK, "queued") for store in stores]


def test_alias_adds_the_jobs(stores: list[UUID]) -> None:
    with transaction.atomic(using="owner"):
        assert fan_out(tasks.in_store, using="owner").inserted == 3
        transaction.set_rollback(True, using="owner")
    assert count() == 0


def test_key_may_name_the_store(stores: list[UUID]) -> None:
    fan_out(expire_tentative_for_store)
    assert sorted(jobs("store_id, job_key")) == [(store, f"expire_tentative:{store}") for store in stores]


def test_tick_of_system_job_is_passed_on(stores: list[UUID], process_id: int, hooks: tasks.Hooks) -> None:
    hooks.system = lambda **_: fan_out(tasks.in_store)
    tasks.system.enqueue()
    change("UPDATE salon_jobs_job SET tick = %s", TICK)
    run_due(process_id)
    assert sorted(jobs("store_id, tick")) == [(store, TICK) for store in stores]


@pytest.mark.parametrize("task", [tasks.in_store, tasks.keyed])
def test_paused_store_gets_no_job(stores: list[UUID], task: Task[..., Any]) -> None:
    pause(store_id=stores[1])
    for name in ("default", "test-store"):
        pause(queue=name)
        pause(task=name)
    limit(store_id=stores[0], max_concurrency=0)
    first = fan_out(task, number=7)
    assert first == FanOutResult(inserted=2, kept=0, paused=1), "a pause of anything else makes the jobs wait"
    assert sorted(jobs("store_id")) == [(stores[0],), (stores[2],)]
    assert seen("SELECT inserted, kept, paused FROM salon_jobs_fan_out") == [(2, 0, 1)]
    resume(store_id=stores[1])
    assert fan_out(task, number=8).paused == 0
    assert len(jobs("id", "store_id = %s", stores[1])) == 1


def test_waiting_job_of_paused_store_is_unchanged(stores: list[UUID]) -> None:
    fan_out(tasks.keyed, number=7, note="before")
    pause(store_id=stores[1])
    assert fan_out(tasks.keyed, number=7, note="after") == FanOutResult(inserted=0, kept=2, paused=1)
    notes = zip(stores, ("after", "before", "after"), strict=True)
    assert sorted(jobs("store_id, payload->>'note'")) == list(notes)


@pytest.mark.parametrize(
    ("task", "options", "arguments", "error", "message"),
    [
        (tasks.system, {}, {}, PayloadInvalid, "needs a store task"),
        (print, {}, {}, PayloadInvalid, "needs a store task"),
        (tasks.in_store, {"jitter": -TICK.resolution}, {}, OptionInvalid, "jitter must be"),
        (tasks.in_store, {"jitter": 60}, {}, OptionInvalid, "jitter must be"),
        (tasks.in_store, {"exclude": "x"}, {}, OptionInvalid, "exclude must be"),
        (tasks.in_store, {"exclude": [1.5]}, {}, OptionInvalid, "exclude must be"),
        (tasks.in_store, {"exclude": ["x y"]}, {}, OptionInvalid, f"in exclude must be {store_key().description}"),
        (tasks.in_store, {"label": "x" * 256}, {}, OptionInvalid, "label must be a string"),
        (tasks.in_store, {}, {"store_id": 1}, PayloadInvalid, "passes store_id itself"),
        (tasks.keyed, {}, {}, PayloadInvalid, "number"),
        (tasks.in_store, {}, {"extra": 1}, PayloadInvalid, "extra"),
    ],
)
def test_bad_call_is_refused(
    database: None, task: Any, options: Any, arguments: Any, error: type[SalonJobsError], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        fan_out(task, FanOut(**options), **arguments)
    assert count() == 0


def test_fan_out_needs_store_model(database: None) -> None:
    without = override_settings(SALON_JOBS={**settings.SALON_JOBS, "STORE_MODEL": None})
    with without, pytest.raises(ConfigurationError, match="STORE_MODEL"):
        fan_out(tasks.in_store)


def at_tick(tick: datetime | None, *of: Any, **arguments: Any) -> FanOutResult:
    """Fan out as a handler whose job stems from a tick."""
    seconds = None if tick is None else tick.timestamp()
    job = ClaimedJob(1, "test-system", None, "{}", "default", 0, 0.0, 0, 3, 1, False, seconds, 0.0, 0)
    token = current_run.set(running_job(job, 1))
    try:
        return fan_out(*of, **arguments)
    finally:
        current_run.reset(token)


def test_tick_fans_out_once(stores: list[UUID], process_id: int) -> None:
    """Also once its jobs are gone."""
    first = at_tick(TICK, tasks.in_store, number=7)
    assert first == FanOutResult(inserted=3, kept=0)
    run_due(process_id)
    assert count() == 0, "all have succeeded"
    again = at_tick(TICK, tasks.in_store, FanOut(exclude=stores[:1]), number=7)
    assert (again, again.id) == (FanOutResult(inserted=0, kept=3), first.id)
    assert count() == 0


def test_what_makes_another_fan_out(stores: list[UUID]) -> None:
    calls: list[tuple[datetime, tuple[Any, ...], int]] = [
        (TICK, (tasks.in_store,), 1),
        (TICK, (tasks.in_store,), 2),
        (NEXT, (tasks.in_store,), 1),
        (TICK, (tasks.in_store, FanOut(label="evening")), 1),
        (TICK, (tasks.outside,), 1),
    ]
    for inserted in (3, 0):
        assert [at_tick(tick, *of, number=number).inserted for tick, of, number in calls] == [inserted] * 5
    assert [at_tick(None, tasks.in_store, number=1).inserted for _ in range(2)] == [3, 3]


@pytest.mark.parametrize("commits", [True, False])
def test_simultaneous_fan_outs_of_a_tick(stores: list[UUID], commits: bool) -> None:
    with behind_transaction(lambda: at_tick(TICK, tasks.in_store)) as second:
        first = at_tick(TICK, tasks.in_store)
        transaction.set_rollback(not commits)
    added = 0 if commits else 3
    assert second.result() == FanOutResult(inserted=added, kept=3 - added)
    assert (second.result().id == first.id) is commits
    assert sorted(jobs("store_id")) == [(store,) for store in stores]


def test_jitter_of_store_stays(stores: list[UUID]) -> None:
    places = []
    for base in (TICK, NEXT):
        fan_out(tasks.in_store.using(run_at=base, priority=5), FanOut(jitter=MINUTES))
        rows = sorted(jobs("store_id, run_at, priority"))
        assert {row[2] for row in rows} == {5}
        places.append([run_at - base for _, run_at, _ in rows])
        change("DELETE FROM salon_jobs_job")
    assert places[0] == places[1]
    assert len(set(places[0])) == 3
    assert all(timedelta(0) <= place < MINUTES for place in places[0])


def test_fan_out_takes_run_at_and_run_in(stores: list[UUID]) -> None:
    fan_out(tasks.in_store.using(run_at=TICK))
    assert {*jobs("run_at")} == {(TICK,)}
    change("DELETE FROM salon_jobs_job")
    fan_out(tasks.in_store.using(run_in=timedelta(hours=1)))
    assert {*jobs("run_at - created_at >= '1 hour' AND run_at - now() <= '1 hour'")} == {(True,)}


@pytest.mark.parametrize("task", [tasks.in_store, tasks.keyed])
def test_excluded_stores_get_no_job(stores: list[UUID], task: Any) -> None:
    assert fan_out(task, FanOut(exclude={stores[1]}), number=1) == FanOutResult(inserted=2, kept=0)
    assert sorted(jobs("store_id")) == [(stores[0],), (stores[2],)]


def test_progress_counts_jobs_it_added(stores: list[UUID], process_id: int) -> None:
    result = fan_out(tasks.keyed, number=1)
    assert fan_out_progress(result.id) == FanOutProgress(3, done=0, running=0, queued=3, failed=0, cancelled=0)
    assert str(fan_out_progress(result.id)) == "0 of 3 done"
    claimed = claim(process_id, 1)
    assert fan_out_progress(result.id).running == 1
    other = fan_out(tasks.keyed, number=1)
    assert other == FanOutResult(inserted=1, kept=2), "a running job is left alone"
    assert fan_out_progress(other.id).total == 1, "those met belong to the one that added them"
    change("DELETE FROM salon_jobs_job WHERE id = %s", claimed[0].id)
    control.cancel_jobs([job_id for (job_id,) in jobs("id", "store_id = %s", stores[2])])
    assert str(fan_out_progress(result.id, using="operator")) == "1 of 3 done, 1 cancelled"
    with pytest.raises(UnknownFanOut, match="ID 99"):
        fan_out_progress(99)
    progress = FanOutProgress(100, done=97, running=1, queued=1, failed=1, cancelled=0)
    assert str(progress) == "97 of 100 done, 1 failed"
