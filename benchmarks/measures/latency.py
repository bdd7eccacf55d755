"""Measures how long an idle worker takes to start a job that is added."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from benchmarks import queue
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure
from benchmarks.peers import PEERS, Peer
from benchmarks.processes import ProcessFailed, Running
from benchmarks.watch import Marks, percentile

_WARM_UP = 10
_PATIENCE_S = 60.0


@contextmanager
def _contestants(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [
        Contestant(OURS, partial(_ours, bench)),
        *(Contestant(peer.name, partial(_peer, bench, peer)) for peer in bench.peers),
    ]


def _ours(bench: Bench) -> Figures:
    queue.empty(bench.database)
    bench.database.settle()
    marks = Marks(bench.path("marks"))
    with bench.worker(BENCHMARK_MARKS=str(marks.path)) as worker:
        return _measured(bench, marks, worker, lambda count: bench.act("latency", count, role="web"))


def _peer(bench: Bench, peer: Peer) -> Figures:
    bench.peer_databases[peer.name].settle()
    marks = Marks(bench.path("marks"))
    with bench.start_peer(peer, BENCHMARK_MARKS=str(marks.path)) as worker:
        return _measured(bench, marks, worker, lambda count: bench.act_peer(peer, "latency", count))


def _measured(bench: Bench, marks: Marks, worker: Running, add: Callable[[int], object]) -> Figures:
    """Add some jobs to warm up, then those that count. From before the call that adds to the handler's first line."""
    count = bench.sizes.latency_jobs
    for number in (_WARM_UP, count):
        expected = len(marks.read()) + number
        add(number)
        if not marks.wait_for(expected, worker, patience_s=_PATIENCE_S):
            raise ProcessFailed(f"{len(marks.read())} of {expected} jobs started within {_PATIENCE_S:.0f} s")
    waits = [(started - added) / 1e6 for added, started in marks.read()[-count:]]
    return {"p50": percentile(waits, 0.5), "p99": percentile(waits, 0.99)}


LATENCY = Measure(
    name="latency",
    title="from adding a job to its start, on an idle worker",
    units={"p50": "ms", "p99": "ms"},
    goals=(
        Goal(figure="p50", at_most=3),
        Goal(figure="p99", at_most=15),
        *(Goal(figure=figure, against=peer.name, at_most=1) for peer in PEERS for figure in ("p50", "p99")),
    ),
    contestants=_contestants,
)
