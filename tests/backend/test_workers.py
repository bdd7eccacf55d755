"""Real worker processes, which find the tasks by their dotted paths."""

from __future__ import annotations

from uuid import UUID

import pytest

from salon_jobs import tenant_context
from salon_jobs.backend.framework import TaskResultStatus
from tests.backend import calls
from tests.backend.scene import TaskWorker, all_finished, job_of
from tests.process.terminal import COLOUR, Terminal
from tests.support import seen
from tests.waiting import eventually


def test_worker_imports_tasks_it_meets(stores: list[UUID]) -> None:
    """It names the paths that lead to none, and logs a failure once, without frames of ours."""
    job_of("tests.backend.calls.seen")
    with tenant_context(stores[0]):
        mine = calls.store_and_customers.enqueue()
    results = [calls.add.enqueue(1), calls.double.enqueue(2), calls.flaky.enqueue(1), calls.Shelf.nested.enqueue(3)]
    failing = [calls.leave.enqueue(), calls.give.enqueue("object"), calls.fail.enqueue("loud")]
    renamed, elsewhere = calls.renamed.enqueue(), calls.elsewhere.enqueue()
    every = [mine, *results, *failing, renamed, elsewhere]
    with TaskWorker("--concurrency", "2") as worker:
        assert worker.wait_until_ready().wait_for("tasks_unknown")["tasks"] == ["tests.backend.calls.seen"]
        eventually(lambda: all_finished(*every), what=lambda: worker.output)
        assert [result.return_value for result in (*results, renamed, elsewhere)] == [2, 4, 2, 3, 4, "open"]
        assert mine.return_value == [str(stores[0]), []]
        assert {result.status for result in failing} == {TaskResultStatus.FAILED}
        assert [result.errors[0].exception_class for result in failing] == [SystemExit, TypeError, ValueError]
        workers = {str(row[0]) for row in seen("SELECT id FROM salon_jobs_process")}
        assert {worker_id for result in every for worker_id in result.worker_ids} <= workers
        assert seen("SELECT attempts FROM salon_jobs_job WHERE state = 'queued'") == [(0,)]
        loud = worker.wait_for("job_failed", error="loud")
    assert loud["traceback"].count("  File ") == worker.output.count("ValueError: loud") == 1
    assert "Task id=" not in worker.output, "neither Django's record of a start nor of a failure"


def test_terminal_shows_failure_once(database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without frames of ours."""
    monkeypatch.setenv("DEBUG", "true")
    calls.fail.enqueue("loud")
    with Terminal("runworker", "--burst", "--processes", "1", settings="tests.backend.worker_settings") as terminal:
        text = COLOUR.sub("", "\n".join(terminal.read()))
    assert text.count("Traceback") == 1
    assert "state=FAILED" not in text
    traceback = text.partition("Traceback")[2]
    assert "tests/backend/calls.py" in traceback
    assert "executor.py" not in traceback
