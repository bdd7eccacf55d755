"""Runs ``salon_jobs schedules`` as operators do."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from uuid import UUID

import pytest
from django.core.management import CommandError

from salon_jobs import schedule, tenant_context
from salon_jobs.core.errors import SalonJobsError
from salon_jobs.schedules.due import StoredSchedules
from tests import tasks
from tests.management.operator import run
from tests.support import change, seen


@pytest.fixture(autouse=True)
def added(stores: list[UUID]) -> None:
    """Add a schedule of a store and one of none, with the same key."""
    with tenant_context(stores[0]):
        schedule(tasks.in_store.call(store_id=stores[0]), "0 9 * * 1", key="k", timezone="Asia/Tokyo")
    schedule(tasks.system.call(), every=timedelta(hours=1), key="k")


def test_list_shows_due_time_and_result(stores: list[UUID]) -> None:
    # Whatever the day: the weekly one is not due in this hour.
    change("UPDATE salon_jobs_schedule SET next_at = next_at + interval '1 week' WHERE store_id IS NOT NULL")
    [(at,)] = seen("SELECT next_at FROM salon_jobs_schedule WHERE store_id IS NULL")
    StoredSchedules(using="default").poll(at)
    first, second = sorted(json.loads(run("schedules", "--json")[0]), key=lambda row: row["id"])
    assert (first["store_id"], first["due"], first["last_tick"]) == (str(stores[0]), "0 9 * * 1 Asia/Tokyo", None)
    expected = {"key": "k", "task": "test-system", "due": "every 1 h", "result": "queued"}
    assert expected.items() <= second.items()
    text = run("schedules", "list", "--store", str(stores[0]))[0]
    assert "0 9 * * 1 Asia/Tokyo" in text
    assert "every 1 h" not in text


def test_schedule_is_named_by_key_and_store(stores: list[UUID]) -> None:
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


def test_list_says_that_there_are_more() -> None:
    same = "task, payload, line, every, catch_up, jitter, next_at"
    change(
        f"INSERT INTO salon_jobs_schedule (key, {same})"
        f" SELECT n::text, {same} FROM salon_jobs_schedule, generate_series(1, 199) AS n WHERE store_id IS NULL"
    )
    assert "only the first 200 are listed; give a KEY to see any other" in run("schedules")[1]
    change("DELETE FROM salon_jobs_schedule WHERE key = '1'")
    assert "are listed" not in run("schedules")[1]


def test_run_says_what_became_of_job() -> None:
    schedule(tasks.keyed_system.call(note="n"), every=timedelta(hours=1), key="keyed")
    [first, second] = [json.loads(run("schedules", "run", "keyed", "--json")[0]) for _ in range(2)]
    assert (first["action"], second["action"], first["job_id"]) == ("inserted", "replaced", second["job_id"])
    assert run("schedules", "run", "keyed")[0] == f"enqueued job {first['job_id']} (replaced)\n"


def test_change_keeps_what_is_not_given(stores: list[UUID]) -> None:
    of_store = ("--store", str(stores[0]))
    row = "SELECT line, timezone, every, catch_up, jitter, overlap, payload::text FROM salon_jobs_schedule WHERE {}"
    ten, none = timedelta(seconds=10), timedelta(0)
    assert run("schedules", "change", "k", "--line", "30 8 * * 2", *of_store)[0] == "changed: schedule k\n"
    assert run("schedules", "change", "k", "--line", "30 8 * * 2", *of_store)[0] == "kept: schedule k\n"
    run("schedules", "change", "k", "--timezone", "Europe/Berlin", "--no-overlap", "--jitter", "30s", *of_store)
    run("schedules", "change", "k", "--arguments", '{"number": 3}', *of_store)
    [changed] = seen(row.format("store_id IS NOT NULL"))
    five, half = timedelta(minutes=5), timedelta(seconds=30)
    assert changed == ("30 8 * * 2", "Europe/Berlin", None, five, half, False, '{"number": 3}')
    assert "next_at" in json.loads(run("schedules", "change", "k", "--jitter", "0", "--json", *of_store)[0])
    run("schedules", "change", "k", "--every", "10s", *of_store)
    [changed] = seen(row.format("store_id IS NOT NULL"))
    assert changed == ("", "UTC", ten, ten, none, False, '{"number": 3}')
    [untouched] = seen(row.format("store_id IS NULL"))
    assert untouched[2] == timedelta(hours=1)
    run("schedules", "change", "k", "--line", "0 1 * * *", "--arguments", '{"note": "n"}', "--catch-up", "2h")
    [changed] = seen(row.format("store_id IS NULL"))
    assert (changed[0], changed[3], changed[6]) == ("0 1 * * *", timedelta(hours=2), '{"note": "n"}')


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "give change what to change"),
        (("--line", "0 25 * * *"), "the hour field '25' is wrong"),
        (("--timezone", "Nowhere", "--line", "0 1 * * *"), "unknown time zone"),
        (("--arguments", '{"number": "x"}'), "no argument 'number'"),
        (("--arguments", '{"note": 1}'), "Expected `str`"),
        (("--arguments", "[1]"), "a JSON object"),
        (("--arguments", "{"), "a JSON object"),
        (("--line", "0 1 * * *", "--every", "5m"), "pass one of them"),
        (("--timezone", "Asia/Tokyo"), "--timezone is that of a line"),
        (("--timezone", "Asia/Tokyo", "--every", "5m"), "--timezone is that of a line"),
    ],
)
def test_invalid_change_is_refused(options: tuple[str, ...], said: str) -> None:
    before = seen("SELECT * FROM salon_jobs_schedule ORDER BY id")
    with pytest.raises((CommandError, SalonJobsError), match=re.escape(said)):
        run("schedules", "change", "k", *options)
    with pytest.raises(CommandError, match="no other action any of it"):
        run("schedules", "pause", "k", "--jitter", "5s")
    assert seen("SELECT * FROM salon_jobs_schedule ORDER BY id") == before


def test_missing_schedule_is_named(stores: list[UUID]) -> None:
    with pytest.raises(CommandError, match="name a schedule: salon_jobs schedules pause KEY"):
        run("schedules", "pause")
    with pytest.raises(CommandError, match="no schedule of this store has the key 'x'"):
        run("schedules", "delete", "x", "--store", str(stores[0]))
    with pytest.raises(CommandError, match=r"no schedule without a store has the key 'x'; for .* a store, add --store"):
        run("schedules", "delete", "x")
