"""Adds up what the processes of one worker report about their runs: counters that only grow, for metrics."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from salon_jobs.core import metrics
from salon_jobs.core.histogram import BUCKETS
from salon_jobs.core.metrics import OTHER, Sample, Timings
from salon_jobs.jobs import registry
from salon_jobs.jobs.statistics import OUTCOMES


@dataclass(slots=True)
class _Total:
    outcomes: list[int] = field(default_factory=lambda: [0] * len(OUTCOMES))
    durations: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    duration_s: float = 0.0
    waits: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    wait_s: float = 0.0


_NONE: Final = _Total()


class RunTotals:
    """Is added to from any thread. Tasks that this process does not know are one, ``other``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claimed = 0
        self._by_task: dict[str, _Total] = {}

    def add(self, rows: Iterable[Mapping[str, Any]], *, claimed: int = 0) -> None:
        """Add one report: rows of ``TaskStatistics.take_report``, and how many jobs were claimed since the last."""
        with self._lock:
            self._claimed += claimed
            for row in rows:
                task = row["task"] if row["task"] in registry.task_names() else OTHER
                total = self._by_task.setdefault(task, _Total())
                total.outcomes = [a + row[name] for a, name in zip(total.outcomes, OUTCOMES, strict=True)]
                total.durations = [a + b for a, b in zip(total.durations, row["durations"], strict=True)]
                total.waits = [a + b for a, b in zip(total.waits, row["waits"], strict=True)]
                total.duration_s += row["duration_s"]
                total.wait_s += row["wait_s"]

    def samples(self) -> list[Sample]:
        """Return the counters and histograms."""
        with self._lock:
            samples = [Sample(metrics.CLAIMED, self._claimed)]
            # A counter that appears at five hides those five from rate().
            for task in sorted({*registry.task_names(), *self._by_task}):
                total = self._by_task.get(task, _NONE)
                samples += [
                    Sample(metrics.FINISHED, count, (task, outcome))
                    for outcome, count in zip(OUTCOMES, total.outcomes, strict=True)
                ]
            for task, total in self._by_task.items():
                samples.append(Sample(metrics.DURATION, Timings(list(total.durations), total.duration_s), (task,)))
                samples.append(Sample(metrics.WAIT, Timings(list(total.waits), total.wait_s), (task,)))
        return samples
