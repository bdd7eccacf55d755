"""Fires cron entries against the real tables: each tick once, whatever the clocks and however many schedulers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connections

from salon_jobs import cron, schedule
from salon_jobs.control import (
    override_cron_entries,
    pause_cron_entries,
    resume_cron_entries,
    run_cron_entry,
    run_schedule,
)
from salon_jobs.core.errors import CronInvalid, NotReady, OptionInvalid
from salon_jobs.core.records import ActionResult
from salon_jobs.dashboard.processes import cron as dashboard_cron
from salon_jobs.jobs import enqueue
from salon_jobs.schedules import entries
from salon_jobs.schedules.scheduler import Scheduler, fire, job_of, register
from tests import tasks
from tests.jobs.threads import together
from tests.metrics import of, shown
from tests.settings import url_for
from tests.support import change, elsewhere, event_fields, in_thread, moved_to, run_due, seen, wait_until_waiting
from tests.waiting import LIMIT_S

TICK = datetime(2026, 5, 5, 18, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
# Only so that a scheduler that waits for such a session does not do so for ever.
ENDS_BY_ITSELF = f"-c idle_in_transaction_session_timeout={LIMIT_S:.0f}s"


class Clock(Scheduler):
    """Scheduler whose database says that it is ``now``."""

    def __init__(self, now: datetime) -> None:
        super().__init__(using="default")
        self.now = now

    def _read_entries(self) -> Any:
        return self.now, super()._read_entries()[1]

    def fired_after_poll(self) -> set[str]:
        """Poll; return which entries have fired so far."""
        self.poll()
        return {entry for entry, _ in _fired()}


@pytest.fixture
def crontab(database: None, own_entries: None) -> None:
    """Give the test an empty crontab."""


def _fired() -> list[tuple[Any, ...]]:
    return seen("SELECT entry, tick_at FROM salon_jobs_cron_tick WHERE outcome NOT LIKE 'missed%%' ORDER BY 1, 2")


def _known_for(age: timedelta, now: datetime | None = None) -> Clock:
    """Make every entry known for so long; return a scheduler at the last half minute, which does not go on."""
    register([entry.name for entry in entries.cron_entries.all()], using="default")
    at = now or (seen("SELECT now()")[0][0] - MINUTE / 2).replace(second=30, microsecond=0)
    change("UPDATE salon_jobs_cron_entry SET registered_at = %s", at - age)
    return Clock(at)


def _poll_together(*schedulers: Scheduler) -> None:
    together(*(each.poll for each in schedulers))


def _ticks(now: datetime, count: int) -> list[datetime]:
    """Return so many whole minutes up to this time."""
    last = now.replace(second=0, microsecond=0)
    return [last - minutes * MINUTE for minutes in reversed(range(count))]


def test_tick_fires_once_for_two_schedulers(crontab: None) -> None:
    cron("* * * * *", tasks.system, payload=lambda tick: {"note": tick.isoformat()})
    now = _known_for(3 * MINUTE).now
    _poll_together(Clock(now), Clock(now))
    ticks = _ticks(now, 3)
    assert [tick for _, tick in _fired()] == ticks
    assert seen("SELECT payload->>'note', tick FROM salon_jobs_job ORDER BY tick") == [
        (f"{t:%Y-%m-%dT%H:%M:%S+00:00}", t) for t in ticks
    ]


GONE = ActionResult("gone", False, "no scheduler has seen such an entry")


def test_paused_entry_owes_nothing(crontab: None) -> None:
    for name in ("a", "b"):
        cron("* * * * *", tasks.system, name=name, backfill=timedelta(hours=6))
    scheduler = _known_for(3 * MINUTE)
    assert pause_cron_entries(["a", "gone"], by="ann") == [ActionResult("a", True), GONE]
    assert pause_cron_entries("a") == [ActionResult("a", False, "it is paused already")]
    assert seen("SELECT paused_by FROM salon_jobs_cron_entry WHERE paused_at IS NOT NULL") == [("ann",)]
    assert scheduler.fired_after_poll() == {"b"}
    assert of(shown(scheduler.samples()), "cron_overdue_seconds", entry="a") == 0
    assert resume_cron_entries(["a"]) == [ActionResult("a", True)]
    assert resume_cron_entries(["a"]) == [ActionResult("a", False, "it is not paused")]
    assert scheduler.fired_after_poll() == {"b"}
    [(resumed,)] = seen("SELECT last_tick_at FROM salon_jobs_cron_entry WHERE name = 'a'")
    scheduler.now = resumed + MINUTE
    assert scheduler.fired_after_poll() == {"a", "b"}
    assert all(tick > resumed for entry, tick in _fired() if entry == "a")


RARELY = "0 0 29 2 *"


def test_schedulers_follow_overridden_line(crontab: None) -> None:
    """They follow it, and the way back, without a restart."""
    cron(RARELY, tasks.system, name="a", backfill=timedelta(hours=6))
    first = _known_for(timedelta(hours=3))
    schedulers = [first, Clock(first.now)]
    for scheduler in schedulers:
        scheduler.poll()
    assert override_cron_entries(["a", "gone"], " *  * * * * ", by="ann") == [ActionResult("a", True), GONE]
    assert override_cron_entries(["a"], "* * * * *") == [ActionResult("a", False, "that is its line")]
    overridden = (
        "SELECT line, overridden_by, overridden_at > now() - interval '1 m', last_tick_at FROM salon_jobs_cron_entry"
    )
    [(*how, since)] = seen(overridden)
    assert how == ["* * * * *", "ann", True]
    assert first.fired_after_poll() == set(), "it owes no tick from before"
    for scheduler in schedulers:
        scheduler.now = since + 2 * MINUTE
    _poll_together(*schedulers)
    ticks = _ticks(first.now, 2)
    assert [tick for _, tick in _fired()] == ticks
    assert seen("SELECT tick FROM salon_jobs_job ORDER BY 1") == [(tick,) for tick in ticks]
    assert of(shown(first.samples()), "cron_overdue_seconds", entry="a") == 0
    assert override_cron_entries(["a"], None, by="bob") == [ActionResult("a", True)]
    assert override_cron_entries(["a"], None) == [ActionResult("a", False, "its line is the one in code")]
    assert seen("SELECT line, overridden_by, overridden_at FROM salon_jobs_cron_entry") == [("", "", None)]
    for scheduler in schedulers:
        scheduler.now += 5 * MINUTE
        scheduler.poll()
    assert [tick for _, tick in _fired()] == ticks, "a line that is gone fires nothing, late or not"


@pytest.mark.parametrize("meanwhile", [partial(override_cron_entries, line=RARELY), pause_cron_entries])
def test_change_after_read_stops_tick(crontab: None, meanwhile: Any) -> None:
    def payload(tick: datetime) -> dict[str, Any]:
        # The scheduler has read the entry, and found the tick due.
        in_thread(lambda: meanwhile(["a"]))
        return {}

    cron("* * * * *", tasks.system, name="a", payload=payload)
    assert _known_for(3 * MINUTE).fired_after_poll() == set()
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]


def test_tick_waits_for_uncommitted_change(crontab: None, caplog: pytest.LogCaptureFixture) -> None:
    cron("* * * * *", tasks.system, name="a")
    scheduler = _known_for(3 * MINUTE)
    with psycopg.connect(url_for("jobs_operator")) as operator:
        operator.execute("UPDATE salon_jobs_cron_entry SET line = %s", [RARELY])
        scheduler.poll()
        assert [fields["entry"] for fields in event_fields(caplog, "cron_held_up")] == ["a"]
    assert scheduler.fired_after_poll() == set()


def test_change_waits_for_firing_tick(crontab: None) -> None:
    """The tick fires once."""
    entry = cron("* * * * *", tasks.system, name="a")
    scheduler = _known_for(3 * MINUTE)
    [*_, tick] = _ticks(scheduler.now, 1)
    with ThreadPoolExecutor(1) as pool:
        changing: list[Any] = []

        def add_job() -> Any:
            changing.append(elsewhere(pool, lambda: override_cron_entries(["a"], "*/1 * * * *")))
            wait_until_waiting()
            return enqueue.add(job_of(entry, tick), using="default")

        assert fire("a", tick, add_job, using="default")
        assert changing[0].result(LIMIT_S) == [ActionResult("a", True)]
    scheduler.poll()
    assert _fired() == [("a", tick)]


def test_deployment_keeps_override(crontab: None) -> None:
    """A line that is changed in code does not end it."""
    cron(RARELY, tasks.system, name="a")
    _known_for(timedelta(hours=3))
    override_cron_entries(["a"], "*/5 * * * *", by="ann")
    entries.cron_entries.clear()
    cron("* * * * *", tasks.system, name="a", timezone="Asia/Tokyo", backfill=timedelta(hours=1))
    [(since,)] = seen("SELECT last_tick_at FROM salon_jobs_cron_entry")
    scheduler = Clock(since + 10 * MINUTE)
    scheduler.poll()
    ticks = [tick for _, tick in _fired()]
    assert [tick.minute % 5 for tick in ticks] == [0, 0]
    [shown_entry] = [each for each in dashboard_cron(using="default") if each.name == "a"]
    assert (shown_entry.schedule, shown_entry.timezone) == ("*/5 * * * *", "Asia/Tokyo")
    assert shown_entry.override.startswith("instead of * * * * *, by ann since ")
    # --at follows the line in effect, too.
    assert [scheduler.run_at(ticks[-1] + minutes * MINUTE) for minutes in (1, 5)] == [0, 1]


def test_invalid_line_stops_no_other_entry(crontab: None, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a", "b"):
        cron("* * * * *", tasks.system, name=name)
    scheduler = _known_for(3 * MINUTE)
    change("UPDATE salon_jobs_cron_entry SET line = 'often' WHERE name = 'a'")
    assert scheduler.fired_after_poll() == {"b"}
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
    _known_for(3 * MINUTE)
    with pytest.raises(error, match=message):
        override_cron_entries(["a"], line, by=by)
    assert seen("SELECT line FROM salon_jobs_cron_entry") == [("",)]


def test_new_entry_owes_no_ticks(crontab: None) -> None:
    cron("* * * * *", tasks.system, backfill=timedelta(hours=6))
    [(now,)] = seen("SELECT now()")
    assert Clock(now).fired_after_poll() == set()


def test_backfill_reaches_as_declared(crontab: None, caplog: pytest.LogCaptureFixture) -> None:
    cron("*/10 * * * *", tasks.system, backfill=timedelta(hours=1), name="hour")
    cron("*/10 * * * *", tasks.system, name="none")
    scheduler = _known_for(timedelta(hours=3), TICK + 6 * MINUTE)
    scheduler.poll()
    assert _fired() == [("hour", TICK - minutes * MINUTE) for minutes in range(50, -1, -10)]
    # --at fires the first one all the same.
    first = TICK - timedelta(minutes=170)
    assert event_fields(caplog, "cron_missed") == [
        {"entry": "hour", "missed": 12, "first": first},
        {"entry": "none", "missed": 18, "first": first},
    ]
    caplog.clear()
    scheduler.poll()
    assert "cron_missed" not in caplog.text, "what was given up is reported once"
    assert len(_fired()) == 6


def test_clock_stepping_back_fires_nothing_again(crontab: None) -> None:
    cron("* * * * *", tasks.system)
    scheduler = _known_for(3 * MINUTE)
    scheduler.poll()
    before = _fired()
    change("UPDATE salon_jobs_cron_entry SET last_tick_at = last_tick_at - interval '2 minutes'")
    scheduler.poll()
    assert _fired() == before
    assert len(before) == 3


def test_lost_rows_are_registered_again(crontab: None) -> None:
    """A failover may lose them; the lost tick fires."""
    for name in ("a", "b"):
        cron("* * * * *", tasks.system, name=name)
    scheduler = _known_for(3 * MINUTE)
    scheduler.poll()
    before = _fired()
    assert {entry for entry, _ in before} == {"a", "b"}
    change("DELETE FROM salon_jobs_cron_entry WHERE name = 'a'")
    change("DELETE FROM salon_jobs_cron_tick WHERE entry = 'b'")
    change("UPDATE salon_jobs_cron_entry SET last_tick_at = NULL WHERE name = 'b'")
    scheduler.poll()
    assert seen("SELECT name FROM salon_jobs_cron_entry ORDER BY 1") == [("a",), ("b",)]
    assert _fired() == before


class Payload:
    """Payload that cannot be made until it works."""

    works = False

    def __call__(self, tick: datetime) -> dict[str, Any]:
        if not self.works:
            raise ZeroDivisionError
        return {"note": "works"}


def test_failing_payload_is_retried(crontab: None, caplog: pytest.LogCaptureFixture) -> None:
    """It stops no other entry."""
    payload = Payload()
    cron("* * * * *", tasks.system, payload=payload, name="a-broken")
    cron("* * * * *", tasks.system, payload=lambda _: {"wrong": 1}, name="b-invalid")
    cron("* * * * *", tasks.system, name="c-fine")
    scheduler = _known_for(MINUTE)
    for _ in range(2):
        assert scheduler.fired_after_poll() == {"c-fine"}
    assert len(event_fields(caplog, "cron_failed")) == 2, "once a tick"
    payload.works = True
    assert scheduler.fired_after_poll() == {"a-broken", "c-fine"}
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
    assert _known_for(MINUTE).fired_after_poll() == {"b-fine"}
    [complaint] = [r for r in caplog.records if getattr(r, "event", "") == "cron_failed"]
    assert error in str(complaint.exc_info)


def test_held_key_delays_only_its_entry(crontab: None, caplog: pytest.LogCaptureFixture) -> None:
    cron("* * * * *", tasks.keyed_system, payload={"note": "held"}, name="a-held")
    cron("* * * * *", tasks.system, name="b-free")
    scheduler = _known_for(MINUTE)
    with psycopg.connect(url_for(None), options=ENDS_BY_ITSELF) as other:
        other.execute("INSERT INTO salon_jobs_job (task, job_key) VALUES ('test-keyed-system', 'k:held')")
        for _ in range(2):
            assert scheduler.fired_after_poll() == {"b-free"}
        with pytest.raises(CronInvalid, match=r"a-held$"):
            scheduler.run_at(TICK)
    held = event_fields(caplog, "cron_held_up")
    assert len({fields["tick"] for fields in held}) == len(held) == 2, "once a tick"
    assert {(fields["entry"], fields["error"]) for fields in held} == {
        ("a-held", "canceling statement due to lock timeout")
    }
    assert "cron_failed" not in caplog.text
    assert scheduler.fired_after_poll() == {"a-held", "b-free"}
    assert of(shown(scheduler.samples()), "cron_ticks_total", entry="a-held", outcome="failed") == 0


def _outcomes(entry: str) -> list[tuple[Any, ...]]:
    return seen("SELECT tick_at, job_id, outcome FROM salon_jobs_cron_tick WHERE entry = %s ORDER BY 1", entry)


def test_unfinished_job_prevents_overlap(crontab: None, process_id: int, caplog: pytest.LogCaptureFixture) -> None:
    """Queued, running and waiting for a retry alike; another entry of the task is not affected."""
    caplog.set_level("INFO", "salon_jobs")
    cron("* * * * *", tasks.system, name="alone", overlap=False)
    cron("* * * * *", tasks.system, name="beside")
    scheduler = _known_for(2 * MINUTE)
    [_, second] = _ticks(scheduler.now, 2)
    scheduler.poll()
    [(_, job, _), (_, none, outcome)] = _outcomes("alone")
    assert (none, outcome) == (None, "skipped: the last one is not done")
    assert [job_id is None for _, job_id, _ in _outcomes("beside")] == [False, False]
    assert event_fields(caplog, "cron_skipped") == [{"entry": "alone", "tick": second, "outcome": outcome}]
    samples = shown(scheduler.samples())
    assert of(samples, "cron_ticks_total", entry="alone", outcome="skipped") == 1
    [entry] = [each for each in dashboard_cron(using="owner") if each.name == "alone"]
    assert (entry.result, entry.last_tick, entry.failed) == (outcome, second, False)
    change(f"UPDATE salon_jobs_job SET {moved_to('running')} WHERE id = %s", job)
    scheduler.now += MINUTE
    scheduler.poll()
    assert [outcome for *_, outcome in _outcomes("alone")][-1].startswith("skipped")
    assert scheduler.run_at(second) == 1, "somebody asked for it"
    change("DELETE FROM salon_jobs_job WHERE id = %s", job)
    scheduler.now += MINUTE
    scheduler.poll()
    assert _outcomes("alone")[-1][1] is None, "the one that somebody asked for is not done"
    change("DELETE FROM salon_jobs_job")
    scheduler.now += MINUTE
    scheduler.poll()
    assert _outcomes("alone")[-1][1] is not None


def test_unfinished_run_by_hand_prevents_overlap(crontab: None) -> None:
    """Not that of a schedule of the same task, nor a job that no tick has added."""
    cron("* * * * *", tasks.system, name="alone", overlap=False)
    scheduler = _known_for(MINUTE)
    schedule(tasks.system.call(note="n"), every=timedelta(days=1), key="k")
    run_schedule("k")
    tasks.system.enqueue(note="n")
    by_hand = run_cron_entry("alone")
    scheduler.poll()
    assert [outcome for *_, outcome in _outcomes("alone")] == ["skipped: the last one is not done"]
    change("DELETE FROM salon_jobs_job WHERE id = %s", by_hand.id)
    scheduler.now += MINUTE
    scheduler.poll()
    assert _outcomes("alone")[-1][1] is not None


def test_waiting_job_of_the_key_prevents_overlap(crontab: None) -> None:
    """One that no tick has added, which the last tick found."""
    waiting = tasks.keyed_system.enqueue(note="n")
    cron("* * * * *", tasks.keyed_system, payload={"note": "n"}, name="alone", overlap=False)
    _known_for(2 * MINUTE).poll()
    assert [job_id for _, job_id, _ in _outcomes("alone")] == [waiting.id, None]


def test_replaced_job_of_tick(crontab: None, process_id: int) -> None:
    """Its tick still shows it and prevents an overlap; of its end, it only learns that it has ended."""
    cron("* * * * *", tasks.keyed_system, payload={"note": "n"}, name="alone", overlap=False)
    scheduler = _known_for(MINUTE)

    def replaced() -> str:
        scheduler.poll()
        assert tasks.keyed_system.enqueue(note="n").id == _outcomes("alone")[-1][1]
        [entry] = dashboard_cron(using="owner")
        return entry.result

    assert replaced() == "queued"
    run_due(process_id)
    [entry] = dashboard_cron(using="owner")
    assert entry.result == "ended"
    scheduler.now += MINUTE
    assert replaced() == "queued"
    scheduler.now += MINUTE
    scheduler.poll()
    assert _outcomes("alone")[-1][1:] == (None, "skipped: the last one is not done")


def test_missed_ticks_are_reported_once(crontab: None, caplog: pytest.LogCaptureFixture) -> None:
    """Also while the first due one fails; the entry's history has the first of them, and how many came after."""
    payload = Payload()
    cron("* * * * *", tasks.system, payload=payload)
    scheduler = _known_for(30 * MINUTE, TICK)
    for _ in range(3):
        scheduler.poll()
    assert [fields["missed"] for fields in event_fields(caplog, "cron_missed")] == [24]
    assert of(shown(scheduler.samples()), "cron_ticks_total", entry="test-system", outcome="missed") == 24
    assert _outcomes("test-system") == [(TICK - 29 * MINUTE, None, "missed: too late, and 23 after it")]
    payload.works = True
    scheduler.poll()
    assert len(_fired()) == 6, "the late ones that are not too late"


def test_many_missed_ticks_are_not_all_counted(crontab: None) -> None:
    """Their outcome says so."""
    cron("* * * * *", tasks.system)
    _known_for(timedelta(days=2), TICK).poll()
    first, *_ = _outcomes("test-system")
    assert first == (TICK - timedelta(days=2) + MINUTE, None, "missed: too late, and 999 or more after it")


def test_held_entry_delays_only_its_missed_ticks(crontab: None, caplog: pytest.LogCaptureFixture) -> None:
    """They are recorded once the entry is free; its later ticks, which would leave them behind, wait for that."""
    for name in ("a-held", "b-free"):
        cron("* * * * *", tasks.system, name=name)
    scheduler = _known_for(30 * MINUTE, TICK)
    with psycopg.connect(url_for(None), options=ENDS_BY_ITSELF) as other:
        other.execute("SELECT FROM salon_jobs_cron_entry WHERE name = 'a-held' FOR UPDATE")
        for _ in range(2):
            assert scheduler.fired_after_poll() == {"b-free"}
            other.execute("SELECT")  # it has held the entry up to here
    assert [fields["entry"] for fields in event_fields(caplog, "cron_held_up")] == ["a-held"], "once a tick"
    assert _outcomes("a-held") == []
    assert scheduler.fired_after_poll() == {"a-held", "b-free"}
    held, free = ([(tick, what) for tick, _, what in _outcomes(name)] for name in ("a-held", "b-free"))
    assert held == free
    assert of(shown(scheduler.samples()), "cron_ticks_total", entry="a-held", outcome="missed") == 24


def test_entry_that_another_session_adds_delays_no_other(crontab: None, caplog: pytest.LogCaptureFixture) -> None:
    cron("* * * * *", tasks.system, name="b-known")
    scheduler = _known_for(MINUTE)
    cron("* * * * *", tasks.system, name="a-new")
    with psycopg.connect(url_for(None), options=ENDS_BY_ITSELF) as other:
        other.execute("INSERT INTO salon_jobs_cron_entry (name) VALUES ('a-new')")
        assert scheduler.fired_after_poll() == {"b-known"}
        other.execute("SELECT")  # it has held the name up to here
        assert [fields["entry"] for fields in event_fields(caplog, "cron_held_up")] == ["a-new"]
        other.rollback()
    scheduler.poll()
    assert seen("SELECT name FROM salon_jobs_cron_entry ORDER BY name") == [("a-new",), ("b-known",)]


def test_given_instant_fires_once(crontab: None) -> None:
    """It leaves the clock alone."""
    for name, line in (("nightly", "0 18 * * *"), ("often", "*/5 * * * *"), ("other", "1 18 * * *")):
        cron(line, tasks.system, name=name)
    instants = (TICK, TICK, TICK + timedelta(seconds=1))
    assert [Scheduler(using="default").run_at(at) for at in instants] == [2, 0, 0]
    assert _fired() == [("nightly", TICK), ("often", TICK)]
    assert seen("SELECT DISTINCT last_tick_at FROM salon_jobs_cron_entry") == [(None,)]


def test_job_and_tick_are_one_transaction(crontab: None) -> None:
    entry = cron("0 18 * * *", tasks.system, name="nightly")
    with pytest.raises(ZeroDivisionError):
        fire(entry.name, TICK, tasks.raises(ZeroDivisionError), advance=False, using="default")
    assert _fired() == []


def test_command_fires_given_instant_once(database: None) -> None:
    """Three in the morning in Japan."""
    for entries_fired in (2, 0):
        err = StringIO()
        call_command("runscheduler", "--burst", "--at", "2026-05-06T03:00:00+09:00", stderr=err)
        assert f"{entries_fired} entries fired" in err.getvalue()
    job = "SELECT payload->>'target_date' FROM salon_jobs_job WHERE task = 'aggregate-daily-sales'"
    assert seen(job) == [("2026-05-05",)]
    assert ("aggregate-daily-sales", TICK) in _fired()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--burst", "--at", "yesterday"), "not an ISO 8601 instant"),
        (("--burst", "--at", "2026-05-05T18:00:00"), "instant with a time zone"),
        (("--at", "2026-05-05T18:00:00Z"), "--at goes with --burst"),
        (("--reload", "--at", "2026-05-05T18:00:00Z"), "--at goes with --burst"),
        (("--health-addr", "8081"), "expected HOST:PORT"),
    ],
)
def test_bad_arguments_say_what_is_expected(arguments: tuple[str, ...], expected: str) -> None:
    with pytest.raises(CommandError, match=expected):
        call_command("runscheduler", *arguments)


def test_scheduler_measures_lateness_and_outcomes(crontab: None) -> None:
    payload = Payload()
    cron("* * * * *", tasks.system, payload=payload, name="late")
    cron("* * * * *", tasks.system, name="good")
    scheduler = _known_for(4 * MINUTE)
    scheduler.poll()
    values = shown(scheduler.samples())
    assert of(values, "cron_ticks_total", entry="late", outcome="failed") == 1
    assert of(values, "cron_ticks_total", entry="good", outcome="fired") == 4
    assert of(values, "cron_overdue_seconds", entry="late") >= 180
    assert of(values, "cron_overdue_seconds", entry="good") == 0
    [tick] = _ticks(scheduler.now, 1)
    assert of(values, "cron_last_tick_timestamp_seconds", entry="good") == tick.timestamp()
    assert of(values, "cron_lateness_seconds", entry="good") == (scheduler.now - tick).total_seconds()
    with pytest.raises(NotReady, match=r"cron entry 'late' has had a due tick .*; at most 120 s are allowed"):
        scheduler.facts()
    payload.works = True
    scheduler.poll()
    values = shown(scheduler.samples())
    assert of(values, "cron_overdue_seconds", entry="late") == 0
    assert of(values, "cron_ticks_total", entry="late", outcome="fired") == 4
    assert scheduler.facts()["cron_entries"] == 2
