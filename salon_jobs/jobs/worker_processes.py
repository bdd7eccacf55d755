"""Joins what ``runworker`` runs in its first process: children that run jobs, maintenance, when asked a scheduler."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict

from salon_jobs.jobs.maintenance import Maintenance
from salon_jobs.jobs.worker import WorkerOptions
from salon_jobs.jobs.worker_loop import OTHER_THREADS
from salon_jobs.runtime.child_process import ChildPlan
from salon_jobs.runtime.connections import refuse_small_pool
from salon_jobs.runtime.presence import Presence
from salon_jobs.runtime.service import Loop
from salon_jobs.runtime.supervisor import Supervisor

KIND = "worker"
# Heartbeat, maintenance, scheduler, two questions about health at a time; and each child's keeper.
_THREADS = 5


class WorkerProcesses:
    """Is the loop of the supervisor; ``beside`` is one run in a thread of its own (the scheduler)."""

    def __init__(
        self,
        presence: Presence,
        command: Sequence[str],
        options: WorkerOptions,
        *,
        processes: int,
        beside: Loop | None = None,
    ) -> None:
        """Start the children. Raises ConfigurationError when a pool is too small for theirs or our threads."""
        refuse_small_pool(max(_THREADS + processes, options.concurrency + OTHER_THREADS))
        plan = ChildPlan(
            kind=KIND, command=command, concurrency=options.concurrency, queues=options.queues, burst=options.burst,
            options={"options": asdict(options)},
        )  # fmt: skip
        self._maintenance = Maintenance()
        self._beside = beside
        self._supervisor = Supervisor(presence, plan, processes=processes)

    def run(self) -> bool:
        """Work until stopped; True when every job ended or was given back in time."""
        self._maintenance.start()
        thread = None
        if self._beside is not None:
            thread = threading.Thread(target=self._beside.run, name="salon-jobs-scheduler", daemon=True)
            thread.start()
        try:
            return self._supervisor.run()
        finally:
            if self._beside is not None and thread is not None:
                self._beside.stop()
                thread.join()
            self._maintenance.stop()

    def stop(self) -> None:
        """Stop gracefully; a second call forces it."""
        if self._beside is not None:
            self._beside.stop()
        self._supervisor.stop()

    def facts(self) -> dict[str, object]:
        """Return queue lag, unknown tasks, the children and the scheduler. Raises NotReady."""
        front = self._maintenance.front
        return {
            "lag_s": round(front.lag_s, 3),
            "unknown_tasks": list(front.unknown_tasks),
            **self._supervisor.facts(),
            **(self._beside.facts() if self._beside is not None else {}),
        }
