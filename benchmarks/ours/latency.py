"""Adds jobs one by one, with pauses, as a web process does; each carries the time at which it was added."""

from __future__ import annotations

import random
import time

from django.db import connection

from benchmarks.processes import print_figures
from benchmarks.tasks import mark


def main(count: str) -> None:
    """Add them."""
    connection.ensure_connection()  # as the peers' programs do
    for _ in range(int(count)):
        time.sleep(random.uniform(0.02, 0.06))  # noqa: S311 - no secret
        mark.enqueue(added_ns=time.monotonic_ns())
    print_figures(added=int(count))
