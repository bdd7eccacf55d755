"""Worker with default settings that uses up its thirty seconds while other tests run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from tests import settings as test_settings
from tests.e2e.worker_process import WorkerProcess
from tests.settings import url_for
from tests.waiting import eventually


@contextmanager
def spare_database(*, copied: bool) -> Iterator[str]:
    """Create and drop a database, empty or migrated like the tests' own."""
    name = f"salon_spare_{uuid4().hex[:8]}"
    template = test_settings.TEMPLATE if copied else "template1"
    with psycopg.connect(url_for(None, "postgres"), autocommit=True) as server:
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        server.execute(statement)
        try:
            yield name
        finally:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@dataclass
class StubbornEnd:
    """Worker that was asked to stop while its job could not be interrupted."""

    worker: WorkerProcess
    url: str
    status: int = 0
    took_s: float = 0.0

    def one(self, query: str) -> tuple[Any, ...]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute(query.encode()).fetchone()
            assert row is not None
            return row


@contextmanager
def stubborn_end(folder: Path) -> Iterator[tuple[StubbornEnd, threading.Thread]]:
    """Start a worker in a database of its own with a job that ignores interrupts, and send SIGTERM.

    The thread ends when the worker has ended.
    """
    with spare_database(copied=True) as name, WorkerProcess(url=url_for("worker_runtime", name)) as worker:
        end = StubbornEnd(worker, url_for(None, name))
        store_id, started = uuid4(), folder / "started"
        with psycopg.connect(end.url, autocommit=True) as connection:
            connection.execute("INSERT INTO store (id, name) VALUES (%s, 'Salon')", [store_id])
            connection.execute(
                "INSERT INTO salon_jobs_job (task, store_id, payload) VALUES ('e2e-stubborn', %s, %s)",
                [store_id, Jsonb({"started": str(started)})],
            )
        eventually(started.exists, what=lambda: worker.output)

        def wait() -> None:
            end.status = worker.wait(60)
            end.took_s = time.monotonic() - began

        began = time.monotonic()
        worker.stop()
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        yield end, thread
