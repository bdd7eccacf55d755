"""Processes that live although another one declared them dead: their rows were deleted, their connections ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from django.db import transaction

from salon_jobs import emit
from salon_jobs.worker.maintenance import rescue_process
from tests.e2e import tasks
from tests.e2e.directory_source import consuming, send
from tests.e2e.worker_process import ConsumerProcess, RelayProcess, SchedulerProcess, WorkerProcess
from tests.support import seen
from tests.waiting import eventually

ROWS = "SELECT id, kind FROM salon_jobs_process WHERE kind <> 'worker' ORDER BY id"


def do_job(stores: list[UUID], _queue: Path) -> None:
    handle = tasks.write.enqueue(store_id=stores[0])
    eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job WHERE id = %s", handle.id), [(0,)])


def send_message(_stores: list[UUID], _queue: Path) -> None:
    with transaction.atomic():
        emit(f"rn::jobs:::{tasks.nothing.name}", event="noted", payload={"note": "sent"})
    eventually(lambda: seen("SELECT status FROM salon_jobs_message"), [("published",)])


def take_message(_stores: list[UUID], queue: Path) -> None:
    send(queue, "first")
    eventually(lambda: not list(queue.glob("*.json")))


WORK: dict[str, Callable[[list[UUID], Path], None]] = {"worker": do_job, "relay": send_message, "consume": take_message}


@pytest.mark.parametrize(
    ("kind", "arguments", "rows"),
    [
        (WorkerProcess, ("--with-scheduler", "--with-relay", "--with-consumer"), 3),
        (SchedulerProcess, (), 1),
        (RelayProcess, (), 1),
        (ConsumerProcess, (), 1),
    ],
)
def test_process_declared_dead_works_again(
    kind: type[WorkerProcess], arguments: tuple[str, ...], rows: int, stores: list[UUID], tmp_path: Path
) -> None:
    with kind(*arguments, **consuming(tmp_path), ready=True) as process:
        eventually(lambda: len(seen(ROWS)), rows, what=lambda: process.output)
        before = seen(ROWS)
        for process_id, _ in seen("SELECT id, kind FROM salon_jobs_process"):
            assert rescue_process(process_id, None, using="default").processes == 1
        eventually(lambda: seen(ROWS), before, what=lambda: process.output)
        for name, work in WORK.items():
            if name in process.command or f"--with-{name}" in arguments:
                work(stores, tmp_path)
        eventually(lambda: process.ask("/readyz")[0], 200, what=lambda: process.output)
        assert process.end() == 0
