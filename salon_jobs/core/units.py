"""Conversion of instants, and formatting of durations, numbers and names for people."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from math import isclose
from typing import Final


def gettext_noop(message: str) -> str:
    """Mark a text for translation at the place that shows it. Django's own function reads the settings."""
    return message


_UNITS: Final = (
    (86_400.0, gettext_noop("%(number)s d")),
    (3600.0, gettext_noop("%(number)s h")),
    (60.0, gettext_noop("%(number)s min")),
    (1.0, gettext_noop("%(number)s s")),
    (0.001, gettext_noop("%(number)s ms")),
)


def duration(seconds: float | None, translate: Callable[[str], str] = str) -> str:
    """Format a duration in the largest unit that fits into it; ``translate`` as in ``salon_jobs.words``."""
    if seconds is None:
        return "–"
    if seconds <= 0:
        return translate("%(number)s s") % {"number": 0}
    if seconds < 0.001:
        return translate("%(number)s ms") % {"number": "<1"}
    size, unit = next(each for each in _UNITS if seconds >= each[0])
    number = seconds / size
    return translate(unit) % {"number": f"{number:.0f}" if number >= 10 else f"{number:.2g}"}


def in_seconds(seconds: float) -> str:
    """Format a duration in seconds, for comparison with a setting: ``7,500 s``, ``0.25 s``."""
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def relative_time(at: datetime, now: datetime, translate: Callable[[str], str] = str) -> str:
    """Format an instant relative to now; ``translate`` as in ``duration``."""
    distance_s = (now - at).total_seconds()
    if abs(distance_s) < 1:
        return translate(gettext_noop("now"))
    template = translate(gettext_noop("%(time)s ago") if distance_s > 0 else gettext_noop("in %(time)s"))
    return template % {"time": duration(abs(distance_s), translate)}


def number(value: float | None) -> str:
    """Format a number with as many digits as it needs; None means unknown."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def estimate(value: float) -> str:
    """Format an estimate: two digits, marked as approximate. Zero and single digits stay as they are."""
    rounded = int(float(f"{value:.2g}"))
    return f"≈{rounded:,}" if rounded else "0"


def estimated(value: float | None, exact: bool) -> str:
    """Format a number, as an estimate unless it is exact."""
    return number(value) if exact or value is None else estimate(value)


def about(seconds: float | None, translate: Callable[[str], str] = str) -> str:
    """Format a duration read from a histogram, accurate to half a doubling; ``translate`` as in ``duration``."""
    return duration(seconds, translate) if not seconds else f"≈{duration(seconds, translate)}"


def counted(value: int, most: int) -> str:
    """Format a count that stops at ``most``, with a plus if it did."""
    return f"{value:,}" if value < most else f"{most - 1:,}+"


def with_noun(count: int, noun: str, plural: str = "") -> str:
    """Format a count with its English noun, for logs and the terminal; the plural is regular unless given."""
    return f"1 {noun}" if count == 1 else f"{count:,} {plural or f'{noun}s'}"


def error_name(error_class: str | None) -> str:
    """Return the name of an error class, without the module for Python's own."""
    return (error_class or "").removeprefix("builtins.")


# Each unit of a rate, in seconds.
RATE_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def short_rate(rate: float) -> str:
    """Format a rate per second in the form of a setting, such as "100/m": in the first unit that makes it whole."""
    for unit, seconds in RATE_UNITS.items():
        if isclose(rate * seconds, whole := round(rate * seconds), rel_tol=1e-9):
            return f"{whole}/{unit}"
    return f"{rate:g}/s"


# The range of the job table: a day less than Python's, so that it can be shown in every time zone. A single row beyond
# it (PostgreSQL has infinity and BC) would raise an error in every reader and stop every worker.
EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)


def as_utc(instant: datetime) -> datetime:
    """Return ``instant`` in UTC. Raises ValueError for a naive datetime, which denotes no instant."""
    if instant.utcoffset() is None:
        raise ValueError(f"an aware datetime is needed, not the naive {instant.isoformat()}")
    return instant.astimezone(UTC)
