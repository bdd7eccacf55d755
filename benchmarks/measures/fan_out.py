"""Measures the fan-out of a task to all stores."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks import queue
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure
from benchmarks.processes import ProcessFailed

_KEYLESS: Final = "salon_jobs, without a key"


@contextmanager
def _contestants(bench: Bench) -> Iterator[Sequence[Contestant]]:
    with bench.another_database() as database:
        days = itertools.count()

        def seconds(kind: str, stores: int) -> float:
            queue.create_stores(database, 1, stores)
            queue.drop_stores(database, above=stores)
            queue.empty(database)
            database.settle()
            done = bench.act("fan_out", kind, next(days), role="worker", database=database)
            if done["added"] != stores:
                raise ProcessFailed(f"{done['added']} jobs were added for {stores} stores")
            return done["seconds"]

        def both(kind: str) -> Figures:
            few, many = bench.sizes.fan_out_stores
            return {"few": seconds(kind, few), "many": seconds(kind, many)}

        yield [Contestant(OURS, partial(both, "keyed")), Contestant(_KEYLESS, partial(both, "keyless"))]


FAN_OUT = Measure(
    name="fan-out",
    title="one job per store: 100 stores (few), 100,000 stores (many; less in small runs)",
    units={"few": "s", "many": "s"},
    goals=(Goal(figure="few", at_most=0.5), Goal(figure="many", at_most=5)),
    contestants=_contestants,
)
