"""Reads what /metrics shows, by prometheus-client's own parser."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from salon_jobs.core import metrics
from salon_jobs.core.metrics import Metric, MetricType, Sample
from salon_jobs.process.exposition import exposition
from tests.waiting import LIMIT_S

Shown = dict[tuple[str, tuple[tuple[str, str], ...]], float]

METRICS = tuple(value for value in vars(metrics).values() if isinstance(value, Metric))
# Every series that there is, by name, with the labels it has.
SERIES: dict[str, set[str]] = {}
for _metric in METRICS:
    if _metric.kind is MetricType.HISTOGRAM:
        SERIES[f"{_metric.name}_bucket"] = {*_metric.labels, "le"}
        SERIES[f"{_metric.name}_sum"] = SERIES[f"{_metric.name}_count"] = set(_metric.labels)
    else:
        SERIES[_metric.name] = set(_metric.labels)


def parsed(text: str) -> Shown:
    """Return every value of ours by name and labels. Fails when one is not as declared."""
    shown: Shown = {}
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            if name.startswith("salon_jobs_"):
                assert SERIES[name] == set(labels), name
                assert (name, tuple(sorted(labels.items()))) not in shown, name
                shown[name, tuple(sorted(labels.items()))] = value
    return shown


def scraped(address: str) -> Shown:
    """Ask a health endpoint for its metrics."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=LIMIT_S) as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain")
        return parsed(response.read().decode())


def shown(samples: Iterable[Sample]) -> Shown:
    return parsed(exposition(samples)[0].decode())


def of(values: Shown, name: str, **labels: str) -> float:
    """Return one value; 0 when it is not shown."""
    return values.get((f"salon_jobs_{name}", tuple(sorted(labels.items()))), 0.0)
