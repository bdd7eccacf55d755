"""Measures the memory of the process that runs the jobs, over a million of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks import queue
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure
from benchmarks.processes import descendants, resident_mb
from benchmarks.watch import Successes

_PERCENTS: Final = (10, 50, 100)
_PATIENCE_S: Final = 1800.0


@contextmanager
def _contestants(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [Contestant(OURS, partial(_memory, bench))]
    queue.empty(bench.database)


def _memory(bench: Bench) -> Figures:
    jobs = bench.sizes.memory_jobs
    queue.empty(bench.database)
    queue.fill(bench.database, "bench-noop", jobs)
    bench.database.settle()
    found: dict[str, float] = {}
    with bench.worker() as worker:
        successes = Successes(worker)
        for percent in _PERCENTS:
            successes.wait_for(jobs * percent // 100, patience_s=_PATIENCE_S)
            found[f"at_{percent}"] = max(map(resident_mb, descendants(worker.pid) or [worker.pid]))
        successes.close()
    return {**found, "growth": found["at_100"] / found["at_10"]}


MEMORY = Measure(
    name="memory",
    title="resident memory after a tenth, half and all of 1,000,000 jobs (less in small runs)",
    units={"at_10": "MB", "at_50": "MB", "at_100": "MB", "growth": ""},
    goals=(Goal(figure="growth", at_most=1.1),),
    contestants=_contestants,
    most_rounds=1,
)
