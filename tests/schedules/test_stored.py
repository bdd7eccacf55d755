"""Schedules that are rows: each tick once, whoever asks, in the caller's transaction, of one store or of none."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.db import connections, transaction
from django.test import override_settings

from salon_jobs import aschedule, current_job, schedule, tenant_context
from salon_jobs.control import delete_schedules, pause, pause_schedules, resume, resume_schedules, run_schedule
from salon_jobs.core.errors import CronInvalid, EnqueueRefused, OptionInvalid, PayloadInvalid
from salon_jobs.core.records import ActionResult, JobState
from salon_jobs.db import statements
from salon_jobs.jobs import enqueue
from salon_jobs.jobs.pruning import prune_jobs
from salon_jobs.models import Schedule
from salon_jobs.schedules.due import StoredSchedules
from salon_jobs.schedules.scheduler import Scheduler
from salon_jobs.schedules.stored import next_tick
from tests import tasks
from tests.e2e.worker_process import surroundings
from tests.interpreter import run_python
from tests.jobs.threads import together
from tests.metrics import of, shown
from tests.settings import url_for
from tests.support import change, event_fields, moved_to, run_due, seen
from tests.tasks import Hooks
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("database")
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def call(note: str = "") -> Any:
    return tasks.system.call(note=note)


def hourly(*keys: str, **options: Any) -> datetime:
    """Add a schedule for each key; return when all of them are due for the first time."""
    for key in keys or ("k",):
        schedule(call(key), every=HOUR, key=key, **options)
    return max(tick_of(key) for key in keys or ("k",))


def tick_of(key: str = "k") -> datetime:
    [(at,)] = seen("SELECT next_at FROM salon_jobs_schedule WHERE key = %s", key)
    return at  # type: ignore[no-any-return]


def fire(now: datetime) -> None:
    """Poll until nothing is due, at this time."""
    scheduler = StoredSchedules(using="default")
    while not scheduler.poll(now):
        pass


def jobs() -> list[tuple[Any, ...]]:
    return seen("SELECT tick FROM salon_jobs_job ORDER BY id")


def notes() -> list[str]:
    return [note for (note,) in seen("SELECT payload ->> 'note' FROM salon_jobs_job ORDER BY id")]


def history(key: str = "k") -> list[tuple[Any, ...]]:
    return seen(
        "SELECT tick_at, outcome FROM salon_jobs_schedule_tick t JOIN salon_jobs_schedule s ON s.id = t.schedule_id"
        " WHERE s.key = %s ORDER BY number",
        key,
    )


# Declared


def test_schedule_is_part_of_callers_transaction() -> None:
    with transaction.atomic():
        schedule(call(), every=HOUR, key="k")
        transaction.set_rollback(True)
    assert seen("SELECT count(*) FROM salon_jobs_schedule") == [(0,)]


def test_same_key_changes_schedule() -> None:
    first = schedule(call("a"), "0 9 * * 1", key="k", timezone="Asia/Tokyo")
    assert first.action == "created"
    assert f"{first.next_at.astimezone(ZoneInfo('Asia/Tokyo')):%a %H:%M}" == "Mon 09:00"
    assert schedule(call("a"), "0  9 * * 1", key="k", timezone="Asia/Tokyo").action == "kept"
    changed = schedule(call("b"), "0 9 * * 1", key="k", timezone="Asia/Tokyo")
    assert (changed.id, changed.action, changed.next_at) == (first.id, "changed", first.next_at)
    assert schedule(call("b"), every=MINUTE, key="k").action == "changed"
    assert seen("SELECT line, every, payload ->> 'note' FROM salon_jobs_schedule") == [("", MINUTE, "b")]


def test_unchanged_timing_keeps_tick_and_pause() -> None:
    due_at = hourly()
    pause_schedules("k", by="ann")
    schedule(call("b"), every=HOUR, key="k")
    assert tick_of() == due_at
    assert seen("SELECT paused_by FROM salon_jobs_schedule WHERE paused_at IS NOT NULL") == [("ann",)]


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"line": "0 9 * *"}, CronInvalid, "has 4 fields"),
        ({"line": "0 9 * * *", "timezone": "Asia/Tokio"}, CronInvalid, "did you mean"),
        ({}, OptionInvalid, "pass one of them"),
        ({"line": "0 9 * * *", "every": DAY}, OptionInvalid, "pass one of them"),
        ({"every": timedelta(0)}, OptionInvalid, "a second or more"),
        ({"line": f"{'0,' * 200}0 9 * * *"}, OptionInvalid, "line must be a string"),
        ({"every": DAY, "timezone": "Asia/Tokio"}, CronInvalid, "did you mean"),
        ({"every": 10}, OptionInvalid, "every must be a timedelta"),
        ({"every": DAY, "key": ""}, OptionInvalid, "key must be a string"),
        ({"every": DAY, "jitter": 3}, OptionInvalid, "jitter must be"),
        ({"every": DAY, "catch_up": -DAY}, OptionInvalid, "catch_up must be"),
        ({"every": DAY, "overlap": 1}, OptionInvalid, "overlap must be"),
        ({"every": DAY, "call": tasks.system}, PayloadInvalid, "call of a task"),
    ],
)
def test_mistakes_are_refused(wrong: dict[str, Any], error: type[Exception], text: str) -> None:
    of = wrong.pop("call", call())
    with pytest.raises(error, match=text):
        schedule(of, **{"key": "k", **wrong})


# Fired


def test_job_knows_its_tick(process_id: int, hooks: Hooks) -> None:
    seen_ticks: list[Any] = []
    hooks.system = lambda note: seen_ticks.append((note, current_job().tick))
    schedule(call("hello"), "0 9 * * *", key="k")
    tick = tick_of()
    for at, fired in ((tick - timedelta(seconds=1), []), (tick, [(tick,)]), (tick, [(tick,)])):
        fire(at)
        assert jobs() == fired
    assert tick_of() == tick + DAY
    run_due(process_id)
    assert (seen_ticks, history()) == ([("hello", tick)], [(tick, "succeeded")])


def test_concurrent_schedulers_fire_each_tick_once() -> None:
    """A poll fires a thousand of them."""
    count = 1500
    hourly("0")
    same = "line, every, anchor_at, catch_up, jitter, owed_from, next_at"
    change(
        f"INSERT INTO salon_jobs_schedule (key, task, payload, {same})"
        f" SELECT n::text, task, jsonb_build_object('note', n::text), {same}"
        "   FROM salon_jobs_schedule, generate_series(1, %s) AS n",
        count - 1,
    )
    now = tick_of("0")
    together(*[partial(fire, now)] * 2)
    fire(now)
    assert seen("SELECT count(*), count(DISTINCT payload) FROM salon_jobs_job") == [(count, count)]
    assert seen("SELECT count(*) FROM salon_jobs_schedule_tick") == [(count,)]


KILLED = """
import os, signal
import django
django.setup()
import tests.tasks
from salon_jobs.db import statements
from salon_jobs.schedules.due import StoredSchedules
run = statements.execute
def die(name, *arguments, **named):
    if name == "move_schedules":
        print("enqueued", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return run(name, *arguments, **named)
statements.execute = die
StoredSchedules(using="default").poll()
"""


def test_scheduler_killed_before_commit() -> None:
    """The next one fires the tick."""
    hourly(catch_up=DAY)
    change("UPDATE salon_jobs_schedule SET anchor_at = anchor_at - %s, owed_from = owed_from - %s", 90 * MINUTE, DAY)
    change("UPDATE salon_jobs_schedule SET next_at = anchor_at + %s", HOUR)
    tick = tick_of()
    killed = run_python("-c", KILLED, "runscheduler", environment=surroundings())
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "enqueued\n"), killed.stderr
    assert jobs() == []

    def fired_by_the_next() -> list[tuple[Any, ...]]:
        Scheduler(using="default").poll()
        return jobs()

    # The server holds the schedule until it notices that the killed one is gone.
    eventually(fired_by_the_next, [(tick,)])


def test_late_ticks_do_not_drift() -> None:
    schedule(call(), every=timedelta(seconds=10), key="k")
    tick = tick_of()
    fire(tick + timedelta(seconds=3))
    fire(tick + timedelta(seconds=17))
    assert jobs() == [(tick,), (tick + timedelta(seconds=10),)]
    assert tick_of() == tick + timedelta(seconds=20)


def test_days_are_those_of_time_zone() -> None:
    before = datetime(2026, 10, 24, 12, tzinfo=UTC)
    ticks = [next_tick("30 2 * * *", "Europe/Berlin", None, before, before)]
    ticks.append(next_tick("30 2 * * *", "Europe/Berlin", None, before, ticks[0]))
    assert ticks == [datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 26, 1, 30, tzinfo=UTC)]


def test_ticks_before_catch_up_are_missed(caplog: pytest.LogCaptureFixture) -> None:
    tick = hourly(catch_up=3 * HOUR)
    fire(tick + 10 * HOUR)
    assert jobs() == [(tick + hours * HOUR,) for hours in (8, 9, 10)]
    assert (history()[0], len(history())) == ((tick, "missed: too late"), 4)
    assert event_fields(caplog, "schedules_missed") == [{"schedules": 1}]


@pytest.mark.parametrize(("timing", "fired"), [({"every": HOUR}, 1), ({"line": "* * * * *"}, 5)])
def test_default_catch_up(timing: dict[str, Any], fired: int) -> None:
    schedule(call(), key="k", **timing)
    fire(tick_of() + DAY)
    assert len(jobs()) == fired


def test_jitter_of_schedule_stays() -> None:
    for key in "abc":
        schedule(call(), "0 9 * * *", key=key, jitter=HOUR)
    tick = tick_of("a")
    for days in range(2):
        fire(tick + days * DAY)
    delays = [delay for (delay,) in seen("SELECT run_at - tick FROM salon_jobs_job ORDER BY id")]
    assert delays[:3] == delays[3:]
    assert len(set(delays)) == 3
    assert all(timedelta(0) <= delay < HOUR for delay in delays)


def test_unfinished_job_prevents_overlap(process_id: int) -> None:
    tick = hourly(overlap=False)
    for hours in range(2):
        fire(tick + hours * HOUR)
    assert jobs() == [(tick,)]
    assert history()[1] == (tick + HOUR, "skipped: the last one is not done")
    run_due(process_id)
    fire(tick + 2 * HOUR)
    assert jobs() == [(tick + 2 * HOUR,)]


def test_unfinished_run_by_hand_prevents_overlap(process_id: int) -> None:
    tick = hourly(overlap=False)
    fire(tick)
    run_schedule("k")
    change("DELETE FROM salon_jobs_job WHERE id = (SELECT max(id) FROM salon_jobs_job)")
    fire(tick + HOUR)
    assert len(jobs()) == 1, "the one of the last tick"
    run_schedule("k")
    change("DELETE FROM salon_jobs_job WHERE id = (SELECT min(id) FROM salon_jobs_job)")
    fire(tick + 2 * HOUR)
    assert [outcome for _, outcome in history()][-1] == "skipped: the last one is not done"
    run_due(process_id)
    fire(tick + 3 * HOUR)
    assert jobs() == [(tick + 3 * HOUR,)]


def test_long_run_by_hand_prevents_overlap() -> None:
    """It stays in the history until it has ended, also after a hundred ticks or runs."""
    tick = hourly(overlap=False)
    run_schedule("k")
    for hours in range(101):
        fire(tick + hours * HOUR)
    run_schedule("k")
    change("DELETE FROM salon_jobs_job WHERE id = (SELECT max(id) FROM salon_jobs_job)")
    fire(tick + 101 * HOUR)
    assert history()[-1] == (tick + 101 * HOUR, "skipped: the last one is not done")
    assert len(jobs()) == 1
    change("DELETE FROM salon_jobs_job")
    fire(tick + 102 * HOUR)
    assert jobs() == [(tick + 102 * HOUR,)]
    assert seen("SELECT min(number), max(number) FROM salon_jobs_schedule_tick") == [(6, 105)], "then it goes"


def test_job_that_ends_before_its_tick_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was there already: the task is enqueued once in a while."""
    job = tasks.keyed_system.using(unique_for=HOUR).enqueue(note="n")
    schedule(tasks.keyed_system.call(note="n"), every=HOUR, key="k")
    monkeypatch.setattr(tasks.keyed_system, "options", replace(tasks.keyed_system.options, unique_for=HOUR))
    change(f"UPDATE salon_jobs_job SET {moved_to('running')}")
    execute = statements.execute

    def end_first(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "move_schedules":
            change("DELETE FROM salon_jobs_job")
        return execute(name, *arguments, **named)

    monkeypatch.setattr(statements, "execute", end_first)
    fire(tick_of())
    assert seen("SELECT job_id, outcome FROM salon_jobs_schedule_tick") == [(job.id, "")]
    [(*_, job_id, result)] = statements.rows("schedule_results", {"ids": [1], "ticks": 1}, using="owner")
    assert (job_id, result) == (None, "ended")


def test_failed_run_stays_in_history(process_id: int, hooks: Hooks) -> None:
    """Also once its job is pruned."""
    hooks.system = tasks.raises(ZeroDivisionError)
    tick = hourly()
    fire(tick)
    change("UPDATE salon_jobs_job SET max_attempts = 1")
    run_due(process_id)
    assert seen("SELECT state FROM salon_jobs_job") == [("failed",)]
    change("UPDATE salon_jobs_job SET finished_at = now() - interval '1 day'")
    assert prune_jobs(JobState.FAILED, HOUR, using="default")[0] == 1
    assert history() == [(tick, "failed: attempts_exhausted")]


def test_history_is_bounded() -> None:
    tick = hourly(catch_up=200 * HOUR)
    schedule(call(), every=DAY, key="other")
    fire(tick + 119 * HOUR)
    numbers = "SELECT min(number), max(number), count(*) FROM salon_jobs_schedule_tick WHERE schedule_id = 1"
    assert seen(numbers) == [(21, 120, 100)]
    assert len(history("other")) == 2, "of the others, nothing goes"


def test_held_key_delays_only_its_schedule(caplog: pytest.LogCaptureFixture) -> None:
    for note in ("held", "free"):
        schedule(tasks.keyed_system.call(note=note), every=HOUR, key=note)
    now = max(tick_of("held"), tick_of("free"))
    scheduler = StoredSchedules(using="default")
    with psycopg.connect(url_for(None), options="-c idle_in_transaction_session_timeout=60s") as other:
        other.execute("INSERT INTO salon_jobs_job (task, job_key) VALUES ('test-keyed-system', 'k:held')")
        assert [scheduler.poll(now) for _ in range(2)] == [0.0, 1.0], "it waits before it looks again"
        assert (len(history("held")), len(history("free"))) == (0, 1)
    assert scheduler.poll(now) == 0.0
    assert len(history("held")) == len(event_fields(caplog, "schedules_held_up")) == 1


def test_locked_schedule_waits_for_commit() -> None:
    now = hourly("a", "b")
    with psycopg.connect(url_for(None)) as other:
        other.execute("UPDATE salon_jobs_schedule SET payload = '{\"note\": \"new\"}' WHERE key = 'a'")
        scheduler = StoredSchedules(using="default")
        assert [scheduler.poll(now) for _ in range(2)] == [0.0, 1.0]
        assert notes() == ["b"]
    fire(now)
    assert notes() == ["b", "new"]


def test_unknown_task_fails_after_five_minutes(caplog: pytest.LogCaptureFixture) -> None:
    """Until then it is left to others."""
    tick = hourly()
    change("UPDATE salon_jobs_schedule SET task = 'gone'")
    assert (StoredSchedules(using="default").poll(tick + MINUTE), history()) == (1.0, [])
    fire(tick + 6 * MINUTE)
    [(_, outcome)] = history()
    assert outcome.startswith("failed: UnknownTask")
    assert tick_of() == tick + HOUR
    assert [fields["key"] for fields in event_fields(caplog, "schedule_failed")] == ["k"]


@pytest.mark.parametrize("timing", [{"every": MINUTE}, {"line": "* * * * *"}])
def test_late_tick_of_unknown_task_names_it(timing: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    schedule(call(), key="k", **timing)
    change("UPDATE salon_jobs_schedule SET task = 'gone'")
    fire(tick_of() + HOUR)
    assert history()[0][1].startswith("failed: UnknownTask: no task is named 'gone'")
    assert [fields["task_name"] for fields in event_fields(caplog, "schedule_failed")] == ["gone"]
    assert jobs() == []


def test_unknown_time_zone_is_left_to_others(caplog: pytest.LogCaptureFixture) -> None:
    """Its data may be older than theirs. What nobody knows fails, and is due again when it is due."""
    for key in "ab":
        schedule(call(key), "0 9 * * *", key=key)
    tick = tick_of("b")
    change("UPDATE salon_jobs_schedule SET timezone = 'Mars/Olympus' WHERE key = 'a'")
    scheduler = StoredSchedules(using="default")
    assert [scheduler.poll(tick) for _ in range(2)] == [0.0, 1.0]
    assert (notes(), history("a"), tick_of("a")) == (["b"], [], tick)
    assert event_fields(caplog, "schedules_held_up") == []
    fire(tick + 5 * MINUTE)
    assert history("a")[0][1].startswith("failed: CronInvalid: unknown time zone 'Mars/Olympus'")
    change("UPDATE salon_jobs_schedule SET timezone = 'UTC' WHERE key = 'a'")
    fire(tick_of("a"))
    assert (notes(), len(history("a")), tick_of("a")) == (["b"], 1, tick + DAY)
    fire(tick + DAY)
    assert sorted(notes()) == ["a", "b", "b"]


def test_resumed_schedule_fires_at_own_instants(caplog: pytest.LogCaptureFixture) -> None:
    """Also if its time zone was unknown: that it is looked at again in an hour is no tick."""
    schedule(call(), "0 9 * * *", key="k")
    change("UPDATE salon_jobs_schedule SET timezone = 'Mars/Olympus'")
    tick = tick_of()
    fire(tick + 5 * MINUTE)
    assert tick_of() == tick + 65 * MINUTE
    pause_schedules("k")
    resume_schedules("k")
    change("UPDATE salon_jobs_schedule SET timezone = 'UTC'")
    fire(tick + 65 * MINUTE)
    assert (jobs(), tick_of()) == ([], tick + DAY)


def test_keys_and_options_are_declared_ones() -> None:
    schedule(tasks.keyed_system.call(note="n"), every=HOUR, key="k", catch_up=DAY)
    fire(tick_of() + 2 * HOUR)
    assert seen("SELECT job_key, count(*) FROM salon_jobs_job GROUP BY 1") == [("k:n", 1)]
    assert len(history()) == 3


def test_edit_is_noticed_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "salon_jobs")
    scheduler = Scheduler(using="default")
    schedule(call("a"), every=DAY, key="k")
    assert 0 < scheduler.poll() <= 5.0, "it looks again within seconds"
    assert jobs() == []
    schedule(call("b"), every=HOUR, key="k")
    change("UPDATE salon_jobs_schedule SET next_at = now(), owed_from = now() - interval '1 h'")
    scheduler.poll()
    assert notes() == ["b"]
    assert event_fields(caplog, "schedules_fired") == [{"fired": 1, "skipped": 0, "failed": 0}]
    values = shown(scheduler.samples())
    assert of(values, "schedule_ticks_total", outcome="fired") == 1
    assert of(values, "schedules_overdue_seconds") >= 0


# Paused, resumed, deleted, run now


def test_paused_schedule_owes_nothing() -> None:
    """Neither does it after it is resumed."""
    handle = schedule(call(), every=HOUR, key="k", catch_up=DAY)
    tick = tick_of()
    assert pause_schedules(handle) == [ActionResult(handle.id, True)]
    assert pause_schedules("k") == [ActionResult("k", False, "it is paused already")]
    fire(tick + 2 * HOUR)
    assert jobs() == []
    change("UPDATE salon_jobs_schedule SET anchor_at = anchor_at - %s, next_at = next_at - %s", 3 * HOUR, 3 * HOUR)
    assert resume_schedules([handle.id, 404]) == [
        ActionResult(handle.id, True),
        ActionResult(404, False, "there is no such schedule, or you may not see it"),
    ]
    assert resume_schedules("k") == [ActionResult("k", False, "it is not paused")]
    Scheduler(using="default").poll()
    assert (jobs(), history(), tick_of()) == ([], [], tick)


def test_deleted_schedule_leaves_its_jobs() -> None:
    fire(hourly("a", "b"))
    assert delete_schedules("a") == [ActionResult("a", True)]
    assert (len(jobs()), seen("SELECT count(*) FROM salon_jobs_schedule_tick")) == (2, [(1,)])
    assert schedule(call(), every=HOUR, key="a").action == "created"
    Schedule.objects.all().delete()
    assert seen("SELECT count(*) FROM salon_jobs_schedule_tick") == [(0,)]


def test_key_is_not_that_of_another_store(stores: list[UUID]) -> None:
    """Also where the other's schedule is changed by its id."""
    with tenant_context(stores[0]):
        other = schedule(tasks.in_store.call(store_id=stores[0], number=1), every=HOUR, key="k")
    assert changed([other.id, "k"]) == changed([other.id, "k"], resume_schedules) == [True, False]
    with tenant_context(stores[0]):
        assert changed([other.id, "k"]) == [True, True]
        assert changed([other.id, "k"], delete_schedules) == [True, True]


def test_run_by_hand_moves_no_tick(process_id: int) -> None:
    tick = hourly()
    pause_schedules("k")
    run_schedule("k", by="ann")
    assert (tick_of(), notes()) == (tick, ["k"])
    assert seen("SELECT tick FROM salon_jobs_job") == seen("SELECT tick_at FROM salon_jobs_schedule_tick")
    run_due(process_id)
    assert seen("SELECT run_by, outcome FROM salon_jobs_schedule_tick") == [("ann", "succeeded")]
    with pytest.raises(OptionInvalid, match="no such schedule"):
        run_schedule("other")


def test_run_by_hand_that_finds_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked for now, whatever tick that job is of."""
    monkeypatch.setattr(tasks.keyed_system, "options", replace(tasks.keyed_system.options, unique_for=HOUR))
    schedule(tasks.keyed_system.call(note="n"), every=HOUR, key="k")
    job = run_schedule("k")
    change("UPDATE salon_jobs_job SET tick = now() - interval '1 hour'")
    before = datetime.now(UTC)
    assert run_schedule("k").id == job.id
    [(asked,)] = seen("SELECT tick_at FROM salon_jobs_schedule_tick WHERE number = 2")
    assert asked >= before


@pytest.mark.parametrize("wrong", [True, -1, None, "", [1.5]])
def test_non_schedules_are_refused(wrong: Any) -> None:
    with pytest.raises(OptionInvalid):
        pause_schedules(wrong)


# Of stores


@pytest.fixture
def as_web() -> Iterator[None]:
    """Make the web role's connection the one of the job tables."""
    with override_settings(SALON_JOBS={**settings.SALON_JOBS, "DATABASE": "web"}):
        yield


@pytest.mark.parametrize("alias", ["default", "web"])
def test_key_without_a_transaction_is_of_the_store(stores: list[UUID], alias: str) -> None:
    """A context that holds none sets no store between its own: the key would be that of a schedule of no store."""
    hourly("k")
    with tenant_context(stores[0]):
        own = schedule(tasks.in_store.call(store_id=stores[0]), every=HOUR, key="k")
    with tenant_context(stores[0], using=alias, atomic=False):
        assert changed("k", partial(pause_schedules, using=alias)) == [True]
        assert changed("k", partial(resume_schedules, using=alias)) == [True]
        assert changed("k", partial(delete_schedules, using=alias)) == [True]
    assert not Schedule.objects.filter(pk=own.id).exists()
    other = "web" if alias == "default" else "default"
    with tenant_context(stores[0], using=alias), pytest.raises(OptionInvalid, match=f"using={other!r}"):
        delete_schedules("k", using=other)
    assert seen("SELECT key, paused_at, store_id FROM salon_jobs_schedule") == [("k", None, None)]


def changed(names: Any, change: Callable[..., list[ActionResult[Any]]] = pause_schedules) -> list[bool]:
    return [result.changed for result in change(names)]


@pytest.mark.usefixtures("as_web")
def test_web_role_schedules_for_its_store(stores: list[UUID]) -> None:
    own, other, _ = stores
    with tenant_context(own, using="web"):
        mine = schedule(tasks.in_store.call(store_id=own, number=1), every=HOUR, key="k")
    with tenant_context(other, using="web"):
        theirs = schedule(tasks.in_store.call(store_id=other, number=2), every=HOUR, key="k")
        assert theirs.action == "created", "the same key of another store is another key"
        for name in (mine, mine.id):
            assert changed(name) == changed(name, delete_schedules) == [False]
            with pytest.raises(OptionInvalid):
                run_schedule(name)
        assert changed("k") == [True]
        with connections["web"].cursor() as cursor:
            cursor.execute("SELECT store_id FROM salon_jobs_schedule")
            assert cursor.fetchall() == [(other,)]
        with pytest.raises(EnqueueRefused, match=r"not the current store; .* inside"), transaction.atomic(using="web"):
            schedule(tasks.in_store.call(store_id=own), every=HOUR, key="k")
    states = "SELECT store_id, paused_at IS NULL FROM salon_jobs_schedule ORDER BY id"
    assert seen(states) == [(own, True), (other, False)]


@pytest.mark.usefixtures("as_web")
def test_web_role_schedules_system_tasks(stores: list[UUID]) -> None:
    """It changes them outside of stores."""
    with tenant_context(stores[0], using="web"):
        handle = schedule(call("system"), every=HOUR, key="k")
        assert changed(["k", handle]) == [False, False]
    assert changed(["k", handle]) == [True, True]
    assert run_schedule("k").id
    assert seen("SELECT store_id, payload ->> 'note' FROM salon_jobs_job") == [(None, "system")]


def test_one_batch_for_all_stores(stores: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    """A paused store gets no job."""
    for store in stores:
        with tenant_context(store):
            schedule(tasks.in_store.call(store_id=store, number=1), every=HOUR, key="k")
    now = max(at for (at,) in seen("SELECT next_at FROM salon_jobs_schedule"))
    pause(store_id=stores[2])
    batches: list[int] = []
    add_many = enqueue.add_many

    def counted(pattern: Any, contents: Any, **options: Any) -> Any:
        batches.append(len(contents))
        return add_many(pattern, contents, **options)

    monkeypatch.setattr(enqueue, "add_many", counted)
    fire(now)
    assert batches == [2]
    assert seen("SELECT store_id FROM salon_jobs_job ORDER BY 1") == [(store,) for store in stores[:2]]
    assert seen("SELECT outcome FROM salon_jobs_schedule_tick WHERE store_id = %s", stores[2]) == [
        ("skipped: the store is paused",)
    ]
    resume(store_id=stores[2])
    fire(now + HOUR)
    assert seen("SELECT count(*) FROM salon_jobs_job WHERE store_id = %s", stores[2]) == [(1,)]


def test_coroutine_adds_schedule() -> None:
    handle = async_to_sync(aschedule)(call("x"), "0 9 * * 1", timezone="Asia/Tokyo", key="k")
    assert (handle.action, handle.next_at) == ("created", tick_of())
