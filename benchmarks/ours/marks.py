"""Adds some jobs of one store at once; each carries the time at which it was added."""

from __future__ import annotations

import time
from uuid import UUID

from benchmarks.processes import print_figures
from benchmarks.tasks import store_mark
from salon_jobs.tenancy.context import tenant_context


def main(store: str, count: str) -> None:
    """Add them in one transaction."""
    with tenant_context(store):
        for _ in range(int(count)):
            store_mark.enqueue(store_id=UUID(store), added_ns=time.monotonic_ns())
    print_figures(added=int(count))
