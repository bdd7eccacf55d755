"""Measures jobs of stores that do nothing: each in its own fenced transaction, and a hundred in one."""

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
_CHUNKS: Final = "salon_jobs, chunks of 100"
_CONCURRENCY: Final = 8
# So that every store has jobs for more than one chunk.
_MORE: Final = 10


@contextmanager
def _contestants(bench: Bench) -> Iterator[Sequence[Contestant]]:
    jobs = bench.sizes.store_jobs
    yield [
        Contestant(OURS, partial(_ours, bench, "bench-store-noop", jobs)),
        Contestant(_CHUNKS, partial(_ours, bench, "bench-store-chunk", jobs * _MORE)),
        Contestant(CEILING, partial(_ceiling, bench)),
    ]
    queue.empty(bench.database)


def _ours(bench: Bench, task: str, jobs: int) -> Figures:
    drain = _filled(bench, task, jobs)
    with bench.worker("--processes", "1", "--concurrency", str(_CONCURRENCY)) as worker:
        return {"rate": drain.rate(worker)}


def _ceiling(bench: Bench) -> Figures:
    drain = _filled(bench, "bench-store-noop", bench.sizes.store_jobs)
    with bench.start("benchmarks.ceilings.store_drain", _CONCURRENCY, role="worker") as worker:
        return {"rate": drain.rate(worker)}


def _filled(bench: Bench, task: str, jobs: int) -> Drain:
    queue.empty(bench.database)
    queue.fill_stores(bench.database, task, jobs)
    bench.database.settle()
    return Drain(bench.database, OUR_QUEUE)


STORE_DRAIN = Measure(
    name="store-drain",
    title="store jobs, each in its own fenced transaction, or a hundred in one",
    units={"rate": "jobs/s"},
    goals=(
        Goal(figure="rate", against=CEILING, at_least=0.95),
        Goal(figure="rate", of=_CHUNKS, against=OURS, at_least=8),
    ),
    contestants=_contestants,
)
