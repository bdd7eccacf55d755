"""Loop of ``runworker``: children that run jobs, maintenance, and embedded loops."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from salon_jobs.core import metrics
from salon_jobs.core.metrics import BUCKETS, OTHER, Sample, Timings
from salon_jobs.jobs import registry
from salon_jobs.jobs.statistics import OUTCOMES, ended_runs
from salon_jobs.process.heartbeat import Heartbeat
from salon_jobs.process.service import ServedLoop
from salon_jobs.tenancy.connections import refuse_small_pool
from salon_jobs.worker.child_process import ChildPlan
from salon_jobs.worker.maintenance import Maintenance
from salon_jobs.worker.supervisor import Supervisor
from salon_jobs.worker.worker import OTHER_THREADS, WorkerOptions


@dataclass(slots=True)
class _Total:
    outcomes: list[int] = field(default_factory=lambda: [0] * len(OUTCOMES))
    durations: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    duration_s: float = 0.0
    waits: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    wait_s: float = 0.0


_NONE: Final = _Total()


class RunTotals:
    """Thread-safe totals of runs. Tasks that this process does not know are grouped as ``other``."""

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
            # A counter that first appears at five hides those five from rate().
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


# Heartbeat, maintenance, two health checks at a time; plus each embedded loop and each child's supervisor.
_THREADS = 4


class WorkerProcesses:
    """Loop of the supervisor; each ``embedded`` loop runs in its own thread (scheduler, relay, consumer)."""

    def __init__(
        self,
        heartbeat: Heartbeat,
        command: Sequence[str],
        options: WorkerOptions,
        *,
        processes: int,
        embedded: Sequence[ServedLoop] = (),
    ) -> None:
        """Start the children. Raises ConfigurationError when a pool is too small for their threads or ours."""
        refuse_small_pool(max(_THREADS + len(embedded) + processes, options.concurrency + OTHER_THREADS))
        self._totals = RunTotals()
        self._maintenance = Maintenance()
        self._embedded = tuple(embedded)
        self._stopping = threading.Event()
        self._supervisor = Supervisor(heartbeat, ChildPlan(command, options, self._add), processes=processes)

    def run(self) -> bool:
        """Work until stopped; return True if every job ended or was given back in time."""
        self._maintenance.start()
        threads = [
            threading.Thread(target=loop.run, name=f"salon-jobs-{type(loop).__name__.lower()}", daemon=True)
            for loop in self._embedded
        ]
        for thread in threads:
            thread.start()
        try:
            return self._supervisor.run()
        finally:
            if not self._stopping.is_set():  # a second call would force them to end
                self._stop_embedded()
            for thread in threads:
                thread.join()
            self._maintenance.stop()
            self._maintenance.join()

    def stop(self) -> None:
        """Stop gracefully; a second call forces it."""
        self._stopping.set()
        self._stop_embedded()
        self._supervisor.stop()

    def facts(self) -> dict[str, object]:
        """Return queue lag, unknown tasks, the children and the embedded loops. Raises NotReady."""
        self._maintenance.require_ready()
        front = self._maintenance.front
        facts: dict[str, object] = {
            "lag_s": round(front.lag_s, 3),
            "unknown_tasks": list(front.unknown_tasks),
            **self._supervisor.facts(),
        }
        for loop in self._embedded:
            facts |= loop.facts()
        return facts

    def _stop_embedded(self) -> None:
        for loop in self._embedded:
            loop.stop()

    def samples(self) -> list[Sample]:
        """Return the metrics of the children, their runs, the queues and the embedded loops."""
        self._add({"rows": ended_runs.take_report()})  # counted in this process: jobs of children that died
        samples = [*self._supervisor.samples(), *self._totals.samples(), *self._maintenance.samples()]
        for loop in self._embedded:
            samples += loop.samples()
        return samples

    def _add(self, counted: dict[str, Any]) -> None:
        self._totals.add(**counted)
