"""Measures a worker under load while another transaction keeps dead rows from being removed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

from benchmarks import queue
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure
from benchmarks.watch import Successes

_CLEAN: Final = "nothing pinned"
_BACKLOG: Final = 20_000
_LOOK_S: Final = 0.1
_END_PART: Final = 0.2


@contextmanager
def _contestants(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [
        Contestant(OURS, partial(_rate, bench, bench.sizes.pinned_s, pinned=True)),
        Contestant(_CLEAN, partial(_rate, bench, bench.sizes.clean_s, pinned=False)),
    ]
    queue.empty(bench.database)


def _rate(bench: Bench, seconds: float, *, pinned: bool) -> Figures:
    """Keep the queue filled for so long; ``rate_end`` is that of the last fifth of the time."""
    queue.empty(bench.database)
    queue.fill(bench.database, "bench-noop", _BACKLOG)
    bench.database.settle()
    with ExitStack() as stack:
        if pinned:
            pin = stack.enter_context(bench.database.connect())
            pin.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            pin.execute("SELECT count(*) FROM store")
        feed = stack.enter_context(bench.database.connect())
        worker = stack.enter_context(bench.worker())
        successes = Successes(worker)
        stack.callback(successes.close)
        successes.wait_for(1, patience_s=60)
        added, samples = _BACKLOG, [(time.monotonic(), successes.count())]
        while samples[-1][0] - samples[0][0] < seconds:
            if added - samples[-1][1] < _BACKLOG:
                queue.add(feed, "bench-noop", _BACKLOG // 2)
                added += _BACKLOG // 2
            else:
                time.sleep(_LOOK_S)
            samples.append((time.monotonic(), successes.count()))
    began, end = samples[0], samples[-1]
    late = next(sample for sample in samples if sample[0] >= end[0] - seconds * _END_PART)
    late = late if late != end else began
    return {"rate": (end[1] - began[1]) / (end[0] - began[0]), "rate_end": (end[1] - late[1]) / (end[0] - late[0])}


PINNED = Measure(
    name="pinned",
    title="drain under load while another transaction pins xmin, for 5 minutes (less in small runs)",
    units={"rate": "jobs/s", "rate_end": "jobs/s"},
    goals=(Goal(figure="rate_end", against=_CLEAN, at_least=0.6),),
    contestants=_contestants,
)
