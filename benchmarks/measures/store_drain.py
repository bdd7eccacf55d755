"""Measures jobs of stores that do nothing, each in its own fenced transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks import queue
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure
from benchmarks.measures.drain import OUR_QUEUE
from benchmarks.observer import Drain

CEILING: Final = "bare psycopg threads"
_CONCURRENCY: Final = 8


@contextmanager
def _contestants(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [Contestant(OURS, partial(_ours, bench)), Contestant(CEILING, partial(_ceiling, bench))]
    queue.empty(bench.database)


def _ours(bench: Bench) -> Figures:
    drain = _filled(bench)
    with bench.worker("--concurrency", str(_CONCURRENCY)) as worker:
        return {"rate": drain.rate(worker)}


def _ceiling(bench: Bench) -> Figures:
    drain = _filled(bench)
    with bench.start("benchmarks.ceilings.store_drain", _CONCURRENCY, role="worker") as worker:
        return {"rate": drain.rate(worker)}


def _filled(bench: Bench) -> Drain:
    queue.empty(bench.database)
    queue.fill_stores(bench.database, "bench-store-noop", bench.sizes.store_jobs)
    bench.database.settle()
    return Drain(bench.database, OUR_QUEUE)


STORE_DRAIN = Measure(
    name="store-drain",
    title="store jobs, each in its own fenced transaction",
    units={"rate": "jobs/s"},
    goals=(Goal(figure="rate", against=CEILING, at_least=0.8),),
    contestants=_contestants,
)
