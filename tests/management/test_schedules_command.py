"""Runs ``salon_jobs schedules`` as operators do."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import UUID

import pytest
from django.core.management import CommandError

from salon_jobs import schedule, tenant_context
from salon_jobs.schedules.due import StoredSchedules
from tests import tasks
from tests.management.operator import run
from tests.support import seen


@pytest.fixture(autouse=True)
def added(stores: list[UUID]) -> None:
    """Add a schedule of a store and one of none, with the same key."""
    with tenant_context(stores[0]):
        schedule(tasks.in_store.call(store_id=stores[0]), "0 9 * * 1", key="k", timezone="Asia/Tokyo")
    schedule(tasks.system.call(), every=timedelta(hours=1), key="k")


def test_the_list_shows_when_each_is_due_and_its_last_result(stores: list[UUID]) -> None:
    [(at,)] = seen("SELECT next_at FROM salon_jobs_schedule WHERE store_id IS NULL")
    StoredSchedules(using="default").poll(at)
    first, second = sorted(json.loads(run("schedules", "--json")[0]), key=lambda row: row["id"])
    assert (first["store_id"], first["due"], first["last_tick"]) == (str(stores[0]), "0 9 * * 1 Asia/Tokyo", None)
    assert (second["key"], second["task"], second["due"], second["result"]) == (
        "k",
        "test-system",
        "every 1 h",
        "queued",
    )
    text = run("schedules", "list", "--store", str(stores[0]))[0]
    assert "0 9 * * 1 Asia/Tokyo" in text
    assert "every 1 h" not in text


def test_one_is_paused_resumed_run_and_deleted_by_its_key_and_store(stores: list[UUID]) -> None:
    of_store = ("--store", str(stores[0]))
    paused = "SELECT store_id, paused_by <> '' FROM salon_jobs_schedule WHERE paused_at IS NOT NULL"
    assert run("schedules", "pause", "k", *of_store)[0] == "paused: schedule k\n"
    assert seen(paused) == [(stores[0], True)]
    with pytest.raises(CommandError, match="schedule 'k' was not paused: it is paused"):
        run("schedules", "pause", "k", *of_store)
    assert "paused" in run("schedules")[0]
    run("schedules", "resume", "k", *of_store)
    assert seen(paused) == []
    for options in (of_store, ()):
        assert "job_id" in json.loads(run("schedules", "run", "k", *options, "--json")[0])
    assert seen("SELECT store_id FROM salon_jobs_job ORDER BY id") == [(stores[0],), (None,)]
    run("schedules", "delete", "k")
    assert seen("SELECT store_id FROM salon_jobs_schedule") == [(stores[0],)]


def test_what_is_missing_is_said(stores: list[UUID]) -> None:
    with pytest.raises(CommandError, match="name a schedule: salon_jobs schedules pause KEY"):
        run("schedules", "pause")
    with pytest.raises(CommandError, match="no schedule of this store has the key 'x'"):
        run("schedules", "delete", "x", "--store", str(stores[0]))
