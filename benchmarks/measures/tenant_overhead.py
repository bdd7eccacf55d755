"""Measures a request and a job in the context of a store, each compared with the same in a plain transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from benchmarks import queue
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure


@contextmanager
def _contestants(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [Contestant(OURS, partial(_compared, bench))]
    queue.empty(bench.database)


def _compared(bench: Bench) -> Figures:
    count = bench.sizes.overhead_calls
    queue.empty(bench.database)
    queue.fill_stores(bench.database, "bench-store-query", count + 2)
    queue.fill(bench.database, "bench-query", count + 2)
    bench.database.settle()
    return {**bench.act("overhead", "request", count, role="web"), **bench.act("overhead", "job", count, role="worker")}


TENANT_OVERHEAD = Measure(
    name="tenant-overhead",
    title="a request and a job with one query, in the context of a store, over a plain transaction",
    units={
        "request_us": "µs",
        "request_ratio": "×",
        "request_trips": "",
        "request_more_trips": "",
        "job_us": "µs",
        "job_ratio": "×",
        "job_trips": "",
        "job_more_trips": "",
    },
    goals=(Goal(figure="request_more_trips", at_most=0), Goal(figure="job_more_trips", at_most=0)),
    contestants=_contestants,
)
