"""Tests that one run's ticks cannot be crossed by a live scheduler, and that they give the specified dates."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from project.salon.business_day import business_day_bounds, jst_date
from project.salon.demo_instants import LONGEST_RUN, DemoInstants

_HOURS = {"notes_tick": 15, "operators_tick": 16, "customers_tick": 17, "sales_tick": 18}


def test_the_sales_tick_at_three_in_japan_is_about_the_day_before() -> None:
    instants = DemoInstants.at(datetime(2026, 5, 5, 18, 0, 1, tzinfo=UTC))

    assert instants.sales_tick.isoformat() == "2026-05-05T18:00:00+00:00"
    assert instants.target_date == date(2026, 5, 5)


def test_a_tick_that_comes_during_the_run_is_taken_beforehand() -> None:
    instants = DemoInstants.at(datetime(2026, 5, 5, 14, 59, 0, tzinfo=UTC))

    assert instants.notes_tick == datetime(2026, 5, 5, 15, tzinfo=UTC)
    assert instants.operators_tick == datetime(2026, 5, 4, 16, tzinfo=UTC)


@given(st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_no_other_nightly_tick_comes_within_the_longest_run(now: datetime) -> None:
    instants = DemoInstants.at(now)

    for name, hour in _HOURS.items():
        tick: datetime = getattr(instants, name)
        assert (tick.hour, tick.minute, tick.second, tick.microsecond) == (hour, 0, 0, 0)
        assert tick <= now + LONGEST_RUN < tick + timedelta(days=1, seconds=1)
    assert instants.five_minute_tick.minute % 5 == 0
    assert timedelta(0) <= now - instants.five_minute_tick < timedelta(minutes=5)
    assert len(set(instants.ticks)) == len(instants.ticks)


def test_a_business_day_is_a_day_in_japan() -> None:
    start, end = business_day_bounds(date(2026, 5, 5))

    assert start.isoformat() == "2026-05-04T15:00:00+00:00"
    assert end.isoformat() == "2026-05-05T15:00:00+00:00"
    assert jst_date(start) == jst_date(end - timedelta(seconds=1)) == date(2026, 5, 5)
    assert jst_date(end) == date(2026, 5, 6)
