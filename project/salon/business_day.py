"""Business days: a business day is one calendar day in Japan, from midnight to midnight JST."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

JST: Final = ZoneInfo("Asia/Tokyo")  # of every store, since all salons are in Japan
ONE_DAY: Final = timedelta(days=1)


def jst_date(instant: datetime) -> date:
    """Return the date in Japan at an aware ``instant``. Raises ``ValueError`` for a naive one."""
    if instant.tzinfo is None:
        raise ValueError("a business day needs an aware instant")
    return instant.astimezone(JST).date()


def business_day_bounds(day: date) -> tuple[datetime, datetime]:
    """Return the first instant of a business day and the first instant after it, in UTC."""
    start = datetime.combine(day, time(), tzinfo=JST)
    end = datetime.combine(day + ONE_DAY, time(), tzinfo=JST)
    return start.astimezone(UTC), end.astimezone(UTC)
