"""Measures 16 processes that enqueue at once, with the wake-up and without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks import messages, queue
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure

_SILENT: Final = "without wake-up"


@contextmanager
def _contestants(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [
        Contestant(OURS, partial(_rate, bench, "jobs", "on")),
        Contestant(_SILENT, partial(_rate, bench, "jobs", "off")),
    ]
    queue.empty(bench.database)


@contextmanager
def _emitters(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [
        Contestant(OURS, partial(_rate, bench, "messages", "on")),
        Contestant(_SILENT, partial(_rate, bench, "messages", "off")),
    ]
    messages.empty(bench.database)


def _rate(bench: Bench, what: str, wake_up: str) -> Figures:
    queue.empty(bench.database)
    messages.empty(bench.database)
    bench.database.settle()
    return bench.act("writers", what, wake_up, queue.store_id(1), bench.sizes.writers_s, role="web")


WRITERS = Measure(
    name="writers",
    title="16 processes that enqueue, a transaction each time",
    units={"rate": "tx/s"},
    goals=(Goal(figure="rate", against=_SILENT, at_least=0.9),),
    contestants=_contestants,
)
EMIT_WRITERS = Measure(
    name="emit-writers",
    title="16 processes that emit, a transaction each time",
    units={"rate": "tx/s"},
    goals=(Goal(figure="rate", against=_SILENT, at_least=0.9),),
    contestants=_emitters,
)
