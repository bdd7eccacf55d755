"""What metrics are called and how they are written; percentiles read from counts; no label grows without bound."""

from __future__ import annotations

import math
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salon_jobs.core import metrics
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.core.metrics import BOUNDS_S, BUCKETS, MOST_VALUES, MetricType, Sample, Timings, bucket_of, percentile
from salon_jobs.process.exposition import exposition
from tests.metrics import METRICS, of, shown


def test_names_follow_conventions() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS) > 20
    for metric in METRICS:
        assert re.fullmatch(r"salon_jobs_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is MetricType.COUNTER)
        assert metric.kind is not MetricType.HISTOGRAM or metric.name.endswith("_seconds")
        assert not {"id", "job", "store", "store_id", "message_id", "le"} & set(metric.labels), metric.name


def test_timings_become_cumulative_histogram() -> None:
    counts = counted([0.0001, 0.02, 0.02, 100_000.0])
    values = shown([Sample(metrics.DURATION, Timings(counts, 100_000.04), ("ping",))])
    assert of(values, "run_duration_seconds_count", task="ping") == 4
    assert of(values, "run_duration_seconds_sum", task="ping") == 100_000.04
    steps = sorted(
        (float(dict(labels)["le"]), value)
        for (name, labels), value in values.items()
        if name == "salon_jobs_run_duration_seconds_bucket"
    )
    assert [value for _, value in steps] == sorted(value for _, value in steps)
    assert {value for le, value in steps if le < 0.02} == {1}
    assert {value for le, value in steps if 0.03 < le < float("inf")} == {3}
    assert steps[-1] == (float("inf"), 4)
    assert len(steps) < 20


def test_number_of_labels_is_bounded() -> None:
    counted = [Sample(metrics.QUEUE_DEPTH, 1, (f"q{number}", "due")) for number in range(MOST_VALUES + 50)]
    values = shown([*counted, Sample(metrics.QUEUE_DEPTH, 1, ("q0", "due"))])
    assert len(values) == MOST_VALUES + 1
    assert of(values, "queue_depth", queue="other", state="due") == 50
    assert of(values, "queue_depth", queue="q0", state="due") == 2
    ages = [Sample(metrics.OLDEST_DUE, number, (f"q{number}",)) for number in range(MOST_VALUES + 50)]
    assert of(shown(ages), "oldest_due_age_seconds", queue="other") == MOST_VALUES + 49


def test_open_metrics_on_request() -> None:
    samples = [Sample(metrics.CLAIMED, 3)]
    text, kind = exposition(samples, accept="application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert b"salon_jobs_claimed_total 3.0" in text
    assert text.endswith(b"# EOF\n")


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=re.escape("pip install 'salon-jobs[prometheus]'")):
        exposition([])


# Percentiles, compared with those of the durations that were counted

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
