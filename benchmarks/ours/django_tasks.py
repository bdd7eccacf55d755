"""Adds tasks of Django's framework by our backend: many at once, or timed one by one with their queries counted."""

from __future__ import annotations

import time

from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from benchmarks.framework_tasks import noop
from benchmarks.processes import print_figures

_IN_TRANSACTION = 200


def main(count: str, kind: str) -> None:
    """Add so many, 200 in a transaction; where they are timed, the first transaction warms up."""
    number, spent = int(count), 0.0
    for start in range(-_IN_TRANSACTION if kind == "timed" else 0, number, _IN_TRANSACTION):
        size = min(_IN_TRANSACTION, number - start)
        with transaction.atomic():
            began = time.perf_counter()
            for _ in range(size):
                noop.enqueue()
            spent += time.perf_counter() - began if start >= 0 else 0
    if kind == "timed":
        with transaction.atomic(), CaptureQueriesContext(connection) as queries:
            noop.enqueue()
        print_figures(us=spent / number * 1e6, queries=len(queries))
    else:
        print_figures(added=number)
