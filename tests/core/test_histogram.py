"""Compares percentiles read from counts with those of the durations that were counted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salon_jobs.core.metrics import BOUNDS_S, BUCKETS, bucket_of, percentile

SECONDS = st.floats(min_value=0, max_value=1e6)
SHARES = st.floats(min_value=0, max_value=1)


def counted(durations: list[float]) -> list[int]:
    counts = [0] * BUCKETS
    for seconds in durations:
        counts[bucket_of(seconds)] += 1
    return counts


@given(st.lists(SECONDS, min_size=1), SHARES)
def test_percentile_in_bucket_of_true_one(durations: list[float], share: float) -> None:
    true = sorted(durations)[max(1, math.ceil(share * len(durations))) - 1]
    computed = percentile(counted(durations), share)
    assert computed is not None
    assert bucket_of(computed) == bucket_of(true)
    if BOUNDS_S[0] <= true < BOUNDS_S[-1]:
        assert 1 / math.sqrt(2) <= computed / true <= math.sqrt(2) * (1 + 1e-12)


@given(st.lists(SECONDS, min_size=1), SHARES, SHARES)
def test_larger_share_is_never_less(durations: list[float], one: float, other: float) -> None:
    counts = counted(durations)
    low, high = percentile(counts, min(one, other)), percentile(counts, max(one, other))
    assert low is not None
    assert high is not None
    assert low <= high


def test_nothing_counted_has_no_percentile() -> None:
    assert percentile([0] * BUCKETS, 0.5) is None
    assert percentile([], 0.5) is None


@pytest.mark.parametrize(("seconds", "bucket"), [(0, 0), (0.0009, 0), (0.001, 1), (1e9, 47)])
def test_stored_buckets_stay(seconds: float, bucket: int) -> None:
    assert (bucket_of(seconds), BUCKETS) == (bucket, 48)
    assert math.isclose(BOUNDS_S[-1], 8388.608)
