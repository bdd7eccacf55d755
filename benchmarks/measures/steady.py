"""Measures how long jobs wait for their start while they arrive at a steady rate, and what that costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import processor, queue
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure
from benchmarks.peers import PEERS, Peer
from benchmarks.processes import ProcessFailed, Running
from benchmarks.redis import RedisDatabase
from benchmarks.server import Database
from benchmarks.watch import Marks, percentile

_WARM_UP: Final = 20
_WARM_UP_RATE: Final = 100
_PATIENCE_S: Final = 60.0
# How long the programs that add have to start and connect.
_LEAD_S: Final = 3.0
_GRACE_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Jobs offered: so many a second, by so many processes that add, each so many in one call."""

    rate: int
    processes: int = 1
    batch: int = 1

    def arguments(self, seconds: float, start_ns: int) -> tuple[int, ...]:
        """Return count, batch, rate and start for one of the processes that add."""
        rate = self.rate // self.processes
        return max(1, round(rate * seconds / self.batch)) * self.batch, self.batch, rate, start_ns


@contextmanager
def _contestants(load: Load, bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [
        Contestant(OURS, partial(_ours, load, bench)),
        *(Contestant(peer.name, partial(_peer, load, bench, peer)) for peer in bench.peers),
    ]
    queue.empty(bench.database)


def _ours(load: Load, bench: Bench) -> Figures:
    queue.empty(bench.database)
    bench.database.settle()
    marks = Marks(bench.path("marks"))
    with bench.worker(BENCHMARK_MARKS=str(marks.path)) as worker:
        add = partial(bench.act, "steady", role="web")
        return _Round(load, bench, marks, worker, bench.database, add).figures()


def _peer(load: Load, bench: Bench, peer: Peer) -> Figures:
    database = bench.peer_databases[peer.name]
    peer.queue.empty(database.superuser_url)
    database.settle()
    marks = Marks(bench.path("marks"))
    with bench.start_peer(peer, BENCHMARK_MARKS=str(marks.path)) as worker:
        add = partial(bench.act_peer, peer, "steady")
        found = _Round(load, bench, marks, worker, database, add).figures()
    peer.queue.empty(database.superuser_url)
    return found


@dataclass(frozen=True, slots=True)
class _Round:
    load: Load
    bench: Bench
    marks: Marks
    worker: Running
    database: Database | RedisDatabase
    add: Callable[..., object]

    def figures(self) -> Figures:
        """Add some jobs to warm up, then those that count: from before the call that adds to the handler's first line.

        Jobs not started 10 s after the last was added count as 10 s.
        """
        self.add(_WARM_UP, 1, _WARM_UP_RATE, 0)
        if not self.marks.wait_for(_WARM_UP, self.worker, patience_s=_PATIENCE_S):
            raise ProcessFailed(f"the jobs added to warm up did not start within {_PATIENCE_S:.0f} s")
        start_ns = time.monotonic_ns() + round(_LEAD_S * 1e9)
        arguments = self.load.arguments(self.bench.sizes.steady_s, start_ns)
        jobs = arguments[0] * self.load.processes
        server = self.database.server_pid()
        with ThreadPoolExecutor(self.load.processes) as adders:
            added = [adders.submit(self.add, *arguments) for _ in range(self.load.processes)]
            time.sleep(max(0.0, (start_ns - time.monotonic_ns()) / 1e9))
            before, slept = self._used(server), self._wake_ups(server)
            for each in added:
                each.result()
        self.marks.wait_for(_WARM_UP + jobs, self.worker, patience_s=_GRACE_S)
        after, woke = self._used(server), self._wake_ups(server)
        marks = self.marks.read()[_WARM_UP:]
        waits = [(started - added) / 1e6 for added, started in marks] + [_GRACE_S * 1000] * (jobs - len(marks))
        return {
            "p50": percentile(waits, 0.5),
            "p99": percentile(waits, 0.99),
            **{name: (after[name] - before[name]) / jobs for name in after},
            # A thread that has ended meanwhile is left out.
            **{
                f"{name} wakes": sum(count - slept[name].get(thread, 0) for thread, count in found.items()) / jobs
                for name, found in woke.items()
            },
        }

    def _used(self, server: int | None) -> dict[str, float]:
        """Return processor time in µs so far; the server's includes those who add."""
        return {name: processor.seconds(pids) * 1e6 for name, pids in self._processes(server).items()}

    def _wake_ups(self, server: int | None) -> dict[str, dict[Path, int]]:
        """Return how often each thread woke so far."""
        return {name: processor.wake_ups(pids) for name, pids in self._processes(server).items()}

    def _processes(self, server: int | None) -> dict[str, Sequence[int]]:
        found = {"worker": self.worker.pids, "server": [] if server is None else [server]}
        return {name: pids for name, pids in found.items() if pids}


_WAKES: Final = {"worker wakes": "", "server wakes": ""}


def _steady(name: str, title: str, load: Load, goals: Sequence[Goal]) -> Measure:
    return Measure(
        name=f"steady-{name}",
        title=f"from adding a job to its start, {title}; processor time and wake-ups a job",
        units={"p50": "ms", "p99": "ms", "worker": "µs", "server": "µs", **_WAKES},
        goals=goals,
        contestants=partial(_contestants, load),
        most_rounds=3,
    )


_SOONEST: Final = tuple(
    Goal(figure=figure, against=peer.name, at_most=ratio)
    for peer in PEERS
    for figure, ratio in (("p50", 1.1), ("p99", 1.0))
)
STEADY: Final = (
    _steady("20", "20 a second", Load(rate=20), _SOONEST),
    _steady("200", "200 a second", Load(rate=200), _SOONEST),
    _steady("200-batches", "200 a second, ten at once", Load(rate=200, batch=10), _SOONEST),
    _steady("800", "800 a second by four processes", Load(rate=800, processes=4), _SOONEST),
    _steady("2000", "2,000 a second, ten at once", Load(rate=2000, batch=10), (Goal(figure="p50", at_most=10),)),
)
