"""Measures from the start of the process to the start of its first job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from benchmarks import queue
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure
from benchmarks.processes import ProcessFailed
from benchmarks.watch import Marks


@contextmanager
def _contestants(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [Contestant(OURS, partial(_seconds, bench))]


def _seconds(bench: Bench) -> Figures:
    queue.empty(bench.database)
    bench.database.execute("""INSERT INTO salon_jobs_job (task, payload) VALUES ('bench-mark', '{"added_ns": 0}')""")
    marks = Marks(bench.path("marks"))
    with bench.worker(BENCHMARK_MARKS=str(marks.path)) as worker:
        if not marks.wait_for(1, worker, patience_s=60):
            raise ProcessFailed("the job did not start within 60 s")
    [(_, started_ns)] = marks.read()
    return {"seconds": (started_ns - worker.started_ns) / 1e9}


START = Measure(
    name="start",
    title="from the start of the process to its first job",
    units={"seconds": "s"},
    goals=(Goal(figure="seconds", at_most=2),),
    contestants=_contestants,
)
