"""Times ``enqueue()`` inside transactions, or the same row by a raw INSERT on the same connection."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

from django.db import connection

from benchmarks.processes import print_figures
from benchmarks.tasks import store_noop
from salon_jobs.tenancy.context import tenant_context

_IN_TRANSACTION = 200
_INSERT = """
    INSERT INTO salon_jobs_job (task, store_id, queue, priority, max_attempts, run_at, payload)
    VALUES (%s, %s, %s, %s, %s, now(), %s::jsonb)
    RETURNING id
"""


def main(kind: str, store: str, count: str) -> None:
    """Add so many, 200 in a transaction; the first transaction warms up."""
    add = {"enqueue": _enqueue, "raw": _insert}[kind]
    store_id = UUID(store)
    _timed(add, store_id, min(_IN_TRANSACTION, int(count)))
    spent = 0.0
    for start in range(0, int(count), _IN_TRANSACTION):
        spent += _timed(add, store_id, min(_IN_TRANSACTION, int(count) - start))
    print_figures(us=spent / int(count) * 1e6)


def _timed(add: Callable[[UUID], None], store_id: UUID, count: int) -> float:
    with tenant_context(store_id):
        began = time.perf_counter()
        for _ in range(count):
            add(store_id)
        return time.perf_counter() - began


def _enqueue(store_id: UUID) -> None:
    store_noop.enqueue(store_id=store_id)


def _insert(store_id: UUID) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_INSERT, ["bench-store-noop", store_id, "default", 0, 25, "{}"])
        cursor.fetchone()
