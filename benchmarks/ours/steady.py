"""Adds jobs at a steady rate, as a web process does, one by one or some at once; each carries when it was added."""

from __future__ import annotations

import time

from django.db import connection

from benchmarks.peers.shared.arrivals import due_times, pause_s
from benchmarks.processes import print_figures
from benchmarks.tasks import mark


def main(count: str, batch: str, rate: str, start_ns: str) -> None:
    """Add ``count`` jobs, ``rate`` a second, ``batch`` at once, from the given time of the monotonic clock on."""
    jobs, size = int(count), int(batch)
    connection.ensure_connection()  # as the peers' programs do
    for due_ns in due_times(jobs // size, float(rate) / size, int(start_ns)):
        time.sleep(pause_s(due_ns))
        added_ns = time.monotonic_ns()
        if size == 1:
            mark.enqueue(added_ns=added_ns)
        else:
            mark.enqueue_many(mark.call(added_ns=added_ns) for _ in range(size))
    print_figures(added=jobs)
