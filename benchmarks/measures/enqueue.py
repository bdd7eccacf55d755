"""Measures what one ``enqueue()`` costs in a transaction, compared with the bare INSERT of the same row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks import queue
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure

_RAW: Final = "raw INSERT"


@contextmanager
def _contestants(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [Contestant(OURS, partial(_timed, bench, "enqueue")), Contestant(_RAW, partial(_timed, bench, "raw"))]
    queue.empty(bench.database)


def _timed(bench: Bench, kind: str) -> Figures:
    queue.empty(bench.database)
    bench.database.settle()
    return bench.act(
        "enqueue",
        kind,
        queue.store_id(1),
        bench.sizes.enqueue_calls,
        role="web" if kind == "enqueue" else "worker",  # the web may insert by functions only
    )


ENQUEUE = Measure(
    name="enqueue",
    title="enqueue() in a transaction",
    units={"us": "µs"},
    goals=(Goal(figure="us", against=_RAW, at_most=1.5),),
    contestants=_contestants,
)
