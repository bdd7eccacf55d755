"""Joins what ``runworker`` runs in its first process: children that run jobs, maintenance, and other loops if asked."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from salon_jobs.core.metrics import Sample
from salon_jobs.jobs.maintenance import Maintenance
from salon_jobs.jobs.run_totals import RunTotals
from salon_jobs.jobs.statistics import ended_runs
from salon_jobs.jobs.worker import WorkerOptions
from salon_jobs.jobs.worker_loop import OTHER_THREADS
from salon_jobs.runtime.child_process import ChildPlan
from salon_jobs.runtime.connections import refuse_small_pool
from salon_jobs.runtime.presence import Presence
from salon_jobs.runtime.service import ServedLoop
from salon_jobs.runtime.supervisor import Supervisor

KIND = "worker"
# Heartbeat, maintenance, two questions about health at a time; each loop beside, and each child's keeper.
_THREADS = 4


class WorkerProcesses:
    """Is the loop of the supervisor; ``beside`` are run in a thread each (scheduler, relay, consumer)."""

    def __init__(
        self,
        presence: Presence,
        command: Sequence[str],
        options: WorkerOptions,
        *,
        processes: int,
        beside: Sequence[ServedLoop] = (),
    ) -> None:
        """Start the children. Raises ConfigurationError when a pool is too small for theirs or our threads."""
        refuse_small_pool(max(_THREADS + len(beside) + processes, options.concurrency + OTHER_THREADS))
        plan = ChildPlan(
            kind=KIND, command=command, concurrency=options.concurrency, queues=options.queues, burst=options.burst,
            options={"options": asdict(options)}, on_counted=self._add,
        )  # fmt: skip
        self._totals = RunTotals()
        self._maintenance = Maintenance()
        self._beside = tuple(beside)
        self._stopping = threading.Event()
        self._supervisor = Supervisor(presence, plan, processes=processes)

    def run(self) -> bool:
        """Work until stopped; True when every job ended or was given back in time."""
        self._maintenance.start()
        threads = [
            threading.Thread(target=loop.run, name=f"salon-jobs-{type(loop).__name__.lower()}", daemon=True)
            for loop in self._beside
        ]
        for thread in threads:
            thread.start()
        try:
            return self._supervisor.run()
        finally:
            if not self._stopping.is_set():  # a second call would force their end
                self._stop_beside()
            for thread in threads:
                thread.join()
            self._maintenance.stop()

    def stop(self) -> None:
        """Stop gracefully; a second call forces it."""
        self._stopping.set()
        self._stop_beside()
        self._supervisor.stop()

    def facts(self) -> dict[str, object]:
        """Return queue lag, unknown tasks, the children and what runs beside them. Raises NotReady."""
        self._maintenance.require_ready()
        front = self._maintenance.front
        facts: dict[str, object] = {
            "lag_s": round(front.lag_s, 3),
            "unknown_tasks": list(front.unknown_tasks),
            **self._supervisor.facts(),
        }
        for loop in self._beside:
            facts |= loop.facts()
        return facts

    def _stop_beside(self) -> None:
        for loop in self._beside:
            loop.stop()

    def samples(self) -> list[Sample]:
        """Return the metrics of the children, of their runs, of the queues, and of what runs beside them."""
        self._add({"rows": ended_runs.take_report()})  # what this process counted: jobs of children that died
        samples = [*self._supervisor.samples(), *self._totals.samples(), *self._maintenance.samples()]
        for loop in self._beside:
            samples += loop.samples()
        return samples

    def _add(self, counted: dict[str, Any]) -> None:
        self._totals.add(**counted)
