"""Tests that a log which is still being written is added up line by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from project.demo.worker_log import TaskFigures, WorkerLog


def _line(event: str, **fields: Any) -> str:
    return json.dumps({"event": event, "task_name": "ping", "store_id": None, "attempt": 1, **fields}) + "\n"


def test_only_complete_lines_count_and_none_twice(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    second = _line("job_succeeded", job_id=2, duration_ms=4.0)
    path.write_text("Starting\n" + _line("job_retried", job_id=1, duration_ms=2.0) + second[:20])
    log = WorkerLog(path)

    log.read()
    assert log.tasks["ping"].jobs == {1}
    with path.open("a") as file:
        file.write(second[20:] + _line("process_started") + _line("job_failed", job_id=1, duration_ms=6.0))
    log.read()
    log.read()

    figures = log.tasks["ping"]
    assert figures.jobs == {1, 2}
    assert figures.outcomes == {"succeeded": 1, "retried": 1, "failed": 1, "cancelled": 0}
    assert figures.percentile_ms(50) == 4.0
    assert log.ended() == 2


def test_percentiles_of_few_runs() -> None:
    assert TaskFigures().percentile_ms(95) is None
    assert TaskFigures(durations_ms=[3.0]).percentile_ms(95) == 3.0
    assert TaskFigures(durations_ms=[float(n) for n in range(101)]).percentile_ms(95) == 95.0
