"""Lets 16 processes enqueue or emit at once, a transaction each, while somebody listens; the wake-up can be left out.

The switch is here alone: without it, what is measured is the same insert in the same transaction.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from uuid import UUID

import psycopg
from django.db import connections

from benchmarks.messages import NOWHERE
from benchmarks.processes import print_figures
from benchmarks.tasks import store_noop
from project.settings import env
from salon_jobs import emit
from salon_jobs.db.notify import CHANNEL as JOBS
from salon_jobs.db.notify import WakeUps
from salon_jobs.outbox.emit import CHANNEL as MESSAGES
from salon_jobs.tenancy.context import tenant_context

_WRITERS = 16


def main(what: str, wake_up: str, store: str, seconds: str) -> None:
    """Write for so long and print the transactions per second."""
    if wake_up == "off":
        WakeUps.after_commit = lambda *_: None  # type: ignore[method-assign]
    channel = JOBS if what == "jobs" else MESSAGES
    write = partial(_enqueue if what == "jobs" else _emit, UUID(store))
    context = multiprocessing.get_context("fork")  # one interpreter's start is enough
    barrier, counts = context.Barrier(_WRITERS + 1), context.Queue()
    writers = [
        context.Process(target=_write, args=(barrier, counts, UUID(store), float(seconds), write))
        for _ in range(_WRITERS)
    ]
    for writer in writers:
        writer.start()
    with psycopg.connect(env.str("DATABASE_URL"), autocommit=True) as listener:
        listener.execute(f'LISTEN "{channel}"'.encode())
        barrier.wait()
        for _ in listener.notifies(timeout=float(seconds)):
            pass
    total = sum(counts.get() for _ in writers)
    for writer in writers:
        writer.join()
    print_figures(rate=total / float(seconds))


def _enqueue(store_id: UUID) -> None:
    store_noop.enqueue(store_id=store_id)


def _emit(store_id: UUID) -> None:
    emit(NOWHERE, aggregate_id=str(store_id), event="order.created", payload={"order": 1234567, "total": "12800.00"})


def _write(barrier: Barrier, counts: Queue[int], store_id: UUID, seconds: float, write: Callable[[], None]) -> None:
    with tenant_context(store_id):
        pass  # connects
    barrier.wait()
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        with tenant_context(store_id):
            write()
        count += 1
    counts.put(count)
    connections.close_all()
