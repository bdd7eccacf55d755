"""Adds many jobs by ``enqueue_many``: those of one store, or of no store."""

from __future__ import annotations

import time
from uuid import UUID

from benchmarks.processes import print_figures
from benchmarks.tasks import noop, store_noop
from salon_jobs.tenancy.context import tenant_context


def main(kind: str, store: str, count: str) -> None:
    """Add them in one transaction; making and validating the calls counts."""
    store_id, number = UUID(store), int(count)
    with tenant_context(store_id):
        store_noop.enqueue(store_id=store_id)  # connects
    began = time.monotonic()
    if kind == "store":
        with tenant_context(store_id):
            store_noop.enqueue_many(store_noop.call(store_id=store_id) for _ in range(number))
    else:
        noop.enqueue_many(noop.call() for _ in range(number))
    print_figures(rate=number / (time.monotonic() - began))
