"""Tests what metrics are called, how they are written, and that no label can grow without bound."""

from __future__ import annotations

import re
import sys

import pytest

from salon_jobs.core import metrics
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.core.metrics import BUCKETS, MOST_VALUES, MetricType, Sample, Timings, bucket_of
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
    counts = [0] * BUCKETS
    for seconds in (0.0001, 0.02, 0.02, 100_000.0):
        counts[bucket_of(seconds)] += 1
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
