"""Tests cron lines in time zones, above all on the days on which clocks change."""

from __future__ import annotations

import copy
import pickle
import re
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from salon_jobs.core.errors import CronInvalid
from salon_jobs.schedules.cron import CronExpression

MINUTE = timedelta(minutes=1)
WALK = 2 * 1440
HALVES = ["00:00", "00:30", "01:00", "01:30", "02:00", "02:30", "03:00"]
NEW_YORK, LORD_HOWE = "America/New_York", "Australia/Lord_Howe"
ZONES = [
    *("UTC", "Asia/Tokyo", NEW_YORK, "Europe/Berlin", "Europe/Dublin", LORD_HOWE, "Africa/Casablanca"),
    *("America/Sao_Paulo", "Asia/Beirut", "Pacific/Chatham", "America/St_Johns", "Africa/Cairo", "Asia/Kathmandu"),
]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def local_times(line: str, zone: str, start: str, end: str) -> list[str]:
    """List the firings between two local times, as local time with offset."""
    tz = ZoneInfo(zone)
    first, last = (datetime.fromisoformat(text).replace(tzinfo=tz) for text in (start, end))
    return [f"{due.astimezone(tz):%H:%M%z}" for due in CronExpression(line, zone).between(first - MINUTE, last)]


def test_1800_utc_is_0300_in_tokyo() -> None:
    tick = CronExpression("0 18 * * *").next_after(at("2026-05-05T00:00Z"))
    assert tick == at("2026-05-06T03:00+09:00")
    assert tick == CronExpression("0 3 * * *", "Asia/Tokyo").next_after(at("2026-05-05T00:00Z"))
    assert tick.tzinfo is UTC


@pytest.mark.parametrize(
    ("after", "expected"), [("05:00Z", "10:00Z"), ("04:59.999999Z", "05:00Z"), ("05:00.000001Z", "10:00Z")]
)
def test_next_is_strictly_after(after: str, expected: str) -> None:
    """Seconds do not count."""
    tick = CronExpression("*/5 * * * *").next_after(at(f"2026-01-01T00:{after}"))
    assert tick == at(f"2026-01-01T00:{expected}")


def test_between_excludes_start_and_includes_end() -> None:
    midnight, one, two = (at(f"2026-01-01T0{hour}:00Z") for hour in range(3))
    hourly = CronExpression("0 * * * *")
    assert list(hourly.between(midnight, two)) == [one, two]
    assert list(hourly.between(two, midnight)) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("30 2 * * *", ["03:00-0400"]),
        ("30 2,3 * * *", ["03:00-0400", "03:30-0400"]),
        ("0 2,3 * * *", ["03:00-0400"]),
        ("30 1-4 * * *", ["01:30-0500", "03:00-0400", "03:30-0400", "04:30-0400"]),
        # A wildcard hour follows elapsed time: nothing is lost in the gap that needs making up for …
        ("30 * * * *", ["00:30-0500", "01:30-0500", "03:30-0400", "04:30-0400"]),
        ("0 * * * *", ["00:00-0500", "01:00-0500", "03:00-0400", "04:00-0400", "05:00-0400"]),
        # … unless the step leaves a hole: 02:15 has no other run in its place.
        ("15 */2 * * *", ["00:15-0500", "03:00-0400", "04:15-0400"]),
    ],
)
def test_time_in_gap_runs_at_its_end(line: str, expected: list[str]) -> None:
    assert local_times(line, NEW_YORK, "2026-03-08T00:00", "2026-03-08T05:00") == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("30 1 * * *", ["01:30-0400"]),
        ("*/30 1 * * *", ["01:00-0400", "01:30-0400"]),
        ("0 0-3 * * *", ["00:00-0400", "01:00-0400", "02:00-0500", "03:00-0500"]),
        ("30 * * * *", ["00:30-0400", "01:30-0400", "01:30-0500", "02:30-0500"]),
        ("*/40 0-2 * * *", ["00:00-0400", "00:40-0400", "01:00-0400", "01:40-0400", "02:00-0500", "02:40-0500"]),
        ("*/40 1,2 * * *", ["01:00-0400", "01:40-0400", "02:00-0500", "02:40-0500"]),
        ("0,40 */3 * * *", ["00:00-0400", "00:40-0400", "03:00-0500"]),
        ("*/30 * * * *", [f"{time}-0400" for time in HALVES[:4]] + [f"{time}-0500" for time in HALVES[2:]]),
        ("0 */1 * * *", ["00:00-0400", "01:00-0400", "01:00-0500", "02:00-0500", "03:00-0500"]),
    ],
)
def test_overlap_repeats_only_wildcard_hours(line: str, expected: list[str]) -> None:
    assert local_times(line, NEW_YORK, "2026-11-01T00:00", "2026-11-01T03:00") == expected


def test_start_inside_overlap() -> None:
    second_0115 = at("2026-11-01T01:15-05:00")
    assert CronExpression("30 1 * * *", NEW_YORK).next_after(second_0115) == at("2026-11-02T01:30-05:00")
    assert CronExpression("30 * * * *", NEW_YORK).next_after(second_0115) == at("2026-11-01T01:30-05:00")
    # The next match is in the overlap of another year: its first occurrence must not be skipped.
    yearly = CronExpression("30 */1 1 11 *", NEW_YORK)
    assert yearly.next_after(at("2026-11-01T23:30-05:00")) == at("2027-11-01T00:30-04:00")
    sparse = CronExpression("10 */23 1 11 *", NEW_YORK)
    assert [f"{due:%Y-%m-%dT%H:%M}" for due in islice(sparse.between(second_0115, at("2040-01-01T00:00Z")), 2)] == [
        "2026-11-02T04:10",
        "2027-11-01T04:10",
    ]


def test_lord_howe_moves_by_half_an_hour() -> None:
    spring = ("2026-10-04T01:00", "2026-10-04T03:30")  # 02:00 +10:30 → 02:30 +11:00
    assert local_times("15 2 * * *", LORD_HOWE, *spring) == ["02:30+1100"]
    assert local_times("15,30 2 * * *", LORD_HOWE, *spring) == ["02:30+1100"]
    assert local_times("*/15 * * * *", LORD_HOWE, *spring)[3:6] == ["01:45+1030", "02:30+1100", "02:45+1100"]
    assert local_times("15 * * * *", LORD_HOWE, *spring) == ["01:15+1030", "02:30+1100", "03:15+1100"]
    autumn = ("2026-04-05T01:00", "2026-04-05T02:30")  # 02:00 +11:00 → 01:30 +10:30
    assert local_times("45 1 * * *", LORD_HOWE, *autumn) == ["01:45+1100"]
    assert local_times("45 * * * *", LORD_HOWE, *autumn) == ["01:45+1100", "01:45+1030"]
    assert local_times("15 * * * *", LORD_HOWE, *autumn) == ["01:15+1100", "02:15+1030"]


def test_gap_at_midnight_and_skipped_day() -> None:
    assert local_times("0 0 * * *", "Asia/Beirut", "2026-03-28T12:00", "2026-03-29T12:00") == ["01:00+0300"]
    # Samoa skipped 30 December 2011: its 09:00 runs at the first minute of the 31st.
    apia = CronExpression("0 9 * * *", "Pacific/Apia")
    assert list(apia.between(at("2011-12-29T00:00-10:00"), at("2011-12-31T23:00+14:00"))) == [
        at("2011-12-29T09:00-10:00"),
        at("2011-12-31T00:00+14:00"),
        at("2011-12-31T09:00+14:00"),
    ]


def test_gap_ending_between_minutes() -> None:
    # Liberia moved from -00:44:30 to UTC at midnight of 7 January 1972.
    monrovia = CronExpression("30 0 7 1 *", "Africa/Monrovia")
    assert monrovia.next_after(at("1972-01-06T00:00Z")) == at("1972-01-07T00:45Z")


def test_day_fields() -> None:
    start = at("2026-01-01T00:00Z")

    def dates(line: str, count: int) -> list[str]:
        return [f"{due:%m-%d}" for due in islice(CronExpression(line).between(start, at("2060-01-01T00:00Z")), count)]

    assert dates("0 9 L * *", 3) == ["01-31", "02-28", "03-31"]
    assert dates("0 9 * * mon#1", 3) == ["01-05", "02-02", "03-02"]
    assert dates("0 9 * * L5", 2) == ["01-30", "02-27"]
    assert dates("0 9 13 * FRI", 4) == ["01-02", "01-09", "01-13", "01-16"]
    assert dates("0 9 * feb 7", 2) == ["02-01", "02-08"]
    assert dates("0 9 * * 7-1", 3) == ["01-04", "01-05", "01-11"]
    for every_day in ("*", "0-6", "0-7", "sun-sat", "0,1,2,3,4,5,6"):
        assert dates(f"0 9 */10 * {every_day}", 3) == ["01-01", "01-11", "01-21"]
        assert dates(f"0 9 5 * {every_day}", 2) == ["01-05", "02-05"]
    for every_day in ("*", "*/1", "1-31", "1-31,L", "1-15,16-31"):
        assert dates(f"0 9 {every_day} * mon", 2) == ["01-05", "01-12"]
        assert dates(f"0 9 {every_day} * 0-6", 2) == ["01-01", "01-02"]
    assert dates("0 9 * * 5-7", 4) == ["01-02", "01-03", "01-04", "01-09"]
    assert CronExpression("0 0 29 2 *").next_after(at("2097-01-01T00:00Z")) == at("2104-02-29T00:00Z")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("61 * * * *", "the minute field '61' is wrong: '61' is not a value"),
        ("* 24 * * *", "the hour field '24'"),
        ("* * 0 * *", "the day-of-month field '0'"),
        ("* * * 13 *", "the month field '13'"),
        ("* * * * 8", "the day-of-week field '8'"),
        ("5,, * * * *", "the minute field '5,,'"),
        ("-5 * * * *", "the minute field '-5'"),
        ("*/0 * * * *", "the step of '*/0'"),
        ("5/10 * * * *", "needs an ascending range"),
        ("0 22-4/3 * * *", "needs an ascending range"),
        ("* 9-9 * * *", "has one value, write 9"),
        ("0 0 * * 7-0", "the range '7-0' has one value, write 7"),
        ("0 0 * * 7-sun", "the range '7-sun' has one value, write 7"),
        ("0 0 * * 3,L5", "the day-of-week field '3,L5' counts weekdays of a month and names others"),
        ("0 0 * * 1#2,fri", "declare two entries"),
        ("H * * * *", "the minute field 'H'"),
        ("* * 15W * *", "the day-of-month field '15W'"),
        ("٣ * * * *", "the minute field"),
        ("0 0 1 * 1#1", "cannot be combined"),
        ("0 0 30 2 *", "the day-of-month field '30' never occurs in the months"),
        ("0 0 31 4,6,9,11 *", "never occurs"),
        ("@daily", "write '0 0 * * *'"),
        ("@reboot", "has 1 fields; write five"),
        ("* * * * * *", "has 6 fields; write five"),
        ("", "has 0 fields"),
        (None, "a cron line is a string"),
    ],
)
def test_malformed_line_is_refused_by_field(line: str, message: str) -> None:
    with pytest.raises(CronInvalid, match=re.escape(message)):
        CronExpression(line)


@pytest.mark.parametrize(
    ("zone", "message"),
    [
        ("Asia/Tokio", "did you mean Asia/Tokyo"),
        ("", "write an IANA name"),
        ("../../etc/passwd", "unknown time zone"),
        ("America", "unknown time zone 'America'"),
        ("\0", "unknown time zone"),
        (None, "a time zone is given by its IANA name"),
    ],
)
def test_unknown_zone_is_refused(zone: str, message: str) -> None:
    with pytest.raises(CronInvalid, match=re.escape(message)):
        CronExpression("* * * * *", zone)


def test_naive_datetime_is_refused() -> None:
    naive = at("2026-01-01T00:00Z").replace(tzinfo=None)
    with pytest.raises(ValueError, match="naive"):
        CronExpression("* * * * *").next_after(naive)
    with pytest.raises(ValueError, match="naive"):
        list(CronExpression("* * * * *").between(at("2026-01-01T00:00Z"), naive))


def test_expression_is_a_value() -> None:
    line = CronExpression(" 0   18 * * * ", "Asia/Tokyo")
    assert line == CronExpression("0 18 * * *", "Asia/Tokyo")
    assert len({line, copy.copy(line), pickle.loads(pickle.dumps(line))}) == 1
    assert repr(line) == "CronExpression(line='0 18 * * *', timezone='Asia/Tokyo')"


def values(low: int, high: int) -> st.SearchStrategy[str]:
    return st.lists(st.integers(low, high), min_size=1, max_size=3, unique=True).map(lambda v: ",".join(map(str, v)))


def instants(first_year: int = 2000, last_year: int = 2036) -> st.SearchStrategy[datetime]:
    first, last = datetime(first_year, 1, 1), datetime(last_year, 12, 31)  # noqa: DTZ001  (Hypothesis adds the zone)
    return st.datetimes(first, last, timezones=st.just(UTC))


CHANGES = [
    *("2026-03-08T07:00Z", "2026-11-01T06:00Z", "2026-04-04T15:00Z", "2026-10-03T15:30Z", "2026-03-29T01:00Z"),
    *("2026-10-25T01:00Z", "2018-11-04T03:00Z", "2018-02-18T02:00Z", "2026-03-28T22:00Z", "2011-12-30T10:00Z"),
]


def near_change() -> st.SearchStrategy[datetime]:
    """Draw instants within a day of a change of clocks somewhere."""
    pairs = st.tuples(st.sampled_from(CHANGES), st.integers(-1440, 1440))
    return pairs.map(lambda pair: at(pair[0]) + pair[1] * MINUTE)


HOURS = st.one_of(st.just("*"), st.integers(2, 12).map(lambda n: f"*/{n}"), values(0, 23))
MINUTES = st.one_of(st.just("*"), st.sampled_from(["*/5", "*/7", "*/20", "*/30"]), values(0, 59))


def expand(text: str, high: int) -> set[int]:
    """Expand the small grammar used here, independently of the code under test."""
    if text == "*" or text.startswith("*/"):
        return set(range(0, high + 1, int(text.partition("/")[2] or 1)))
    return {int(value) for value in text.split(",")}


def offset(wall: datetime) -> timedelta:
    found = wall.utcoffset()
    assert found is not None
    return found


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    times=st.tuples(MINUTES, HOURS),
    days=st.tuples(st.just("*") | values(1, 28), st.just("*") | values(0, 6)),
    zone=st.sampled_from([*ZONES, "Pacific/Apia"]),
    start=instants() | near_change(),
)
def test_firings_match_minute_walk(times: tuple[str, str], days: tuple[str, str], zone: str, start: datetime) -> None:
    """Compare with a slow walk over every minute of two days that applies the rules directly."""
    tz, (minute, hour), (day, weekday) = ZoneInfo(zone), times, days
    wildcard, minutes, hours = hour.startswith("*"), expand(minute, 59), expand(hour, 23)
    month_days, weekdays = expand(day, 31), expand(weekday, 6)

    def fits(wall: datetime) -> bool:
        either = [wall.day in month_days] if day != "*" else []
        either += [wall.isoweekday() % 7 in weekdays] if weekday != "*" else []
        return wall.minute in minutes and wall.hour in hours and (any(either) or not either)

    begin = start.replace(second=0, microsecond=0)
    expected: list[datetime] = []
    before = offset(begin.astimezone(tz))
    for step in range(1, WALK + 1):
        now = begin + step * MINUTE
        wall = now.astimezone(tz)
        jump, before = offset(wall) - before, offset(wall)
        due = fits(wall) and (wildcard or wall.fold == 0)
        if jump > timedelta(0):
            lost = [wall.replace(tzinfo=None) - back * MINUTE for back in range(1, jump // MINUTE + 1)]
            due = due or any(fits(each) and not (wildcard and fits(each + jump)) for each in lost)
        if due:
            expected.append(now)
    line = CronExpression(f"{minute} {hour} {day} * {weekday}", zone)
    assert list(line.between(begin, begin + WALK * MINUTE)) == expected
    assert all(line.next_after(due - timedelta.resolution) == due for due in expected[:60])
