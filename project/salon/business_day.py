"""Computes business days: a business day is one calendar day in Japan, from midnight to midnight JST."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

from project.salon.models.store import Store

ONE_DAY = timedelta(days=1)


def jst_date(instant: datetime) -> date:
    """Return the date in Japan at an aware ``instant``; raises ``ValueError`` for a naive one."""
    if instant.tzinfo is None:
        raise ValueError("a business day needs an aware instant")
    return instant.astimezone(Store.TIME_ZONE).date()


def business_day_bounds(day: date) -> tuple[datetime, datetime]:
    """Return the first instant of a business day and the first instant after it, in UTC."""
    start = datetime.combine(day, time(), tzinfo=Store.TIME_ZONE)
    end = datetime.combine(day + ONE_DAY, time(), tzinfo=Store.TIME_ZONE)
    return start.astimezone(UTC), end.astimezone(UTC)
