"""What tests of the backend share: signals, jobs that other code added, and workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from tests.e2e.worker_process import WorkerProcess
from tests.support import change, connected


@contextmanager
def received(signal: Any) -> Iterator[list[tuple[Any, Any]]]:
    """Collect sender and result of a signal."""
    sent: list[tuple[Any, Any]] = []

    def receive(sender: Any, task_result: Any, **_: Any) -> None:
        sent.append((sender, task_result))

    with connected(signal, receive):
        yield sent


def job_of(path: str) -> str:
    """Add a job of a dotted path, as a process with other code would; return its public id."""
    payload, public_id = '{"args": [], "kwargs": {}, "backend": "default"}', str(uuid4())
    change("INSERT INTO salon_jobs_job (task, payload, public_id) VALUES (%s, %s, %s)", path, payload, public_id)
    return public_id


class TaskWorker(WorkerProcess):
    """Worker with TASKS in its settings."""

    settings_module = "tests.backend.worker_settings"


def all_finished(*results: Any) -> bool:
    """Return whether all tasks have ended, by their results, which are refreshed."""
    for result in results:
        result.refresh()
    return all(result.is_finished for result in results)
