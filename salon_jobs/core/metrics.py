"""Declarations of all metrics, and histograms of durations. Imports no SDK."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

# Maximum number of values per label; the rest are merged into OTHER.
MOST_VALUES: Final = 100
OTHER: Final = "other"


class MetricType(StrEnum):
    """Prometheus type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """Declaration of one metric.

    With ``worst``, values under the same labels are merged to their maximum, not their sum.
    """

    name: str
    kind: MetricType
    help: str
    labels: tuple[str, ...] = ()
    worst: bool = False


class Timings(NamedTuple):
    """Value of a histogram: counts per bucket of ``salon_jobs.core.metrics``, and the sum in seconds."""

    counts: Sequence[int]
    sum_s: float


class Sample(NamedTuple):
    """One current value, with its label values in the order of the labels."""

    metric: Metric
    value: float | Timings
    labels: tuple[str, ...] = ()


def _counter(name: str, help: str, *labels: str) -> Metric:
    return Metric(f"salon_jobs_{name}_total", MetricType.COUNTER, help, labels)


def _gauge(name: str, help: str, *labels: str, worst: bool = True) -> Metric:
    return Metric(f"salon_jobs_{name}", MetricType.GAUGE, help, labels, worst)


def _histogram(name: str, help: str, *labels: str) -> Metric:
    return Metric(f"salon_jobs_{name}_seconds", MetricType.HISTOGRAM, help, labels)


PROCESS_INFO: Final = _gauge("process_info", "1, for the kind of the process and its release", "kind", "version")
READY: Final = _gauge("ready", "1 while the process does its work, by its own view; 0 otherwise", "kind")
LOOP_AGE: Final = _gauge("loop_age_seconds", "How long ago a loop last looked for work", "loop")
LISTENING: Final = _gauge("listening", "1 while wake-ups arrive, 0 while they do not", "loop")

PROCESSES: Final = _gauge("worker_processes", "Processes that run jobs and have reported", worst=False)
RUNNING: Final = _gauge("running_jobs", "Jobs that the processes of this worker run now", worst=False)
CLAIMED: Final = _counter("claimed", "Jobs claimed by the processes of this worker")
FINISHED: Final = _counter(
    "finished",
    "Runs that ended: succeeded, retried, failed, cancelled, snoozed, released, rescued, expired or unknown",
    "task",
    "outcome",
)
DURATION: Final = _histogram("run_duration", "How long runs took, not counting those that were interrupted", "task")
WAIT: Final = _histogram("run_wait", "How long jobs had been due when their run began", "task")
QUEUE_DEPTH: Final = _gauge(
    "queue_depth", "Jobs due, paused, scheduled or failed; each counted up to 10,000", "queue", "state", worst=False
)
OLDEST_DUE: Final = _gauge(
    "oldest_due_age_seconds", "How late the oldest due job is, not counting paused ones and unknown tasks", "queue"
)
UNKNOWN_TASKS: Final = _gauge("unknown_tasks", "Tasks of due jobs that this release does not know")

CRON_LAST_TICK: Final = _gauge(
    "cron_last_tick_timestamp_seconds", "Up to when all ticks have fired or were given up", "entry"
)
CRON_OVERDUE: Final = _gauge("cron_overdue_seconds", "How long the oldest due tick has waited to be fired", "entry")
CRON_LATENESS: Final = _gauge("cron_lateness_seconds", "How late this scheduler's last fire of the entry was", "entry")
CRON_TICKS: Final = _counter(
    "cron_ticks", "Ticks by what became of them: fired, missed, failed or skipped", "entry", "outcome"
)
SCHEDULES_OVERDUE: Final = _gauge(
    "schedules_overdue_seconds", "How long the longest due schedule has waited; 0 if none"
)
SCHEDULE_TICKS: Final = _counter(
    "schedule_ticks", "Ticks of schedules by what became of them: fired, missed, skipped or failed", "outcome"
)

RELAY_LAG: Final = _gauge(
    "relay_lag_seconds", "The age of the oldest message still to be relayed; 0 while paused", "destination"
)
RELAY_MESSAGES: Final = _counter(
    "relay_messages", "Messages by what became of them: published, skipped, retried or failed", "destination", "outcome"
)
RELAY_BLOCKED: Final = _gauge(
    "relay_blocked_aggregates",
    "Aggregates waiting for a retry, or parked; counted up to 10,000",
    "destination",
    "status",
    worst=False,
)
BREAKER_OPEN: Final = _gauge("relay_breaker_open", "1 while the destination is unreachable", "destination")
DESTINATION_PAUSED: Final = _gauge("relay_paused", "1 while an operator has paused the destination", "destination")
GATE_HELD: Final = _gauge("relay_gate_held_seconds", "How long an open transaction has held messages back")
PARTITIONS_OWNED: Final = _gauge("relay_partitions", "Partitions that this relay owns", worst=False)

CONSUMER_RECEIVED: Final = _counter("consumer_received", "Deliveries received", "consumer")
CONSUMER_MESSAGES: Final = _counter(
    "consumer_messages",
    "Messages by what became of them: enqueued, duplicate, rejected or given_back",
    "consumer",
    "outcome",
)
CONSUMER_REJECTED: Final = _gauge("consumer_rejected", "Messages that wait for an operator", "consumer")
CONSUMER_UP: Final = _gauge("consumer_up", "1 while source and database answer this consumer", "consumer")
CONSUMER_POLL_AGE: Final = _gauge("consumer_poll_age_seconds", "How long ago the source last answered", "consumer")


def bounded(samples: Iterable[Sample]) -> list[Sample]:
    """Merge samples with equal labels, and all beyond the first MOST_VALUES values of a label into OTHER."""
    known: dict[tuple[str, int], set[str]] = {}
    merged: dict[tuple[str, tuple[str, ...]], Sample] = {}
    for metric, value, values in samples:
        labels: list[str] = []
        for number, label in enumerate(values):
            seen = known.setdefault((metric.name, number), set())
            if len(seen) < MOST_VALUES:
                seen.add(label)
            labels.append(label if label in seen else OTHER)
        key = (metric.name, tuple(labels))
        before = merged.get(key)
        merged[key] = Sample(metric, value if before is None else _merged(metric, before.value, value), key[1])
    return list(merged.values())


def _merged(metric: Metric, one: float | Timings, other: float | Timings) -> float | Timings:
    if isinstance(one, Timings) and isinstance(other, Timings):
        return Timings([a + b for a, b in zip(one.counts, other.counts, strict=True)], one.sum_s + other.sum_s)
    assert not isinstance(one, Timings) and not isinstance(other, Timings)  # noqa: S101, PT018 - one metric, one kind
    return max(one, other) if metric.worst else one + other


# From one millisecond to two hours and twenty minutes. Stored counts depend on these bounds: never change them.
BOUNDS_S: Final = tuple(0.001 * 2 ** (half / 2) for half in range(47))
BUCKETS: Final = len(BOUNDS_S) + 1
_EDGES: Final = tuple(pairwise(BOUNDS_S))
# Returns the bucket of a duration in seconds: 0 below the first bound, the last one from the last bound on. A partial,
# since every run calls it twice, and a Python function would cost more than the search.
bucket_of: Final = partial(bisect, BOUNDS_S)


def percentile(counts: Sequence[int], share: float, most_s: float | None = None) -> float | None:
    """Return the duration in seconds that ``share`` (0 to 1) of the counted ones do not exceed; None without any.

    Never more than ``most_s``, the longest of them, if that is known.

    The result lies in the same bucket as the true value (nearest rank), so it is off by half a doubling at most; in the
    first bucket by a millisecond. For the last bucket, which is unbounded, the lower bound is returned.
    """
    rank = max(1, math.ceil(share * sum(counts)))
    for bucket, count in enumerate(counts):
        if rank <= count:
            position = (rank - 0.5) / count
            if bucket == 0:
                found = BOUNDS_S[0] * position
            elif bucket == BUCKETS - 1:
                found = BOUNDS_S[-1]
            else:
                lower, upper = _EDGES[bucket - 1]
                found = lower * math.pow(upper / lower, position)
            return found if most_s is None else min(found, most_s)
        rank -= count
    return None
