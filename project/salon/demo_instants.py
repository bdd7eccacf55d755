"""Instants of one demo run, chosen so that data and cron ticks fit together."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final, Self

from project.salon.business_day import ONE_DAY, jst_date

# Upper bound of a run's duration. A nightly tick closer than this is used as the run's own, so that a live scheduler
# that meets it during the run finds it done, and no second cutoff comes into play.
LONGEST_RUN: Final = timedelta(minutes=3)
_FIVE_MINUTES_S: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoInstants:
    """The database's time when the data was made, and the tick used for each crontab entry (UTC)."""

    loaded_at: datetime
    five_minute_tick: datetime
    notes_tick: datetime
    operators_tick: datetime
    customers_tick: datetime
    sales_tick: datetime

    @classmethod
    def at(cls, now: datetime) -> Self:
        """Derive all instants from an aware ``now``, which should be the database's clock."""
        loaded_at = now.astimezone(UTC).replace(microsecond=0)
        return cls(
            loaded_at=loaded_at,
            five_minute_tick=loaded_at - timedelta(seconds=loaded_at.timestamp() % _FIVE_MINUTES_S),
            notes_tick=_latest(loaded_at, hour=15),
            operators_tick=_latest(loaded_at, hour=16),
            customers_tick=_latest(loaded_at, hour=17),
            sales_tick=_latest(loaded_at, hour=18),
        )

    @property
    def target_date(self) -> date:
        """Business day that the sales tick aggregates: the day before it in Japan."""
        return jst_date(self.sales_tick) - ONE_DAY

    @property
    def ticks(self) -> tuple[datetime, ...]:
        """All ticks without duplicates: the nights in order, then the five-minute one."""
        nightly = (self.notes_tick, self.operators_tick, self.customers_tick, self.sales_tick)
        return tuple(dict.fromkeys((*sorted(nightly), self.five_minute_tick)))


def _latest(now: datetime, *, hour: int) -> datetime:
    horizon = now + LONGEST_RUN
    tick = horizon.replace(hour=hour, minute=0, second=0, microsecond=0)
    return tick if tick <= horizon else tick - ONE_DAY
