"""Runs ``salon_jobs cron`` as operators do."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.core.management import CommandError

from salon_jobs.schedules.entries import cron
from tests import tasks
from tests.inside import declare_no_entries
from tests.management.operator import add, insert, run
from tests.support import change, seen


@pytest.fixture(autouse=True)
def entry(database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    declare_no_entries(monkeypatch)
    cron("30 3 * * *", tasks.system, name="nightly", timezone="Asia/Tokyo", payload={"note": "x"})


def test_pause_and_resume_entry() -> None:
    insert("cron_entry", name="nightly")
    assert run("cron", "pause", "nightly")[0] == "paused: cron entry nightly\n"
    with pytest.raises(CommandError, match="was not paused: it is paused"):
        run("cron", "pause", "nightly")
    assert seen("SELECT paused_by <> '' FROM salon_jobs_cron_entry WHERE paused_at IS NOT NULL") == [(True,)]
    assert json.loads(run("cron", "resume", "nightly", "--json")[0]) == {"resumed": "nightly"}


def test_override_and_restore_entry() -> None:
    change("INSERT INTO salon_jobs_cron_entry (name) VALUES ('nightly')")
    with pytest.raises(CommandError, match="the hour field '25' is wrong"):
        run("cron", "override", "nightly", "0 25 * * *")
    assert run("cron", "override", "nightly", "0 9 * * 1")[0] == "overridden: cron entry nightly\n"
    [(by,)] = seen("SELECT overridden_by FROM salon_jobs_cron_entry WHERE line = '0 9 * * 1'")
    assert f"0 9 * * 1 instead of 30 3 * * *, by {by} since " in run("cron")[0]
    [row] = json.loads(run("cron", "--json")[0])
    assert (row["schedule"], row["override"].startswith("instead of 30 3 * * *, by ")) == ("0 9 * * 1", True)
    assert datetime.fromisoformat(row["next_at"]).astimezone(ZoneInfo("Asia/Tokyo")).hour == 9
    assert json.loads(run("cron", "restore", "nightly", "--json")[0]) == {"restored to the line in code": "nightly"}
    with pytest.raises(CommandError, match="its line is the one in code"):
        run("cron", "restore", "nightly")


def test_list_shows_oldest_tick_not_fired() -> None:
    """It is late a minute after it was due, unless the entry is paused; the last tick may be missed."""
    registered = datetime.now(UTC) - timedelta(days=3)
    insert("cron_entry", name="nightly", registered_at=registered)
    [row] = json.loads(run("cron", "--json")[0])
    assert timedelta(0) <= datetime.fromisoformat(row["next_at"]) - registered <= timedelta(days=1)
    assert " d ago, late" in run("cron")[0]
    missed = datetime.now(UTC) - timedelta(days=2)
    insert("cron_tick", entry="nightly", tick_at=missed, outcome="missed: too late, and 1 after it")
    [_, nightly] = run("cron")[0].splitlines()
    assert nightly.endswith("2 d ago  missed  missed: too late, and 1 after it")
    change("UPDATE salon_jobs_cron_entry SET paused_at = now()")
    assert "late" not in run("cron")[0].replace("too late", "")
    assert "paused" in run("cron")[0]


def test_list_shows_schedule_and_result() -> None:
    before = datetime.now(UTC)
    [row] = json.loads(run("cron", "--json")[0])
    named = {"name": "nightly", "task": tasks.system.name, "schedule": "30 3 * * *", "timezone": "Asia/Tokyo"}
    assert named.items() <= row.items()
    assert datetime.fromisoformat(row["next_at"]) > before
    assert (row["last_tick"], row["result"]) == (None, "never fired")
    tick = datetime.now(UTC) - timedelta(hours=2)
    failed = add(state="failed", reason="attempts_exhausted", tick=tick)
    change("INSERT INTO salon_jobs_cron_entry (name) VALUES ('nightly'), ('former')")
    change("INSERT INTO salon_jobs_cron_tick (entry, tick_at, job_id) VALUES ('nightly', %s, %s)", tick, failed)
    head, former, nightly = run("cron", "list")[0].splitlines()
    assert head.split() == ["entry", "schedule", "zone", "next", "last", "result", "why"]
    assert former.split()[:4] == ["former", "not", "declared", "here"]
    assert "30 3 * * *" in nightly
    assert nightly.endswith("2 h ago  failed       failed: its last attempt failed")


def test_run_enqueues_job_without_tick() -> None:
    out, _ = run("cron", "run", "nightly")
    [(job_id, task, note)] = seen("SELECT id, task, payload->>'note' FROM salon_jobs_job")
    assert out == f"enqueued job {job_id}\n"
    assert (task, note) == (tasks.system.name, "x")
    assert seen("SELECT count(*) FROM salon_jobs_cron_tick") == [(0,)]
    shown = json.loads(run("cron", "run", "nightly", "--json")[0])
    assert shown["entry"] == "nightly"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run", "name an entry: salon_jobs cron run NAME"),
        ("resume", "name an entry: salon_jobs cron resume NAME"),
        ("override nightly", "name an entry: salon_jobs cron override NAME LINE"),
        ("pause nightly line", "name an entry: salon_jobs cron pause NAME$"),
        ("list nightly", "cron list takes no name"),
        ("run nightl", r"no cron entry 'nightl' is declared in this process; did you mean 'nightly'\?"),
    ],
)
def test_missing_or_wrong_name_is_refused(arguments: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        run("cron", *arguments.split())
