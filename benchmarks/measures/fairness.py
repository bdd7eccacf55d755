"""Measures how long ten jobs of one store wait while another store has a long queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks import queue
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure
from benchmarks.watch import Marks, Successes, percentile

_PROBE: Final = 10
# Jobs that have not started after this time count as having waited so long.
_PATIENCE_S: Final = 5.0


@contextmanager
def _contestants(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [Contestant(OURS, partial(_waits, bench))]
    queue.empty(bench.database)


def _waits(bench: Bench) -> Figures:
    queue.empty(bench.database)
    queue.fill_stores(bench.database, "bench-store-five-ms", bench.sizes.fair_backlog, stores=1)
    bench.database.settle()
    marks = Marks(bench.path("marks"))
    waits: list[float] = []
    with bench.worker("--concurrency", "8", BENCHMARK_MARKS=str(marks.path)) as worker:
        successes = Successes(worker)
        successes.wait_for(100, patience_s=60)
        successes.close()
        for number in range(bench.sizes.fair_probes):
            before = len(marks.read())
            bench.act("marks", queue.store_id(2 + number), _PROBE, role="web")
            if not marks.wait_for(before + _PROBE, worker, patience_s=_PATIENCE_S):
                waits += [_PATIENCE_S * 1000] * (_PROBE - len(marks.read()) + before)
                break
    waits += [(started - added) / 1e6 for added, started in marks.read()]
    return {"p99": percentile(waits, 0.99), "served": float(len(marks.read()))}


FAIRNESS = Measure(
    name="fairness",
    title="ten jobs of a store beside another's 500,000 (less in small runs); 5 s means they were not served",
    units={"p99": "ms", "served": "jobs"},
    goals=(Goal(figure="p99", at_most=1000),),
    contestants=_contestants,
)
