"""Tests the declaration of cron entries and the choice of due ticks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from salon_jobs.core.errors import CronInvalid
from salon_jobs.schedules import entries
from salon_jobs.schedules.cron import CronExpression
from salon_jobs.schedules.entries import GRACE, TICKS_AT_ONCE, CronEntry, cron, cron_entries, due_ticks
from tests import tasks

NOW = datetime(2026, 5, 6, 12, 0, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


class AnyPayload:
    """Payload that fits whatever it is."""

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], /) -> object:
        return kwargs


@dataclass(frozen=True)
class FakeTask:
    name: str
    is_store_task: bool = False
    payload: AnyPayload = AnyPayload()  # noqa: RUF009 - it has no state


SALES: Any = FakeTask("aggregate-daily-sales")
pytestmark = pytest.mark.usefixtures("own_entries")


def entry(line: str, *, backfill: timedelta = timedelta()) -> CronEntry:
    return CronEntry(name="e", expression=CronExpression(line), task_name="t", backfill=backfill)


def test_entry_is_named_after_its_task() -> None:
    declared = cron("0 18 * * *", SALES, backfill=6 * HOUR)
    assert cron_entries.all() == (declared,)
    assert (declared.name, declared.task_name, declared.backfill) == (SALES.name, SALES.name, 6 * HOUR)
    assert declared.expression == CronExpression("0 18 * * *", "UTC")
    with pytest.raises(FrozenInstanceError):
        declared.name = "other"  # type: ignore[misc]  # that it is refused is the point
    with pytest.raises(CronInvalid, match=r"two cron entries named 'aggregate-daily-sales'.*name="):
        cron("0 6 * * *", SALES)
    cron("0 6 * * *", SALES, name="aggregate-in-the-morning", timezone="Asia/Tokyo")
    assert [each.name for each in cron_entries.all()] == ["aggregate-daily-sales", "aggregate-in-the-morning"]


@pytest.mark.parametrize(
    ("target", "payload", "message"),
    [
        (tasks.system, {"nte": "x"}, "no argument 'nte'; did you mean 'note'?"),
        (tasks.system, {"note": 5}, "Expected `str`, got `int` - at `$.note`"),
        (tasks.keyed_system, None, "missing a required argument: 'note'"),
        (tasks.keyed_system, {}, "missing a required argument: 'note'"),
    ],
)
def test_constant_payload_is_checked_when_declared(target: Any, payload: Any, message: str) -> None:
    expected = f"the payload of cron entry 'nightly' does not fit: task {target.name!r}: {message}"
    with pytest.raises(CronInvalid, match=re.escape(expected)):
        cron("0 18 * * *", target, payload=payload, name="nightly")
    assert cron_entries.all() == ()
    cron("0 18 * * *", target, payload=lambda _: payload, name="nightly")  # checked at its tick


def plain_function() -> None: ...


@pytest.mark.parametrize("target", ["ping", None, plain_function, FakeTask, FakeTask("a", cast("bool", None)), 5])
def test_non_tasks_are_refused(target: Any) -> None:
    with pytest.raises(CronInvalid, match=r"is not a task; declare it with @task"):
        cron("0 18 * * *", target)
    assert cron_entries.all() == ()


def test_payload_is_built_or_copied_each_time() -> None:
    declared = cron("0 18 * * *", SALES, payload=lambda tick: {"target_date": (tick + 9 * HOUR).date() - DAY})
    tick = declared.expression.next_after(datetime(2026, 5, 5, tzinfo=UTC))
    assert declared.payload_at(tick) == {"target_date": datetime(2026, 5, 5, tzinfo=UTC).date()}
    fixed_payload: dict[str, Any] = {"reason": "cron", "tags": []}
    declared = cron("0 18 * * *", SALES, payload=fixed_payload, name="fixed")
    fixed_payload["reason"] = "changed"
    declared.payload_at(NOW)["tags"].append("changed")
    assert declared.payload_at(NOW) == {"reason": "cron", "tags": []}
    assert cron("0 18 * * *", cast("Any", FakeTask("ping"))).payload_at(NOW) == {}
    no_dict: Any = lambda _: ["cron"]  # noqa: E731
    with pytest.raises(CronInvalid, match=r"payload must return a dict, not \['cron'\]"):
        cron("0 18 * * *", SALES, payload=no_dict, name="wrong").payload_at(NOW)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": FakeTask("expire", is_store_task=True)}, "'expire' is a store task; cron starts .*fan_out"),
        ({"line": "0 18 * *"}, "has 4 fields"),
        ({"timezone": "Asia/Tokio"}, "did you mean Asia/Tokyo"),
        ({"backfill": -HOUR}, "backfill is a timedelta of zero or more"),
        ({"backfill": 3600}, "backfill is a timedelta of zero or more"),
        ({"overlap": None}, "overlap is True or False, not None"),
        ({"payload": [1]}, "payload is a dict or a function of the tick"),
        ({"name": ""}, "the name of a cron entry"),
        ({"name": "x" * 256}, "the name of a cron entry"),
        ({"name": "a\0b"}, "the name of a cron entry"),
        ({"name": 5}, "the name of a cron entry"),
    ],
)
def test_wrong_option_registers_nothing(options: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"line": "0 18 * * *", "target": SALES, **options}
    with pytest.raises(CronInvalid, match=message) as caught:
        cron(**arguments)
    assert caught.value.code == "CRON.INVALID"
    assert cron_entries.all() == ()


def test_grace_without_backfill() -> None:
    """A short pause loses nothing, and what a long one misses is counted. A backfill only widens it."""
    assert due_ticks(entry("56 11 * * *", backfill=MINUTE), NOW - HOUR, NOW).ticks == (NOW - 4 * MINUTE,)
    daily = entry("55 11 * * *")
    tick = NOW - GRACE
    assert due_ticks(daily, NOW - DAY, NOW).ticks == (tick,)
    late = due_ticks(daily, NOW - DAY, NOW + timedelta.resolution)
    assert (late.ticks, late.missed, late.after) == ((), 1, NOW + timedelta.resolution)
    minutely = due_ticks(entry("* * * * *"), NOW - HOUR, NOW)
    assert (len(minutely.ticks), minutely.ticks[0], minutely.missed) == (6, NOW - GRACE, 54)
    assert NOW - GRACE - MINUTE < minutely.after < NOW - GRACE, "what is missed can be given up before the rest fires"


def test_clock_going_back_gives_nothing() -> None:
    due = due_ticks(entry("* * * * *"), NOW, NOW - HOUR)
    assert (due.ticks, due.missed, due.after) == ((), 0, NOW)
    with pytest.raises(ValueError, match="naive"):
        due_ticks(entry("* * * * *"), NOW.replace(tzinfo=None), NOW)


def test_ticks_fired_at_once_are_bounded() -> None:
    """Also where the backfill would begin before the calendar does."""
    due = due_ticks(entry("* * * * *", backfill=timedelta.max), NOW - 365 * DAY, NOW)
    assert (len(due.ticks), due.missed) == (TICKS_AT_ONCE, 0)


@settings(max_examples=30, deadline=None)
@given(pause=st.timedeltas(timedelta(), 3 * DAY), backfill=st.timedeltas(timedelta(), 2 * DAY), limit=st.integers(1, 9))
def test_every_tick_is_listed_once(pause: timedelta, backfill: timedelta, limit: int) -> None:
    each = entry("7,30 */3 * * *", backfill=backfill)
    after = NOW - pause
    expected = list(each.expression.between(after, NOW))
    seen: list[datetime] = []
    missed = 0
    while after < NOW:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(entries, "TICKS_AT_ONCE", limit)
            due = due_ticks(each, after, NOW)
        assert len(due.ticks) <= limit
        seen += due.ticks
        missed += due.missed
        after = due.ticks[-1] if due.ticks else due.after
    assert seen == [tick for tick in expected if tick >= NOW - each.window]
    assert missed == min(len(expected) - len(seen), limit)
