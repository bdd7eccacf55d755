"""Measures the claim with millions of jobs queued, compared with the claim with ten thousand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks import queue
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure
from benchmarks.server import Database

_SHALLOW: Final = "10,000 queued"
# A turn takes half of the shallow queue at most; then both are filled up again.
_BATCHES: Final = 10
_BATCH: Final = 500
_TASK: Final = "bench-store-noop"


@contextmanager
def _contestants(bench: Bench) -> Iterator[Sequence[Contestant]]:
    with bench.another_database() as deep, bench.another_database() as shallow:
        for database, rows in ((deep, bench.sizes.deep_rows), (shallow, bench.sizes.shallow_rows)):
            queue.fill_stores(database, _TASK, rows)
        yield [Contestant(OURS, partial(_rate, bench, deep)), Contestant(_SHALLOW, partial(_rate, bench, shallow))]


def _rate(bench: Bench, database: Database) -> Figures:
    jobs = seconds = 0.0
    for _ in range(bench.sizes.claim_turns):
        database.settle()
        done = bench.act("claim", _BATCHES, role="worker", database=database)
        queue.fill_stores(database, _TASK, _BATCHES * _BATCH)
        jobs, seconds = jobs + done["jobs"], seconds + done["seconds"]
    return {"rate": jobs / seconds}


DEPTH = Measure(
    name="depth",
    title="claims with 5,000,000 jobs queued (less in small runs)",
    units={"rate": "jobs/s"},
    goals=(Goal(figure="rate", against=_SHALLOW, at_least=0.8),),
    contestants=_contestants,
)
