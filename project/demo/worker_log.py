"""Totals by task from the worker's JSON log, read while it is written."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

_OUTCOMES: Final = {
    "job_succeeded": "succeeded",
    "job_retried": "retried",
    "job_failed": "failed",
    "job_cancelled": "cancelled",
}


@dataclass(slots=True)
class TaskFigures:
    """Totals for one task. ``jobs`` counts jobs; the other counts are of runs and how they ended.

    ``stores`` has the time of the last success in each store.
    """

    jobs: set[int] = field(default_factory=set[int])
    stores: dict[str, datetime] = field(default_factory=dict[str, datetime])
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_OUTCOMES.values(), 0))
    durations_ms: list[float] = field(default_factory=list[float])

    def add(self, outcome: str, line: dict[str, Any]) -> None:
        """Count one log line."""
        self.jobs.add(line["job_id"])
        self.outcomes[outcome] += 1
        if outcome == "succeeded" and line.get("store_id"):
            self.stores[line["store_id"]] = datetime.fromisoformat(line["time"])
        if line.get("duration_ms") is not None:
            self.durations_ms.append(float(line["duration_ms"]))

    def percentile_ms(self, percent: int) -> float | None:
        """Return the duration that ``percent`` percent of the runs did not exceed; None without runs."""
        if not self.durations_ms:
            return None
        if len(self.durations_ms) == 1:
            return self.durations_ms[0]
        return quantiles(self.durations_ms, n=100, method="inclusive")[percent - 1]


class WorkerLog:
    """Reader of a log file that grows; ``read`` processes what was written since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.tasks: defaultdict[str, TaskFigures] = defaultdict(TaskFigures)

    def read(self) -> None:
        """Process new complete lines, ignoring those that are not JSON events of a job."""
        with self._path.open("rb") as log:
            log.seek(self._position)
            text = log.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._position += len(complete)
        for raw in complete.splitlines():
            self._add(raw)

    def ended(self) -> int:
        """Return how many jobs have ended."""
        return sum(
            figures.outcomes[outcome]
            for figures in self.tasks.values()
            for outcome in ("succeeded", "failed", "cancelled")
        )

    def _add(self, raw: bytes) -> None:
        if not raw.startswith(b"{"):
            return
        line: dict[str, Any] = json.loads(raw)
        outcome = _OUTCOMES.get(line.get("event", ""))
        if outcome is not None and "task_name" in line:
            self.tasks[line["task_name"]].add(outcome, line)
