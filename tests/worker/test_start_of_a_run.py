"""Shows that an ended job says when it was claimed, and when its run began, however long it waited in between."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from salon_jobs import Discard, Snooze
from tests import tasks
from tests.support import change, claim, running_on_a_thread, seen
from tests.tasks import Hooks

MOMENT = timedelta(minutes=10)


def raises(error: Exception) -> Any:
    def handler(**_: object) -> None:
        raise error

    return handler


def claimed_an_hour_ago(process_id: int) -> None:
    """Claim what is due, an hour ago by its rows, and run it now."""
    jobs = claim(process_id)
    change("UPDATE salon_jobs_job SET started_at = now() - interval '1 hour' WHERE state = 'running'")
    with running_on_a_thread(process_id, jobs):
        pass


def test_of_a_job_that_is_kept(process_id: int, stores: list[UUID], hooks: Hooks, settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": 60}
    tasks.system.enqueue()
    tasks.in_store.enqueue(store_id=stores[0], number=1)
    tasks.outside.enqueue(store_id=stores[1], number=1)
    tasks.kept_result.enqueue(note="a")
    tasks.kept_result_in_store.enqueue(store_id=stores[0], number=7)
    claimed_an_hour_ago(process_id)
    ran = seen("SELECT state, finished_at - started_at, started_at - claimed_at FROM salon_jobs_job")
    assert len(ran) == 5
    for state, took, waited in ran:
        assert state == "succeeded"
        assert timedelta(0) <= took < MOMENT < waited
    kept = seen("SELECT finished_at - started_at FROM salon_jobs_job_result")
    assert len(kept) == 2
    assert all(timedelta(0) <= took < MOMENT for (took,) in kept), kept


@pytest.mark.parametrize(("error", "state"), [(ValueError("no"), "failed"), (Discard("not needed"), "cancelled")])
def test_of_a_job_that_did_not_succeed(
    process_id: int, stores: list[UUID], hooks: Hooks, error: Exception, state: str
) -> None:
    hooks.store = raises(error)
    tasks.in_store.using(max_attempts=1).enqueue(store_id=stores[0], number=1)
    claimed_an_hour_ago(process_id)
    [(found, took, waited)] = seen(
        "SELECT state, finished_at - started_at, started_at - claimed_at FROM salon_jobs_job"
    )
    assert found == state
    assert timedelta(0) <= took < MOMENT < waited
    for (took,) in seen("SELECT occurred_at - started_at FROM salon_jobs_job_error"):
        assert timedelta(0) <= took < MOMENT


def test_a_run_that_was_released_says_nothing_of_an_earlier_claim(process_id: int, hooks: Hooks) -> None:
    tasks.system.enqueue()
    change("UPDATE salon_jobs_job SET claimed_at = now() - interval '2 h'")
    hooks.system = raises(Snooze(timedelta(minutes=1)))
    claimed_an_hour_ago(process_id)
    assert seen("SELECT state, claimed_at FROM salon_jobs_job") == [("queued", None)]
