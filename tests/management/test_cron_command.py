"""Runs ``salon_jobs cron`` as operators do."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.core.management import CommandError

from salon_jobs.schedules.entries import cron, cron_entries
from tests import tasks
from tests.management.operator import add, run
from tests.support import change, seen


@pytest.fixture(autouse=True)
def entry(database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Declare one entry, and no other."""
    monkeypatch.setattr(cron_entries, "_by_name", {})
    cron("30 3 * * *", tasks.system, name="nightly", timezone="Asia/Tokyo", payload={"note": "x"})


def test_an_entry_is_paused_and_resumed() -> None:
    change("INSERT INTO salon_jobs_cron_entry (name) VALUES ('nightly')")
    assert run("cron", "pause", "nightly")[0] == "paused: cron entry nightly\n"
    with pytest.raises(CommandError, match="was not paused: it is paused"):
        run("cron", "pause", "nightly")
    assert seen("SELECT paused_by <> '' FROM salon_jobs_cron_entry WHERE paused_at IS NOT NULL") == [(True,)]
    assert json.loads(run("cron", "resume", "nightly", "--json")[0]) == {"resumed": "nightly"}
    with pytest.raises(CommandError, match="name an entry: salon_jobs cron resume NAME"):
        run("cron", "resume")


def test_override_and_restore_an_entry() -> None:
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
    with pytest.raises(CommandError, match="name an entry: salon_jobs cron override NAME LINE"):
        run("cron", "override", "nightly")
    with pytest.raises(CommandError, match=r"name an entry: salon_jobs cron pause NAME$"):
        run("cron", "pause", "nightly", "0 9 * * 1")


def test_the_list_shows_schedule_zone_ticks_and_result() -> None:
    before = datetime.now(UTC)
    [row] = json.loads(run("cron", "--json")[0])
    assert (row["name"], row["task"], row["schedule"], row["timezone"]) == (
        "nightly",
        tasks.system.name,
        "30 3 * * *",
        "Asia/Tokyo",
    )
    assert datetime.fromisoformat(row["next_at"]) > before
    assert (row["last_tick"], row["result"]) == (None, "never fired")
    tick = datetime.now(UTC) - timedelta(hours=2)
    failed = add(state="failed", reason="attempts_exhausted", tick=tick)
    change("INSERT INTO salon_jobs_cron_entry (name) VALUES ('nightly'), ('former')")
    change("INSERT INTO salon_jobs_cron_tick (entry, tick_at, job_id) VALUES ('nightly', %s, %s)", tick, failed)
    head, former, nightly = run("cron", "list")[0].splitlines()
    assert head.split() == ["entry", "schedule", "zone", "next", "last", "result", "note"]
    assert former.split()[:4] == ["former", "not", "declared", "here"]
    assert "30 3 * * *" in nightly
    assert nightly.endswith("2 h ago  failed       failed: attempts_exhausted")


def test_run_enqueues_the_entrys_job_now_and_leaves_its_ticks_alone() -> None:
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
        (("run",), "name an entry: salon_jobs cron run NAME"),
        (("list", "nightly"), "cron list takes no name"),
        (("run", "nightl"), "no cron entry 'nightl' is declared in this process; did you mean 'nightly'?"),
    ],
)
def test_a_name_that_is_missing_wrong_or_too_much_is_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError) as raised:
        run("cron", *arguments)
    assert message in str(raised.value)
