"""The wait between attempts."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salon_jobs.core.backoff import Backoff

PLAIN = Backoff(jitter=0)
HOUR = timedelta(hours=1)


def test_waits_double_up_to_an_hour() -> None:
    waits = [PLAIN.delay(attempt, Random(1)).total_seconds() for attempt in range(1, 14)]
    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600]


def test_jitter_at_the_cap() -> None:
    rng = Random(7)
    waits = [Backoff().delay(10_000, rng) / HOUR for _ in range(1000)]
    assert 0.9 <= min(waits) < 0.91
    assert 1.09 < max(waits) <= 1.1


def test_seeded_and_default_rng() -> None:
    assert Backoff().delay(3, Random(5)) == Backoff().delay(3, Random(5))
    assert timedelta(seconds=1.8) <= Backoff().delay(1) <= timedelta(seconds=2.2)


def test_factor_of_one() -> None:
    steady = replace(PLAIN, factor=1.0, base=timedelta(seconds=20))
    assert {steady.delay(attempt, Random(1)) for attempt in (1, 2, 10_000)} == {timedelta(seconds=20)}


@given(
    attempt=st.one_of(st.integers(1, 100), st.sampled_from([10_000, 10**9, 10**30])),
    base=st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=1)),
    factor=st.floats(1, 1e300),
    seed=st.integers(),
)
def test_any_attempt_has_bounded_wait(attempt: int, base: timedelta, factor: float, seed: int) -> None:
    backoff = Backoff(base=base, factor=factor, cap=timedelta(days=2))
    plain = replace(backoff, jitter=0)
    wait = plain.delay(attempt, Random(seed))
    assert base <= wait <= backoff.cap
    assert wait <= plain.delay(attempt + 1, Random(seed))
    assert abs(backoff.delay(attempt, Random(seed)) - wait) <= wait * 0.1 + timedelta(microseconds=1)


WRONG: dict[str, list[Any]] = {
    "base": [timedelta(0), -HOUR, 2],
    "cap": [3600, timedelta(seconds=1), timedelta.max],
    "factor": ["2", 0.5, float("nan"), float("inf")],
    "jitter": [None, -0.1, 1.1, float("nan")],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in WRONG for value in WRONG[field]])
def test_invalid_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"Backoff\.{field} "):
        Backoff(**{field: value})


@pytest.mark.parametrize("attempt", [0, -1])
def test_attempt_below_one_is_refused(attempt: int) -> None:
    with pytest.raises(ValueError, match="counts from 1"):
        PLAIN.delay(attempt, Random(1))


def test_bounds_of_delays() -> None:
    backoff = Backoff(base=timedelta(seconds=2), jitter=0.5)
    for attempt in (1, 2, 5, 100):
        shortest, longest = backoff.bounds(attempt)
        assert all(shortest <= backoff.delay(attempt) <= longest for _ in range(100))
    assert backoff.bounds(2) == (timedelta(seconds=2), timedelta(seconds=6))
