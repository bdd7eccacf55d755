"""The ticks of a demo cannot be crossed by those of a live scheduler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from project.salon.business_day import business_day_bounds, jst_date
from project.salon.demo_instants import LONGEST_RUN, DemoInstants


@given(st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_no_tick_falls_into_longest_run(now: datetime) -> None:
    instants = DemoInstants.at(now)
    for name, hour in {"notes_tick": 15, "operators_tick": 16, "customers_tick": 17, "sales_tick": 18}.items():
        tick: datetime = getattr(instants, name)
        assert (tick.hour, tick.minute, tick.second, tick.microsecond) == (hour, 0, 0, 0)
        assert tick <= now + LONGEST_RUN < tick + timedelta(days=1, seconds=1)
    start, end = business_day_bounds(instants.target_date)
    assert jst_date(start) == jst_date(end - timedelta(seconds=1)) == instants.target_date < jst_date(end)
