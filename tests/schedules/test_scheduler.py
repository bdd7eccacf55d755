"""Fires cron entries against the real tables: each tick once, whatever the clocks and however many schedulers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connections

from salon_jobs import cron
from salon_jobs.control import override_cron_entries, pause_cron_entries, resume_cron_entries
from salon_jobs.core.errors import CronInvalid, NotReady, OptionInvalid
from salon_jobs.core.records import ActionResult
from salon_jobs.dashboard.processes import cron as dashboard_cron
from salon_jobs.jobs import enqueue
from salon_jobs.schedules import entries
from salon_jobs.schedules.scheduler import Scheduler, fire, job_of, register
from tests import tasks
from tests.conftest import manage
from tests.metrics import of, shown
from tests.settings import url_for
from tests.support import change, elsewhere, event_fields, seen, wait_until_waiting

TICK = datetime(2026, 5, 5, 18, tzinfo=UTC)


@pytest.fixture
def crontab(database: None, own_entries: None) -> None:
    """Give the test an empty crontab."""


def _fired() -> list[tuple[Any, ...]]:
    return seen("SELECT entry, tick_at FROM salon_jobs_cron_tick ORDER BY 1, 2")


def _known_for(age: timedelta) -> datetime:
    """Make every entry known for so long; returns the database's time, to the minute."""
    register([entry.name for entry in entries.cron_entries.all()], using="default")
    change("UPDATE salon_jobs_cron_entry SET registered_at = now() - %s", age)
    [(now,)] = seen("SELECT date_trunc('minute', now())")
    return now  # type: ignore[no-any-return]


def test_tick_fires_once_for_two_schedulers(crontab: None) -> None:
    cron("* * * * *", tasks.system, payload=lambda tick: {"note": tick.isoformat()})
    _known_for(timedelta(minutes=3))
    together = threading.Barrier(2)

    def poll() -> None:
        together.wait(10)
        Scheduler(using="default").poll()

    with ThreadPoolExecutor(2) as pool:
        for polling in [elsewhere(pool, poll) for _ in range(2)]:
            polling.result(60)
    ticks = [tick for _, tick in _fired()]
    assert len(ticks) in (3, 4), "a minute may have turned meanwhile"
    jobs = seen("SELECT payload->>'note', tick FROM salon_jobs_job ORDER BY tick")
    assert jobs == [(tick.isoformat(), tick) for tick in ticks]


def test_paused_entry_owes_nothing(crontab: None) -> None:
    cron("* * * * *", tasks.system, name="a", backfill=timedelta(hours=6))
    cron("* * * * *", tasks.system, name="b")
    _known_for(timedelta(minutes=3))
    gone = ActionResult("gone", False, "no scheduler has seen such an entry")
    assert pause_cron_entries(["a", "gone"], by="ann") == [ActionResult("a", True), gone]
    assert pause_cron_entries("a") == [ActionResult("a", False, "it is paused already")]
    assert seen("SELECT paused_by FROM salon_jobs_cron_entry WHERE paused_at IS NOT NULL") == [("ann",)]
    scheduler = Scheduler(using="default")
    scheduler.poll()
    assert {entry for entry, _ in _fired()} == {"b"}
    assert of(shown(scheduler.samples()), "cron_overdue_seconds", entry="a") == 0
    assert resume_cron_entries(["a"]) == [ActionResult("a", True)]
    assert resume_cron_entries(["a"]) == [ActionResult("a", False, "it is not paused")]
    [(resumed,)] = seen("SELECT last_tick_at FROM salon_jobs_cron_entry WHERE name = 'a'")
    scheduler.poll()
    assert all(tick > resumed for entry, tick in _fired() if entry == "a")
    change("UPDATE salon_jobs_cron_entry SET last_tick_at = last_tick_at - interval '2 minutes' WHERE name = 'a'")
    scheduler.poll()
    assert {entry for entry, _ in _fired()} == {"a", "b"}


RARELY = "0 0 29 2 *"


def _later(minutes: int) -> None:
    """Let time pass for every entry: its last tick is that much longer ago."""
    change("UPDATE salon_jobs_cron_entry SET last_tick_at = last_tick_at - make_interval(mins => %s)", minutes)


def test_schedulers_follow_overridden_line(crontab: None) -> None:
    cron(RARELY, tasks.system, name="a", backfill=timedelta(hours=6))
    known = _known_for(timedelta(hours=3))
    schedulers = [Scheduler(using="default"), Scheduler(using="default")]
    for scheduler in schedulers:
        scheduler.poll()
    gone = ActionResult("gone", False, "no scheduler has seen such an entry")
    assert override_cron_entries(["a", "gone"], " *  * * * * ", by="ann") == [ActionResult("a", True), gone]
    assert override_cron_entries(["a"], "* * * * *") == [ActionResult("a", False, "that is its line")]
    assert seen("SELECT line, overridden_by, overridden_at > now() - interval '1 m' FROM salon_jobs_cron_entry") == [
        ("* * * * *", "ann", True)
    ]
    schedulers[0].poll()
    assert all(tick >= known for _, tick in _fired()), "it owes no tick from before"
    _later(2)
    together = threading.Barrier(2)

    def poll(scheduler: Scheduler) -> None:
        together.wait(10)
        scheduler.poll()

    with ThreadPoolExecutor(2) as pool:
        for polling in [elsewhere(pool, partial(poll, each)) for each in schedulers]:
            polling.result(60)
    ticks = [tick for _, tick in _fired()]
    assert len(ticks) in (2, 3), "a minute may have turned meanwhile"
    assert seen("SELECT tick FROM salon_jobs_job ORDER BY 1") == [(tick,) for tick in ticks]
    assert of(shown(schedulers[0].samples()), "cron_overdue_seconds", entry="a") < 60
    assert override_cron_entries(["a"], None, by="bob") == [ActionResult("a", True)]
    assert override_cron_entries(["a"], None) == [ActionResult("a", False, "its line is the one in code")]
    assert seen("SELECT line, overridden_by, overridden_at FROM salon_jobs_cron_entry") == [("", "", None)]
    _later(5)
    for scheduler in schedulers:
        scheduler.poll()
    assert [tick for _, tick in _fired()] == ticks, "a line that is gone fires nothing, late or not"


@pytest.mark.parametrize("meanwhile", [partial(override_cron_entries, line=RARELY), pause_cron_entries])
def test_change_after_read_stops_tick(crontab: None, meanwhile: Any) -> None:
    def payload(tick: datetime) -> dict[str, Any]:
        # The scheduler has read the entry, and found the tick due.
        with ThreadPoolExecutor(1) as pool:
            elsewhere(pool, lambda: meanwhile(["a"])).result(10)
        return {}

    cron("* * * * *", tasks.system, name="a", payload=payload)
    _known_for(timedelta(minutes=3))
    Scheduler(using="default").poll()
    assert _fired() == []
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]


def test_tick_waits_for_uncommitted_change(crontab: None, caplog: pytest.LogCaptureFixture) -> None:
    cron("* * * * *", tasks.system, name="a")
    _known_for(timedelta(minutes=3))
    with psycopg.connect(url_for("jobs_operator")) as operator:
        operator.execute("UPDATE salon_jobs_cron_entry SET line = %s", [RARELY])
        Scheduler(using="default").poll()
        assert [fields["entry"] for fields in event_fields(caplog, "cron_held_up")] == ["a"]
    Scheduler(using="default").poll()
    assert _fired() == []


def test_change_waits_for_firing_tick(crontab: None) -> None:
    entry = cron("* * * * *", tasks.system, name="a")
    now = _known_for(timedelta(minutes=3))
    job = job_of(entry, now)
    with ThreadPoolExecutor(1) as pool:
        changing: list[Any] = []

        def add_job() -> Any:
            changing.append(elsewhere(pool, lambda: override_cron_entries(["a"], "*/1 * * * *")))
            wait_until_waiting()
            return enqueue.add(job, using="default")

        assert fire("a", now, add_job, using="default")
        assert changing[0].result(10) == [ActionResult("a", True)]
    Scheduler(using="default").poll()
    assert _fired()[0] == ("a", now)
    assert len(_fired()) <= 2, "a minute may have turned meanwhile"


def test_deployment_keeps_override(crontab: None) -> None:
    cron(RARELY, tasks.system, name="a")
    _known_for(timedelta(hours=3))
    override_cron_entries(["a"], "*/5 * * * *", by="ann")
    entries.cron_entries.clear()
    cron("* * * * *", tasks.system, name="a", timezone="Asia/Tokyo", backfill=timedelta(hours=1))
    _later(12)
    Scheduler(using="default").poll()
    ticks = [tick for _, tick in _fired()]
    assert len(ticks) in (2, 3)
    assert all(tick.minute % 5 == 0 for tick in ticks)
    [shown_entry] = [each for each in dashboard_cron(using="default") if each.name == "a"]
    assert (shown_entry.schedule, shown_entry.timezone) == ("*/5 * * * *", "Asia/Tokyo")
    assert shown_entry.override.startswith("instead of * * * * *, by ann since ")
    at = ticks[0] + timedelta(minutes=1)
    assert Scheduler(using="default").run_at(at) == 0, "--at follows the line in effect, too"
    assert Scheduler(using="default").run_at(at + timedelta(minutes=4)) in (0, 1)


def test_invalid_line_stops_no_other_entry(crontab: None, caplog: pytest.LogCaptureFixture) -> None:
    cron("* * * * *", tasks.system, name="a")
    cron("* * * * *", tasks.system, name="b")
    _known_for(timedelta(minutes=3))
    change("UPDATE salon_jobs_cron_entry SET line = 'often' WHERE name = 'a'")
    Scheduler(using="default").poll()
    assert {entry for entry, _ in _fired()} == {"b"}
    assert [fields["entry"] for fields in event_fields(caplog, "cron_failed")] == ["a"]
    [broken, other] = dashboard_cron(using="default")
    assert (broken.schedule, broken.next_at, other.schedule, other.invalid) == ("often", None, "* * * * *", "")
    assert broken.invalid.startswith("cron line 'often' has 1 fields")


@pytest.mark.parametrize(
    ("line", "by", "error", "message"),
    [
        ("0 25 * * *", "", CronInvalid, "the hour field '25' is wrong"),
        ("@daily", "", CronInvalid, "write '0 0 \\* \\* \\*'"),
        ("", "", CronInvalid, "has 0 fields; write five"),
        (",".join("0" * 200) + " 0 * * *", "", OptionInvalid, "line"),
        ("0 3 * * *", "x" * 256, OptionInvalid, "by"),
    ],
)
def test_override_is_checked(crontab: None, line: str, by: str, error: type[Exception], message: str) -> None:
    cron("* * * * *", tasks.system, name="a")
    _known_for(timedelta(minutes=3))
    with pytest.raises(error, match=message):
        override_cron_entries(["a"], line, by=by)
    assert seen("SELECT line FROM salon_jobs_cron_entry") == [("",)]


def test_new_entry_owes_no_ticks(crontab: None) -> None:
    cron("* * * * *", tasks.system, backfill=timedelta(hours=6))
    Scheduler(using="default").poll()
    assert _fired() == []


def test_backfill_reaches_as_declared(crontab: None, caplog: pytest.LogCaptureFixture) -> None:
    cron("*/10 * * * *", tasks.system, backfill=timedelta(hours=1), name="hour")
    cron("*/10 * * * *", tasks.system, name="none")
    known_since = _known_for(timedelta(hours=3)) - timedelta(hours=3)
    Scheduler(using="default").poll()
    counts = dict(seen("SELECT entry, count(*) FROM salon_jobs_cron_tick GROUP BY 1"))
    assert counts["hour"] in (6, 7)
    assert counts.get("none", 0) in (0, 1), "a tick of the last five minutes is not late"
    missed = event_fields(caplog, "cron_missed")
    assert [fields["entry"] for fields in missed] == ["hour", "none"]
    for fields in missed:
        assert timedelta(0) <= fields["first"] - known_since <= timedelta(minutes=10), "--at fires it all the same"
    caplog.clear()
    Scheduler(using="default").poll()
    assert "cron_missed" not in caplog.text, "what was given up is reported once"
    assert dict(seen("SELECT entry, count(*) FROM salon_jobs_cron_tick GROUP BY 1"))["hour"] in (counts["hour"], 7)


def test_clock_stepping_back_fires_nothing_again(crontab: None) -> None:
    cron("* * * * *", tasks.system)
    _known_for(timedelta(minutes=3))
    Scheduler(using="default").poll()
    before = _fired()
    change("UPDATE salon_jobs_cron_entry SET last_tick_at = last_tick_at - interval '2 minutes'")
    Scheduler(using="default").poll()
    assert _fired()[: len(before)] == before
    assert len(_fired()) - len(before) <= 1, "a minute may have turned meanwhile"


def test_lost_rows_are_registered_again(crontab: None) -> None:
    """After a failover; the lost tick fires."""
    cron("* * * * *", tasks.system, name="a")
    cron("* * * * *", tasks.system, name="b")
    _known_for(timedelta(minutes=3))
    scheduler = Scheduler(using="default")
    scheduler.poll()
    before = _fired()
    assert {entry for entry, _ in before} == {"a", "b"}
    change("DELETE FROM salon_jobs_cron_entry WHERE name = 'a'")
    change("DELETE FROM salon_jobs_cron_tick WHERE entry = 'b'")
    change("UPDATE salon_jobs_cron_entry SET last_tick_at = NULL WHERE name = 'b'")
    scheduler.poll()
    assert seen("SELECT name FROM salon_jobs_cron_entry ORDER BY 1") == [("a",), ("b",)]
    assert set(before) <= set(_fired())


def test_failing_payload_is_retried(crontab: None, caplog: pytest.LogCaptureFixture) -> None:
    """It stops no other entry."""
    works = False

    def payload(tick: datetime) -> dict[str, Any]:
        if not works:
            raise ZeroDivisionError
        return {"note": "works"}

    cron("* * * * *", tasks.system, payload=payload, name="a-broken")
    cron("* * * * *", tasks.system, payload=lambda _: {"wrong": 1}, name="b-invalid")
    cron("* * * * *", tasks.system, name="c-fine")
    _known_for(timedelta(minutes=1))
    scheduler = Scheduler(using="default")
    for _ in range(2):
        scheduler.poll()
    assert {entry for entry, _ in _fired()} == {"c-fine"}
    assert len(event_fields(caplog, "cron_failed")) in (2, 3, 4), "once a tick"
    works = True
    scheduler.poll()
    assert {entry for entry, _ in _fired()} == {"a-broken", "c-fine"}
    for _ in range(2):
        with pytest.raises(CronInvalid, match=r"2026-05-05T18:00:00\+00:00: b-invalid$"):
            scheduler.run_at(TICK)
    assert {("a-broken", TICK), ("c-fine", TICK)} <= {*_fired()}


def _query_nonsense(tick: datetime) -> dict[str, Any]:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT nonsense")
    return {}


def _lose_the_database(tick: datetime) -> dict[str, Any]:
    raise OperationalError("the ledger's database does not answer")


@pytest.mark.parametrize(
    ("payload", "error"), [(_query_nonsense, "nonsense"), (_lose_the_database, "the ledger's database")]
)
def test_payload_query_error_stops_no_other_entry(
    crontab: None, caplog: pytest.LogCaptureFixture, payload: Any, error: str
) -> None:
    cron("* * * * *", tasks.system, payload=payload, name="a-broken")
    cron("* * * * *", tasks.system, name="b-fine")
    _known_for(timedelta(minutes=1))
    Scheduler(using="default").poll()
    assert {entry for entry, _ in _fired()} == {"b-fine"}
    [complaint, *_] = [r for r in caplog.records if getattr(r, "event", "") == "cron_failed"]
    assert error in str(complaint.exc_info)


def test_held_key_delays_only_its_entry(crontab: None, caplog: pytest.LogCaptureFixture) -> None:
    cron("* * * * *", tasks.keyed_system, payload={"note": "held"}, name="a-held")
    cron("* * * * *", tasks.system, name="b-free")
    _known_for(timedelta(minutes=1))
    scheduler = Scheduler(using="default")
    # It ends by itself only so that a scheduler that waits for it does not do so for ever.
    with psycopg.connect(url_for(None), options="-c idle_in_transaction_session_timeout=20s") as other:
        other.execute("INSERT INTO salon_jobs_job (task, job_key) VALUES ('test-keyed-system', 'k:held')")
        for _ in range(2):
            scheduler.poll()
            assert {entry for entry, _ in _fired()} == {"b-free"}
        with pytest.raises(CronInvalid, match=r"a-held$"):
            scheduler.run_at(TICK)
    held = event_fields(caplog, "cron_held_up")
    ticks = {fields["tick"] for fields in held}
    assert 0 < len(ticks) == len(held), "once a tick"
    assert {(fields["entry"], fields["error"]) for fields in held} == {
        ("a-held", "canceling statement due to lock timeout")
    }
    assert "cron_failed" not in caplog.text
    scheduler.poll()
    assert {entry for entry, _ in _fired()} == {"a-held", "b-free"}
    assert of(shown(scheduler.samples()), "cron_ticks_total", entry="a-held", outcome="failed") == 0


def test_missed_ticks_are_reported_once(crontab: None, caplog: pytest.LogCaptureFixture) -> None:
    works = False

    def payload(tick: datetime) -> dict[str, Any]:
        if not works:
            raise ZeroDivisionError
        return {"note": "works"}

    cron("* * * * *", tasks.system, payload=payload)
    _known_for(timedelta(minutes=30))
    scheduler = Scheduler(using="default")
    for _ in range(5):
        scheduler.poll()
    assert len(event_fields(caplog, "cron_missed")) in (1, 2), "a minute may have turned meanwhile"
    count = of(shown(scheduler.samples()), "cron_ticks_total", entry="test-system", outcome="missed")
    assert 24 <= count <= 26
    works = True
    scheduler.poll()
    assert len(_fired()) in (5, 6), "the late ones that are not too late"


def test_given_instant_fires_once(crontab: None) -> None:
    """It leaves the clock alone."""
    cron("0 18 * * *", tasks.system, name="nightly")
    cron("*/5 * * * *", tasks.system, name="often")
    cron("1 18 * * *", tasks.system, name="other")
    assert Scheduler(using="default").run_at(TICK) == 2
    assert Scheduler(using="default").run_at(TICK) == 0
    assert _fired() == [("nightly", TICK), ("often", TICK)]
    assert seen("SELECT DISTINCT last_tick_at FROM salon_jobs_cron_entry") == [(None,)]
    assert Scheduler(using="default").run_at(TICK + timedelta(seconds=1)) == 0


def test_job_and_tick_are_one_transaction(crontab: None) -> None:
    entry = cron("0 18 * * *", tasks.system, name="nightly")

    def refuse() -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fire(entry.name, TICK, refuse, advance=False, using="default")
    assert _fired() == []


def test_command_fires_given_instant_once(database: None) -> None:
    """Three in the morning in Japan."""
    done = manage("runscheduler", "--burst", "--at", "2026-05-06T03:00:00+09:00")
    assert done.returncode == 0, done.stderr
    assert "2 entries fired" in done.stderr
    assert seen("SELECT payload->>'target_date' FROM salon_jobs_job WHERE task = 'aggregate-daily-sales'") == [
        ("2026-05-05",)
    ]
    assert ("aggregate-daily-sales", TICK) in _fired()
    assert [Scheduler(using="default").run_at(at) for at in (TICK, TICK + timedelta(seconds=1))] == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--burst", "--at", "yesterday"), "not an ISO 8601 instant"),
        (("--burst", "--at", "2026-05-05T18:00:00"), "instant with a time zone"),
        (("--at", "2026-05-05T18:00:00Z"), "--at goes with --burst"),
        (("--health-addr", "8081"), "expected HOST:PORT"),
    ],
)
def test_bad_arguments_say_what_is_expected(arguments: tuple[str, ...], expected: str) -> None:
    with pytest.raises(CommandError, match=expected):
        call_command("runscheduler", *arguments)


def test_scheduler_measures_lateness_and_outcomes(crontab: None) -> None:
    fails = [True]

    def payload(tick: datetime) -> dict[str, Any]:
        if fails[0]:
            raise ValueError("not yet")
        return {"note": tick.isoformat()}

    cron("* * * * *", tasks.system, payload=payload, name="late")
    cron("* * * * *", tasks.system, payload=lambda tick: {"note": tick.isoformat()}, name="good")
    now = _known_for(timedelta(minutes=4))
    scheduler = Scheduler(using="default")
    scheduler.poll()
    values = shown(scheduler.samples())
    assert of(values, "cron_ticks_total", entry="late", outcome="failed") == 1
    assert of(values, "cron_ticks_total", entry="good", outcome="fired") >= 4
    assert of(values, "cron_overdue_seconds", entry="late") >= 180
    assert of(values, "cron_overdue_seconds", entry="good") == 0
    assert of(values, "cron_last_tick_timestamp_seconds", entry="good") >= now.timestamp()
    assert 0 <= of(values, "cron_lateness_seconds", entry="good") < 60
    with pytest.raises(NotReady, match=r"cron entry 'late' has had a due tick .*; at most 120 s are allowed"):
        scheduler.facts()
    fails[0] = False
    scheduler.poll()
    values = shown(scheduler.samples())
    assert of(values, "cron_overdue_seconds", entry="late") == 0
    assert of(values, "cron_ticks_total", entry="late", outcome="fired") >= 4
    assert scheduler.facts()["cron_entries"] == 2
