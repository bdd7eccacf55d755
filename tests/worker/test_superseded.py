"""Tests that a run whose key a newer job took is not retried, whatever has become of the newer one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connection, transaction

from salon_jobs import fan_out
from salon_jobs.core.error_report import report
from salon_jobs.core.records import ClaimedJob
from salon_jobs.db import statements
from salon_jobs.jobs import JobHandle, control
from tests import tasks
from tests.jobs.test_key_locks import wait_until_waiting
from tests.support import change, claim, elsewhere, leases_of, seen

VERBS = ["fail", "snooze", "release", "rescue"]
ZERO = timedelta(0)


def end(verb: str, job: ClaimedJob, process_id: int) -> None:
    """End a run without success, in one of the ways that queue a job again."""
    match verb:
        case "fail":
            leases_of(process_id).fail(job, report(ValueError()), delay=ZERO, final=False, reason="")
        case "snooze":
            leases_of(process_id).requeue([(job.id, job.lease)], delay=ZERO)
        case "release":
            leases_of(process_id).requeue([(job.id, job.lease)])
        case _:
            leases_of(process_id).rescue("went silent")


def ends() -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in seen("SELECT state, reason FROM salon_jobs_job ORDER BY id")]


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


@pytest.mark.parametrize("verb", VERBS)
def test_a_superseded_run_is_not_retried_after_its_twin_has_finished(
    enqueue: Callable[[], object], process_id: int, verb: str
) -> None:
    enqueue()
    older = claim(process_id)
    enqueue()
    for newer in claim(process_id):
        assert leases_of(process_id).finish(newer)
    for job in older:
        end(verb, job, process_id)
    assert ends() == [("cancelled", "superseded")] * len(older)


@pytest.mark.parametrize("verb", VERBS)
def test_a_twin_that_was_claimed_and_finished_while_the_failure_waited_is_noticed(
    stores: list[UUID], process_id: int, verb: str
) -> None:
    tasks.keyed.enqueue(store_id=stores[0], number=1)
    [older] = claim(process_id)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(), connection.cursor() as cursor:
            twin = tasks.keyed.enqueue(store_id=stores[0], number=1)
            ended = elsewhere(pool, lambda: end(verb, older, process_id))
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
    end("fail", older, process_id)
    assert ends() == [("cancelled", "superseded")]


def test_an_enqueue_that_is_rolled_back_supersedes_nothing(stores: list[UUID], process_id: int) -> None:
    tasks.keyed.enqueue(store_id=stores[0], number=1)
    [job] = claim(process_id)
    with transaction.atomic():
        tasks.keyed.enqueue(store_id=stores[0], number=1)
        transaction.set_rollback(True)
    end("fail", job, process_id)
    assert ends() == [("queued", "")]


def test_other_keys_stores_and_tasks_supersede_nothing(stores: list[UUID], process_id: int) -> None:
    tasks.keyed.enqueue(store_id=stores[0], number=1)
    [job] = claim(process_id)
    tasks.keyed.enqueue(store_id=stores[0], number=2)
    tasks.keyed.enqueue(store_id=stores[1], number=1)
    tasks.in_store.using(job_key="k:1").enqueue(store_id=stores[0])
    tasks.keyed_system.enqueue(note="1")
    assert seen("SELECT count(*) FROM salon_jobs_superseded") == [(0,)]
    end("fail", job, process_id)
    assert ends()[0] == ("queued", "")


def test_a_superseded_job_that_an_operator_retries_is_retried_again(stores: list[UUID], process_id: int) -> None:
    first = tasks.keyed.enqueue(store_id=stores[0], number=1)
    [older] = claim(process_id)
    tasks.keyed.enqueue(store_id=stores[0], number=1)
    [newer] = claim(process_id)
    assert leases_of(process_id).finish(newer)
    end("fail", older, process_id)
    assert control.retry_jobs([first.id], using="default")[0].changed
    [again] = claim(process_id)
    end("fail", again, process_id)
    assert ends() == [("queued", "")]


def test_marks_are_forgotten_when_the_run_has_ended(stores: list[UUID], process_id: int) -> None:
    for number in (1, 2):
        tasks.keyed.enqueue(store_id=stores[0], number=number)
    one, two = claim(process_id)
    for number in (1, 2):
        tasks.keyed.enqueue(store_id=stores[0], number=number)
    assert leases_of(process_id).finish(one)
    statements.execute("forget_superseded")
    assert seen("SELECT job_id, lease FROM salon_jobs_superseded") == [(two.id, two.lease)]
    end("fail", two, process_id)
    statements.execute("forget_superseded")
    assert seen("SELECT count(*) FROM salon_jobs_superseded") == [(0,)]
