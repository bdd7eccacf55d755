"""Tests that a run whose key a newer job took is not retried, whatever has become of the newer one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
from django.db import connection, transaction

from salon_jobs import fan_out
from salon_jobs.db import statements
from salon_jobs.jobs import JobHandle
from tests import tasks
from tests.support import change, claim, elsewhere, finish, seen, wait_until_waiting
from tests.worker.ends import RETURNS


def ends() -> list[tuple[str, str]]:
    return [(state, reason) for state, reason in seen("SELECT state, reason FROM salon_jobs_job ORDER BY id")]


@pytest.fixture(params=["store", "batch", "fan-out", "system"])
def enqueue(request: pytest.FixtureRequest, stores: list[UUID]) -> Callable[[], object]:
    """Return an enqueue under one key, by each way into the table."""
    call = tasks.keyed.call(store_id=stores[0], number=7)
    other = tasks.keyed.call(store_id=stores[0], number=8)
    change("DELETE FROM store WHERE id <> %s", stores[0])
    ways: dict[str, Callable[[], object]] = {
        "store": lambda: tasks.keyed.enqueue(store_id=stores[0], number=7),
        "batch": lambda: tasks.keyed.enqueue_many([call, other]),
        "fan-out": lambda: fan_out(tasks.keyed, number=7),
        "system": lambda: tasks.keyed_system.enqueue(note="7"),
    }
    return ways[request.param]


def test_a_superseded_run_is_not_retried_after_its_twin_has_finished(
    enqueue: Callable[[], object], process_id: int
) -> None:
    enqueue()
    older = claim(process_id)
    enqueue()
    for newer in claim(process_id):
        assert finish(newer, process_id)
    for job in older:
        RETURNS["fail"](job, process_id)
    assert ends() == [("cancelled", "superseded")] * len(older)


@pytest.mark.parametrize("verb", RETURNS)
def test_a_twin_that_was_claimed_and_finished_while_the_failure_waited_is_noticed(
    stores: list[UUID], process_id: int, verb: str
) -> None:
    tasks.keyed.enqueue(store_id=stores[0], number=1)
    [older] = claim(process_id)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(), connection.cursor() as cursor:
            twin = tasks.keyed.enqueue(store_id=stores[0], number=1)
            ended = elsewhere(pool, lambda: RETURNS[verb](older, process_id))
            wait_until_waiting(1)
            # What the failure will find when it wakes: no waiting twin any more.
            cursor.execute("DELETE FROM salon_jobs_job WHERE id = %s", [twin.id])
        ended.result(10)
    assert ends() == [("cancelled", "superseded")]


def test_a_job_claimed_at_the_very_moment_of_the_enqueue_is_superseded(stores: list[UUID], process_id: int) -> None:
    tasks.keyed.enqueue(store_id=stores[0], number=1)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            [older] = claim(process_id)
            newer = elsewhere(pool, lambda: tasks.keyed.enqueue(store_id=stores[0], number=1))
            wait_until_waiting(1)
        handle: JobHandle = newer.result(10)
    assert handle.id != older.id
    change("DELETE FROM salon_jobs_job WHERE id = %s", handle.id)
    RETURNS["fail"](older, process_id)
    assert ends() == [("cancelled", "superseded")]


def test_marks_are_forgotten_when_the_run_has_ended(stores: list[UUID], process_id: int) -> None:
    for number in (1, 2):
        tasks.keyed.enqueue(store_id=stores[0], number=number)
    one, two = claim(process_id)
    for number in (1, 2):
        tasks.keyed.enqueue(store_id=stores[0], number=number)
    assert finish(one, process_id)
    statements.execute("forget_superseded", using="default")
    assert seen("SELECT job_id, lease FROM salon_jobs_superseded") == [(two.id, two.lease)]
    RETURNS["fail"](two, process_id)
    statements.execute("forget_superseded", using="default")
    assert seen("SELECT count(*) FROM salon_jobs_superseded") == [(0,)]
