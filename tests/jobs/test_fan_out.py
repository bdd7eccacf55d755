"""Fans out over the stores in one statement, as the worker role."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from salon_jobs import fan_out
from salon_jobs.conf.store_key import store_key
from salon_jobs.control import limit, pause, resume
from salon_jobs.core.errors import ConfigurationError, OptionInvalid, PayloadInvalid
from salon_jobs.jobs import FanOut, FanOutResult, Task
from tests import tasks
from tests.support import change, run_due, seen

LATER = datetime(2030, 1, 1, tzinfo=UTC)


def test_one_statement_adds_a_job_per_store(stores: list[UUID]) -> None:
    with transaction.atomic():
        fan_out(tasks.in_store)
        transaction.set_rollback(True)
    with CaptureQueriesContext(connection) as queries:
        assert fan_out(tasks.keyed.using(run_at=LATER), number=7) == FanOutResult(inserted=3, kept=0)
    assert len([q for q in queries.captured_queries if "salon_jobs_add_jobs" in q["sql"]]) == 1
    rows = seen("SELECT store_id, job_key, payload->>'number', run_at, state FROM salon_jobs_job ORDER BY store_id")
    assert rows == [(store, "k:7", "7", LATER, "queued") for store in stores]


def test_the_alias_that_is_given_adds_the_jobs(stores: list[UUID]) -> None:
    with transaction.atomic(using="owner"):
        assert fan_out(tasks.in_store, using="owner").inserted == 3
        transaction.set_rollback(True, using="owner")
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]


def test_a_key_that_names_the_store_gets_each_stores_id(stores: list[UUID]) -> None:
    from project.salon.tasks.reservation import expire_tentative_for_store

    fan_out(expire_tentative_for_store)
    keys = [row[0] for row in seen("SELECT job_key FROM salon_jobs_job WHERE store_id IS NOT NULL ORDER BY store_id")]
    assert keys == [f"expire_tentative:{store}" for store in stores]


def test_the_tick_of_the_system_job_is_passed_on(stores: list[UUID], process_id: int, hooks: tasks.Hooks) -> None:
    hooks.system = lambda **_: fan_out(tasks.in_store)
    job = tasks.system.enqueue()
    change("UPDATE salon_jobs_job SET tick = %s WHERE id = %s", LATER, job.id)
    run_due(process_id)
    assert seen("SELECT store_id, tick FROM salon_jobs_job ORDER BY 1") == [(store, LATER) for store in stores]


def test_without_a_key_every_call_adds(stores: list[UUID]) -> None:
    for _ in range(2):
        assert fan_out(tasks.in_store) == FanOutResult(inserted=3, kept=0)


@pytest.mark.parametrize("task", [tasks.in_store, tasks.keyed])
def test_a_paused_store_gets_no_job_until_it_is_resumed(stores: list[UUID], task: Task[..., Any]) -> None:
    pause(store_id=stores[1])
    for name in ("default", "test-store"):
        pause(queue=name)
        pause(task=name)
    limit(store_id=stores[0], max_concurrency=0)
    first = fan_out(task, number=7)
    assert first == FanOutResult(inserted=2, kept=0, paused=1), "a pause of anything else makes the jobs wait"
    assert seen("SELECT store_id FROM salon_jobs_job ORDER BY 1") == [(stores[0],), (stores[2],)]
    assert seen("SELECT inserted, kept, paused FROM salon_jobs_fan_out") == [(2, 0, 1)]
    resume(store_id=stores[1])
    assert fan_out(task, number=8).paused == 0
    assert seen("SELECT count(*) FROM salon_jobs_job WHERE store_id = %s", stores[1]) == [(1,)]


def test_a_job_that_waits_in_a_paused_store_is_left_as_it_is(stores: list[UUID]) -> None:
    fan_out(tasks.keyed, number=7, note="before")
    pause(store_id=stores[1])
    assert fan_out(tasks.keyed, number=7, note="after") == FanOutResult(inserted=0, kept=2, paused=1)
    assert seen("SELECT payload->>'note' FROM salon_jobs_job ORDER BY store_id") == [
        ("after",),
        ("before",),
        ("after",),
    ]


def test_bad_calls_name_what_is_wrong(stores: list[UUID]) -> None:
    no_store_tasks: list[Any] = [tasks.system, print]
    for wrong_task in no_store_tasks:
        with pytest.raises(PayloadInvalid, match="needs a store task"):
            fan_out(wrong_task)
    wrong: list[tuple[str, Any]] = [("jitter", -LATER.resolution), ("jitter", 60), ("exclude", "x"), ("exclude", [1.5])]
    for field, value in wrong:
        with pytest.raises(OptionInvalid, match=f"{field} must be"):
            FanOut(**{field: value})
    with pytest.raises(OptionInvalid, match=f"a store in exclude must be {re.escape(store_key().description)}"):
        fan_out(tasks.in_store, FanOut(exclude=["x y"]))
    with pytest.raises(OptionInvalid, match="label must be a string"):
        FanOut(label="x" * 256)
    with pytest.raises(PayloadInvalid, match="passes store_id itself"):
        fan_out(tasks.in_store, store_id=stores[0])
    with pytest.raises(PayloadInvalid, match="number"):
        fan_out(tasks.keyed)
    with pytest.raises(PayloadInvalid, match="extra"):
        fan_out(tasks.in_store, extra=1)
    with (
        override_settings(SALON_JOBS={**settings.SALON_JOBS, "STORE_MODEL": None}),
        pytest.raises(ConfigurationError, match="STORE_MODEL"),
    ):
        fan_out(tasks.in_store)
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]
