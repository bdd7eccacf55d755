"""Instants of a cron line in a time zone, with well-defined behaviour when clocks change.

croniter parses the line and steps through naive wall clock times; this module maps wall clock times to instants.
croniter alone fires twice at 01:30 on the day the clocks go back.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from croniter import CroniterError, croniter

from salon_jobs.core.errors import CronInvalid
from salon_jobs.core.text import short_repr
from salon_jobs.core.units import as_utc

_MINUTE: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)
_ANCHOR: Final = datetime(2000, 1, 1)  # noqa: DTZ001  a wall clock time, which has no zone


@dataclass(frozen=True, slots=True)
class CronExpression:
    """A five-field cron line in an IANA time zone.

    If both day of month and day of week are given, either may match; a field of all its values is ``*``. When the
    clocks change:

    - *Gap* (clocks go forward): a wall clock time that does not exist runs once, at the first minute after the gap;
      several such times, or one that coincides with a regular run at that minute, are one run.
    - *Overlap* (clocks go back): a line with fixed hours runs only at the first of the two equal times.
    - A line whose hour field is a wildcard (``*``, ``*/n``) follows elapsed time: it runs in both halves of an overlap,
      and a time lost in a gap is not made up for when the line is due at the same elapsed time anyway
      (``30 * * * *`` runs at 01:30 and, one hour later, at 03:30).

    Raises CronInvalid for a line that is malformed or never due, or for an unknown zone.
    """

    line: str
    timezone: str = "UTC"
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)
    _elapsed: bool = field(init=False, repr=False, compare=False)
    _for_croniter: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        texts = _checked_fields(self.line)
        object.__setattr__(self, "line", " ".join(texts))
        object.__setattr__(self, "_zone", find_zone(self.timezone))
        object.__setattr__(self, "_elapsed", any(part.startswith("*") for part in texts[1].split(",")))
        try:
            (_, _, days, _, weekdays), counted = croniter.expand(self.line, strict=True)
            # Which of them croniter itself takes for * depends on the form of the other.
            if set(range(1, 32)) <= set(days):
                texts[2] = "*"
            if set(range(7)) <= set(weekdays) and not counted:
                texts[4] = "*"
            object.__setattr__(self, "_for_croniter", " ".join(texts))
            _wall_after(self._for_croniter, _ANCHOR)
        except CroniterError as error:
            raise CronInvalid(
                f"cron line {self.line!r}: the day-of-month field {texts[2]!r} never occurs in the months of the "
                f"month field {texts[3]!r}; change one of them ({error})"
            ) from error

    def next_after(self, instant: datetime) -> datetime:
        """Return the first due instant strictly after ``instant`` (aware), in UTC."""
        start = as_utc(instant)
        due = self._first_after(start, self._wall(start))
        end = min(due, start + _DAY)
        if self._elapsed and self._offset(end) < self._offset(start):
            # The clocks go back before `due`: from then on they repeat times that this search has passed.
            back = self._change_between(start, end)
            return self._first_after(back - timedelta.resolution, self._wall(back) - timedelta.resolution)
        return due

    def between(self, start_exclusive: datetime, end_inclusive: datetime) -> Iterator[datetime]:
        """Yield the due instants after ``start_exclusive`` up to ``end_inclusive``, lazily, ascending and in UTC."""
        end = as_utc(end_inclusive)
        due = self.next_after(start_exclusive)
        while due <= end:
            yield due
            due = self.next_after(due)

    def _first_after(self, start: datetime, wall: datetime) -> datetime:
        """Return the first instant after ``start`` among the line's wall clock times after ``wall``."""
        while True:
            wall = _wall_after(self._for_croniter, wall)
            for due in self._instants(wall):
                if due > start:
                    return due

    def _instants(self, wall: datetime) -> tuple[datetime, ...]:
        """Return the instants of ``wall``: one, two in an overlap (wildcard hour only), one or none in a gap."""
        before, after = (wall.replace(tzinfo=self._zone, fold=fold).utcoffset() or timedelta() for fold in (0, 1))
        first, second = ((wall - offset).replace(tzinfo=UTC) for offset in (before, after))
        if before == after:
            return (first,)
        if before > after:
            return (first, second) if self._elapsed else (first,)
        # In a gap (PEP 495) the two are swapped: `second` lies before the change, `first` at or after it.
        moved = wall + (after - before)
        if self._elapsed and _wall_after(self._for_croniter, moved - _MINUTE) == moved:
            return ()
        return (self._change_between(second, first),)

    def _change_between(self, start: datetime, end: datetime) -> datetime:
        """Find by bisection the first whole wall clock minute in (start, end] with the offset of ``end``."""
        low, high, target = int(start.timestamp()), int(end.timestamp()), self._offset(end)
        while high - low > 1:
            middle = (low + high) // 2
            if self._offset(datetime.fromtimestamp(middle, UTC)) == target:
                high = middle
            else:
                low = middle
        change = datetime.fromtimestamp(high, UTC)
        return change + timedelta(seconds=-self._wall(change).second % 60)  # changes before about 1972 have seconds

    def _wall(self, instant: datetime) -> datetime:
        return instant.astimezone(self._zone).replace(tzinfo=None, fold=0)

    def _offset(self, instant: datetime) -> timedelta:
        return instant.astimezone(self._zone).utcoffset() or timedelta()


# Pure, so cached results stay valid.
expression_of = lru_cache(1024)(CronExpression)


def _wall_after(line: str, wall: datetime) -> datetime:
    """Return the first wall clock time of ``line`` after ``wall``; both naive."""
    return croniter(line, wall.replace(second=0, microsecond=0), ret_type=datetime).get_next(datetime)


_PART: Final = re.compile(r"(?P<low>\*|\w+)(?:-(?P<high>\w+))?(?:/(?P<step>[0-9]{1,3}))?", re.ASCII)
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NTH_WEEKDAY: Final = re.compile(r"([0-7]|sun|mon|tue|wed|thu|fri|sat)#[1-5]|l[0-7]", re.ASCII)
_ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@dataclass(frozen=True, slots=True)
class _Field:
    """Stricter check of one field than croniter's, which reads ``9-9`` as every hour and ``*/90`` as ``0``."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    cycle: int = 60
    """The period after which values repeat: 7 is Sunday, like 0."""
    special: re.Pattern[str] | None = None
    more: str = ""

    def problem(self, part: str) -> str | None:
        if self.special is not None and self.special.fullmatch(part.lower()):
            return None
        match = _PART.fullmatch(part)
        if match is None or (match["low"] == "*" and match["high"] is not None):
            return f"{part!r} is not understood"
        low, high, step = match["low"], match["high"], match["step"]
        for bound in (low, high):
            if bound not in (None, "*") and self._number(bound) < 0:
                return f"{bound!r} is not a value of this field"
        if step is not None and not 1 <= int(step) <= self.high - self.low:
            return f"the step of {part!r} is too large: the field starts over after {self.high}"
        if step is not None and low != "*" and (high is None or self._number(low) >= self._number(high)):
            return f"the step of {part!r} needs an ascending range such as {self.low}-{self.high}/{step}"
        over = 1 if high is None else self._number(low) - self._number(high)
        if step is None and over >= 0 and over % self.cycle == 0:
            return f"the range {part!r} has one value, write {low}"
        return None

    def _number(self, text: str) -> int:
        """Return the value of a number or a name, or -1."""
        if text.lower() in self.names:
            return self.names.index(text.lower()) + self.low
        return int(text) if re.fullmatch("[0-9]{1,2}", text) and self.low <= int(text) <= self.high else -1


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day-of-month", 1, 31, special=re.compile("l"), more=", L (the last day)"),
    _Field("month", 1, 12, _MONTHS, more=" (or jan to dec)"),
    _Field("day-of-week", 0, 7, _WEEKDAYS, 7, _NTH_WEEKDAY, " (or sun to sat), 1#2 (second Monday), L5 (last Friday)"),
)


def _checked_fields(line: object) -> list[str]:
    """Split ``line`` into its five fields and check each. Raises CronInvalid naming field and remedy."""
    if not isinstance(line, str):
        raise CronInvalid(f"a cron line is a string such as '0 18 * * *', not {short_repr(line)}")
    texts = line.split()
    if plain := _ALIASES.get(line.strip().lower()):
        raise CronInvalid(f"cron line {line!r} is an alias; write {plain!r}")
    if len(texts) != len(_FIELDS):
        names = " ".join(each.name for each in _FIELDS)
        raise CronInvalid(f"cron line {line!r} has {len(texts)} fields; write five: {names} (no seconds, no years)")
    for each, text in zip(_FIELDS, texts, strict=True):
        for part in text.split(","):
            if problem := each.problem(part):
                raise CronInvalid(
                    f"cron line {line!r}: the {each.name} field {text!r} is wrong: {problem}; write *, */n, values or "
                    f"ranges from {each.low} to {each.high}{each.more}, with commas between"
                )
    counted = [bool(_NTH_WEEKDAY.fullmatch(part.lower())) for part in texts[4].split(",")]
    if any(counted) and not all(counted):
        raise CronInvalid(
            f"cron line {line!r}: the day-of-week field {texts[4]!r} counts weekdays of a month and names others; "
            "declare two entries, one for each"
        )
    if texts[2] != "*" and any(counted):
        raise CronInvalid(
            f"cron line {line!r}: the day-of-week field {texts[4]!r} counts weekdays of a month and cannot be "
            f"combined with the day-of-month field {texts[2]!r}; write * for one of them, or declare two entries"
        )
    return texts


def find_zone(name: object) -> ZoneInfo:
    """Return the time zone of this IANA name. Raises CronInvalid for a zone that this machine does not know."""
    if not isinstance(name, str):
        raise CronInvalid(f"a time zone is given by its IANA name such as 'Asia/Tokyo', not {short_repr(name)}")
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # unknown; malformed or outside the database; a directory
        close = difflib.get_close_matches(name, available_timezones(), n=3)
        hint = f"did you mean {', '.join(close)}?" if close else "write an IANA name such as Asia/Tokyo or UTC"
        raise CronInvalid(f"unknown time zone {name!r}; {hint}") from error
