"""Real worker processes, which find the tasks by their dotted paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from salon_jobs import tenant_context
from salon_jobs.backend.framework import TaskResultStatus
from tests.backend import calls
from tests.backend.test_results import job_of
from tests.e2e.worker_process import WorkerProcess, eventually
from tests.process.test_log_formats import COLOUR, Terminal
from tests.settings import url_for
from tests.support import seen


class TaskWorker(WorkerProcess):
    """Worker with TASKS in its settings."""

    def _start(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        super()._start(words, {**environment, "DJANGO_SETTINGS_MODULE": "tests.backend.worker_settings"})


@pytest.fixture
def worker(database: None) -> Iterator[TaskWorker]:
    with TaskWorker("--concurrency", "2", url=url_for("worker_runtime")) as process:
        yield process.wait_until_ready()


def test_a_worker_imports_the_tasks_it_meets(worker: TaskWorker, stores: list[UUID]) -> None:
    with tenant_context(stores[0]):
        mine = calls.store_and_customers.enqueue()
    results = [calls.add.enqueue(1), calls.double.enqueue(2), calls.flaky.enqueue(1), calls.Shelf.nested.enqueue(3)]
    failing = [calls.fail.enqueue(), calls.leave.enqueue(), calls.give.enqueue("object")]
    renamed, elsewhere = calls.renamed.enqueue(), calls.elsewhere.enqueue()
    every = [mine, *results, *failing, renamed, elsewhere]

    def all_finished() -> bool:
        for result in every:
            result.refresh()
        return all(result.is_finished for result in every)

    eventually(all_finished, what=worker.output)
    assert [result.return_value for result in (*results, renamed, elsewhere)] == [2, 4, 2, 3, 4, "open"]
    assert mine.return_value == [str(stores[0]), []]
    assert {result.status for result in failing} == {TaskResultStatus.FAILED}
    assert [result.errors[0].exception_class for result in failing] == [ValueError, SystemExit, TypeError]
    workers = {str(row[0]) for row in seen("SELECT id FROM salon_jobs_process")}
    assert {worker_id for result in every for worker_id in result.worker_ids} <= workers


def test_a_worker_leaves_other_paths_alone_and_names_them(worker: TaskWorker) -> None:
    job_of("tests.backend.calls.seen")
    known = calls.add.enqueue(2)
    warning = worker.wait_for("tasks_unknown")
    assert warning["tasks"] == ["tests.backend.calls.seen"]
    eventually(lambda: calls.add.get_result(known.id).is_finished, what=worker.output)
    assert seen("SELECT state, attempts FROM salon_jobs_job") == [("queued", 0)]


def test_a_burst_runs_them_too(database: None) -> None:
    result = calls.add.enqueue(5)
    with TaskWorker("--burst", url=url_for("worker_runtime")) as process:
        assert process.wait() == 0, process.output
    assert calls.add.get_result(result.id).return_value == 6


def test_a_failure_is_one_line_of_the_log(worker: TaskWorker) -> None:
    result = calls.fail.enqueue("loud")
    failed = worker.wait_for("job_failed")
    eventually(lambda: calls.fail.get_result(result.id).is_finished, what=worker.output)
    assert failed["traceback"].count("  File ") == 1
    assert worker.end() == 0
    assert worker.output.count("Traceback") == 1
    assert f"Task id={result.id}" not in worker.output, "neither Django's record of its start nor of its failure"


@pytest.mark.parametrize("debug", ["true", "false"])
def test_a_terminal_shows_a_failure_once_and_without_frames_of_ours(
    database: None, monkeypatch: pytest.MonkeyPatch, debug: str
) -> None:
    monkeypatch.setenv("DEBUG", debug)
    monkeypatch.setenv("ALLOWED_HOSTS", "example.com")
    calls.fail.enqueue("loud")
    with Terminal("runworker", "--burst", "--processes", "1", settings="tests.backend.worker_settings") as terminal:
        text = COLOUR.sub("", "\n".join(terminal.read()))
    assert text.count("Traceback") == 1
    assert "state=FAILED" not in text
    traceback = text.partition("Traceback")[2]
    assert "tests/backend/calls.py" in traceback
    assert "executor.py" not in traceback


def test_no_app_imports_the_tasks() -> None:
    root = Path(__file__).resolve().parents[2]
    assert "tests.backend" not in (root / "project/settings.py").read_text()
