"""Measures how long a web process waits for what a job returns, while many others wait in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks import queue
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure


@contextmanager
def _contestants(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [Contestant(OURS, partial(_ours, bench))]
    queue.empty(bench.database)


def _ours(bench: Bench) -> Figures:
    queue.empty(bench.database)
    bench.database.settle()
    with bench.worker():
        return bench.act("answers", bench.sizes.waiting, bench.sizes.latency_jobs, role="web")


AWAIT: Final = Measure(
    name="await",
    title="from enqueue() to what the job returned, in the process that waits, where others wait too",
    units={"p50": "ms", "p99": "ms", "waiting": "", "connections": ""},
    goals=(Goal(figure="p50", at_most=8), Goal(figure="connections", at_most=2)),
    contestants=_contestants,
)
