"""Shows, with connections of their own, that enqueuers of the same keys wait for each other and never for a circle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeAlias
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from salon_jobs import fan_out, store_task
from salon_jobs.jobs import EnqueueAction, FanOutResult, JobHandle, registry
from salon_jobs.jobs.options import KeyMode
from salon_jobs.jobs.task import Task
from tests import tasks
from tests.support import behind_transaction, change, claim, elsewhere, finish, in_thread, seen, wait_until_waiting
from tests.waiting import LIMIT_S

LOCKS = """
SELECT count(*) FROM pg_locks JOIN pg_database ON database = pg_database.oid
 WHERE locktype = 'advisory' AND datname = current_database()
"""
LATER = datetime(2030, 1, 1, tzinfo=UTC)


def actions(handles: list[JobHandle]) -> list[str]:
    return [handle.action for handle in handles]


def enqueue_numbers(store_id: UUID, *numbers: int) -> Callable[[], list[JobHandle]]:
    return lambda: tasks.keyed.enqueue_many([tasks.keyed.call(store_id=store_id, number=n) for n in numbers])


def enqueue_notes(*notes: str) -> Callable[[], list[JobHandle]]:
    return lambda: tasks.keyed_system.enqueue_many([tasks.keyed_system.call(note=note) for note in notes])


def commit_a_waiting_job(store_id: UUID, key: str) -> None:
    change("INSERT INTO salon_jobs_job (task, store_id, job_key) VALUES ('test-keyed', %s, %s)", store_id, key)


def test_crossing_batches_do_not_deadlock(stores: list[UUID]) -> None:
    """Their keys wait and are new crosswise."""
    with ThreadPoolExecutor(2) as pool:
        with transaction.atomic():
            tasks.keyed.enqueue(store_id=stores[0], number=5)
            # It has added 1 and not yet looked at 9 …
            first = elsewhere(pool, enqueue_numbers(stores[0], 1, 5, 9))
            wait_until_waiting(1)
            commit_a_waiting_job(stores[0], "k:9")
            # … which this one would hold already, while it wants 1.
            second = elsewhere(pool, enqueue_numbers(stores[0], 9, 1))
            wait_until_waiting(2)
        assert actions(first.result(LIMIT_S)) == ["inserted", "kept", "kept"]
        assert actions(second.result(LIMIT_S)) == ["kept", "kept"]
    assert seen("SELECT job_key FROM salon_jobs_job ORDER BY 1") == [("k:1",), ("k:5",), ("k:9",)]


def test_fan_out_and_batch_do_not_deadlock(stores: list[UUID]) -> None:
    calls = [tasks.keyed.call(store_id=store_id, number=7) for store_id in (stores[2], stores[0])]
    with ThreadPoolExecutor(2) as pool:
        with transaction.atomic():
            tasks.keyed.enqueue(store_id=stores[1], number=7)
            first = elsewhere(pool, lambda: fan_out(tasks.keyed, number=7))
            wait_until_waiting(1)
            commit_a_waiting_job(stores[2], "k:7")
            second = elsewhere(pool, lambda: tasks.keyed.enqueue_many(calls))
            wait_until_waiting(2)
        assert first.result(LIMIT_S) == FanOutResult(inserted=1, kept=2)
        assert actions(second.result(LIMIT_S)) == ["kept", "kept"]


def test_reversed_system_batches_do_not_deadlock(database: None) -> None:
    with ThreadPoolExecutor(2) as pool:
        with transaction.atomic():
            tasks.keyed_system.enqueue(note="5")
            first = elsewhere(pool, enqueue_notes("1", "5", "9"))
            wait_until_waiting(1)
            second = elsewhere(pool, enqueue_notes("9", "1"))
            wait_until_waiting(2)
        handles = first.result(LIMIT_S)
        crosswise = second.result(LIMIT_S)
    assert actions(handles) == ["inserted", "replaced", "inserted"]
    assert crosswise == [JobHandle(handles[i].id, EnqueueAction.REPLACED) for i in (2, 0)], "in the order given"


@pytest.mark.parametrize(("count", "locks"), [(2, 3), (1000, 1001), (1001, 1)])
def test_many_keys_take_one_lock(stores: list[UUID], count: int, locks: int) -> None:
    """They would fill the server's whole table of locks."""
    with transaction.atomic():
        enqueue_numbers(stores[0], *range(count))()
        assert seen(LOCKS) == [(locks,)]


def test_lock_of_many_keys_excludes_single_key(stores: list[UUID]) -> None:
    deduped = tasks.keyed.using(job_key_mode="unsafe_dedupe")
    with behind_transaction(lambda: deduped.enqueue(store_id=stores[1], number=1)) as single:
        deduped.enqueue_many([tasks.keyed.call(store_id=stores[0], number=n) for n in range(1001)])
    assert single.result().action is EnqueueAction.INSERTED


def test_unsafe_dedupe_keeps_concurrent_job(database: None) -> None:
    deduped = tasks.keyed_system.using(job_key="z", job_key_mode="unsafe_dedupe")
    with behind_transaction(lambda: deduped.enqueue(note="second")) as second:
        first = tasks.keyed_system.using(job_key="z", priority=5).enqueue(note="first")
    assert second.result() == JobHandle(first.id, EnqueueAction.KEPT)
    assert seen("SELECT payload->>'note', priority FROM salon_jobs_job") == [("first", 5)]


ByMode: TypeAlias = Callable[[KeyMode], Task[..., None]]


@pytest.fixture
def by_mode() -> Iterator[ByMode]:
    """Declare a store task with one key in the mode asked for."""

    def declare(mode: KeyMode) -> Task[..., None]:
        @store_task(name="test-by-mode", job_key="k", job_key_mode=mode)
        def by_mode(store_id: UUID, note: str) -> None: ...

        return by_mode

    yield declare
    registry.unregister("test-by-mode")


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("replace", ("second", 0, "default", 25, True, 0)),
        ("preserve_run_at", ("second", 0, "default", 25, False, 2)),
        ("unsafe_dedupe", ("first", 5, "slow", 9, False, 2)),
    ],
)
def test_fan_out_meets_concurrent_job_by_mode(
    stores: list[UUID], by_mode: ByMode, mode: KeyMode, expected: tuple[Any, ...]
) -> None:
    task = by_mode(mode)
    first = task.using(run_at=LATER, priority=5, queue="slow", max_attempts=9, job_key_mode="replace")
    with behind_transaction(lambda: fan_out(task, note="second")) as fanned:
        handle = first.enqueue(store_id=stores[0], note="first")
        connection.cursor().execute("UPDATE salon_jobs_job SET attempts = 2")
    assert fanned.result() == FanOutResult(inserted=2, kept=1)
    columns = "payload->>'note', priority, queue, max_attempts, run_at <= now(), attempts"
    assert seen(f"SELECT {columns} FROM salon_jobs_job WHERE id = %s", handle.id) == [expected]


def test_single_keyed_enqueue_takes_no_lock(stores: list[UUID]) -> None:
    """It is one statement."""
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        tasks.keyed.enqueue(store_id=stores[0], number=1)
        assert seen(LOCKS) == [(0,)]
    assert len([query for query in queries.captured_queries if "SAVEPOINT" not in query["sql"]]) == 1


def test_unsafe_dedupe_never_waits_for_run(stores: list[UUID], by_mode: ByMode, process_id: int) -> None:
    task = by_mode("unsafe_dedupe")
    task.enqueue(store_id=stores[0], note="running")
    [job] = claim(process_id)
    with transaction.atomic():
        assert finish(job, process_id)
        assert in_thread(lambda: fan_out(task, note="new")) == FanOutResult(inserted=2, kept=1)
