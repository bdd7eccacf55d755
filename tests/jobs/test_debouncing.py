"""An enqueue with ``unique_for`` adds nothing twice; ``max_wait`` bounds how long replacing a job postpones it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import connections, transaction

from salon_jobs import enqueue_job, fan_out, tenant_context
from salon_jobs.core.errors import OptionInvalid
from salon_jobs.jobs import EnqueueAction, JobHandle
from salon_jobs.jobs.pruning import Pruner
from tests import tasks
from tests.support import behind_transaction, change, in_thread, run_due, seen

HOUR = timedelta(hours=1)
MARKS = "SELECT job_id FROM salon_jobs_unique"


def once(note: str = "", **options: object) -> JobHandle:
    """Enqueue a system task once in an hour."""
    return tasks.system.using(unique_for=HOUR, **options).enqueue(note=note)  # type: ignore[arg-type]


def kept(handle: JobHandle) -> JobHandle:
    """Return what the same enqueue returns later."""
    return JobHandle(handle.id, EnqueueAction.KEPT)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("ends", [False, True])
def test_same_enqueue_adds_nothing(process_id: int, key: str | None, ends: bool) -> None:
    """Even if the job has ended."""
    first = once("a", job_key=key)
    assert first.action is EnqueueAction.INSERTED
    if ends:
        run_due(process_id)
        assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]
    assert once("a", job_key=key) == kept(first)
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0 if ends else 1,)]


def test_what_makes_another_enqueue(stores: list[UUID]) -> None:
    same = tasks.keyed.using(unique_for=HOUR)
    handles = [
        once("a"),
        once("b"),
        once("a", job_key="k"),
        tasks.keyed_system.using(unique_for=HOUR, job_key="k").enqueue(note="a"),
        *(same.enqueue(store_id=store, number=1) for store in stores[:2]),
        tasks.in_store.using(unique_for=HOUR).enqueue(store_id=stores[0], number=1),
        tasks.in_store.using(unique_for=HOUR).enqueue(store_id=stores[1], number=1),
    ]
    assert {handle.action for handle in handles} == {EnqueueAction.INSERTED}
    assert same.enqueue(store_id=stores[0], number=1, note="the key decides") == kept(handles[4])
    assert once("b", job_key="k") == kept(handles[2])


def test_period_counts_from_first_enqueue(database: None) -> None:
    first = once()
    [before] = seen("SELECT expires_at, expires_at - now() BETWEEN '59 min' AND '1 h' FROM salon_jobs_unique")
    assert once() == kept(first)
    assert seen("SELECT expires_at, true FROM salon_jobs_unique") == [before], "the second does not prolong it"
    change("UPDATE salon_jobs_unique SET expires_at = now()")
    second = once()
    assert second.action is EnqueueAction.INSERTED
    assert once() == kept(second)


def test_other_enqueues_do_not_count(database: None) -> None:
    tasks.system.enqueue()
    assert seen(MARKS) == []
    once()
    assert tasks.system.enqueue().action is EnqueueAction.INSERTED


def test_first_enqueue_follows_key_mode(database: None) -> None:
    waiting = tasks.keyed_system.using(job_key="k").enqueue(note="a")
    for mode, action in (("unsafe_dedupe", EnqueueAction.KEPT), ("replace", EnqueueAction.REPLACED)):
        change("DELETE FROM salon_jobs_unique")
        bound = tasks.keyed_system.using(job_key="k", job_key_mode=mode, unique_for=HOUR)  # type: ignore[arg-type]
        assert bound.enqueue(note="b") == JobHandle(waiting.id, action)
        assert bound.enqueue(note="c") == kept(waiting)
    assert seen("SELECT payload->>'note' FROM salon_jobs_job") == [("b",)]


@pytest.mark.parametrize("commits", [True, False])
def test_concurrent_enqueue_waits(database: None, commits: bool) -> None:
    with behind_transaction(once) as other:
        first = once()
        transaction.set_rollback(not commits)
    second = other.result()
    assert second.action is (EnqueueAction.KEPT if commits else EnqueueAction.INSERTED)
    assert (second.id == first.id) is commits
    assert seen(MARKS) == [(second.id,)]
    assert seen("SELECT id FROM salon_jobs_job") == [(second.id,)]


def test_kept_enqueue_holds_nobody_up(database: None) -> None:
    first = once()
    with transaction.atomic():
        assert once() == kept(first)
        assert in_thread(once) == kept(first)


def test_web_role_enqueues_for_its_store(stores: list[UUID]) -> None:
    bound = tasks.in_store.using(unique_for=HOUR)
    other = bound.enqueue(store_id=stores[1], number=1)
    with tenant_context(stores[0], using="web"), connections["web"].cursor() as cursor:
        call = "SELECT job_id, result FROM salon_jobs_add_jobs('test-store', ARRAY['{\"number\": 1}'], ARRAY[%s], %s)"
        for expected in ("inserted", "kept"):
            cursor.execute(call, [stores[0], '{"unique_for": "1 h"}'])
            [(job_id, result)] = cursor.fetchall()
            assert (result, job_id == other.id) == (expected, False)
    assert sorted(seen(MARKS)) == [(other.id,), (job_id,)]


def test_expired_mark_is_pruned(process_id: int) -> None:
    first, second = once("a"), once("b")
    run_due(process_id)
    change("UPDATE salon_jobs_unique SET expires_at = now() WHERE job_id = %s", first.id)
    assert Pruner(using="default").run_once().deleted["unique"] == 1
    assert seen(MARKS) == [(second.id,)]
    assert once("b") == kept(second)


def test_unique_for_is_for_single_jobs(stores: list[UUID]) -> None:
    message = "unique_for is an option of one job: enqueue these one by one"
    with pytest.raises(OptionInvalid, match=message):
        tasks.system.using(unique_for=HOUR).enqueue_many([tasks.system.call()])
    with pytest.raises(OptionInvalid, match=message):
        fan_out(tasks.in_store.using(unique_for=HOUR))


@pytest.mark.parametrize("option", ["unique_for", "max_wait"])
def test_periods_are_timedeltas(option: str) -> None:
    with pytest.raises(OptionInvalid, match=f"{option} must be a timedelta from zero to 36,500 days, not 5"):
        tasks.keyed_system.using(**{option: 5})  # type: ignore[arg-type]


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
    for waited in (45, 45, 0):
        fan_out(tasks.in_store.using(job_key="k", run_in=timedelta(minutes=30), max_wait=HOUR))
        change(f"UPDATE salon_jobs_job SET created_at = created_at - interval '{waited} min'")
    assert set(seen(DUE_AFTER)) == {(60,)}


@pytest.mark.parametrize(
    ("enqueue", "options"),
    [
        (tasks.system.using, {}),
        (tasks.keyed_system.using, {"job_key_mode": "preserve_run_at"}),
        (partial(enqueue_job, "test-system", {}), {}),
    ],
    ids=["no key", "another mode", "by name"],
)
def test_max_wait_needs_replacement(enqueue: Callable[..., object], options: dict[str, Any]) -> None:
    message = "max_wait bounds how long job_key_mode='replace' postpones a job: pass a job_key, and no other mode"
    with pytest.raises(OptionInvalid, match=message):
        enqueue(max_wait=HOUR, **options)
