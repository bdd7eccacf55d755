"""Measures jobs that wait for another system, many at once: how fast they end, and what the waiting ones hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks import queue
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure
from benchmarks.measures.drain import OUR_QUEUE
from benchmarks.observer import Drain
from benchmarks.peers import Peer
from benchmarks.processes import Running
from benchmarks.server import Database, embedded_server
from benchmarks.sizes import Sizes
from benchmarks.usage import Usage

CEILING: Final = "bare asyncio loop"
_SYNC_CEILING: Final = "bare asyncio loop, sync ORM"
_THREADS: Final = 8
# Beside a connection for each job.
_SPARE_CONNECTIONS: Final = 50


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs that read a row, wait and write one, or only wait."""

    has_rows: bool

    @property
    def task(self) -> str:
        """Return our task."""
        return "bench-wait-rows" if self.has_rows else "bench-wait"

    def jobs(self, sizes: Sizes) -> int:
        """Return how many there are."""
        return sizes.async_jobs if self.has_rows else sizes.idle_jobs

    def at_once(self, sizes: Sizes) -> int:
        """Return how many of them wait at once."""
        return sizes.async_at_once if self.has_rows else sizes.idle_at_once


@contextmanager
def _contestants(load: Load, bench: Bench) -> Iterator[Sequence[Contestant]]:
    with ExitStack() as stack:
        peers: list[Contestant] = []
        for peer in bench.peers:
            if peer.waits:
                database = bench.peer_databases[peer.name]
                if not isinstance(database, Database):  # a thread and a connection for each job
                    connections = load.at_once(bench.sizes) + _SPARE_CONNECTIONS
                    own = stack.enter_context(embedded_server({}, max_connections=str(connections)))
                    database = stack.enter_context(own.database())
                peers.append(Contestant(peer.name, partial(_peer, load, bench, peer, database)))
        yield [
            Contestant(OURS, partial(_ours, load, bench)),
            Contestant(CEILING, partial(_ceiling, "async" if load.has_rows else "idle", load, bench)),
            *([Contestant(_SYNC_CEILING, partial(_ceiling, "sync", load, bench))] if load.has_rows else []),
            *peers,
        ]
        queue.empty(bench.database)
        bench.database.execute("DROP TABLE IF EXISTS bench_row")


def _ours(load: Load, bench: Bench) -> Figures:
    drain = _filled(load, bench)
    options = ("--processes", "1", "--concurrency", str(_THREADS))
    at_once = ("--async-concurrency", str(load.at_once(bench.sizes)))
    with bench.worker(*options, *at_once, WAIT_S=str(bench.sizes.wait_s)) as worker:
        return _figures(load, bench, drain, worker, bench.database)


def _ceiling(kind: str, load: Load, bench: Bench) -> Figures:
    drain = _filled(load, bench)
    arguments = (kind, load.at_once(bench.sizes), _THREADS)
    module, wait_s = "benchmarks.ceilings.waiting", str(bench.sizes.wait_s)
    with bench.start(module, *arguments, role="worker", WAIT_S=wait_s) as worker:
        return _figures(load, bench, drain, worker, bench.database)


def _filled(load: Load, bench: Bench) -> Drain:
    queue.empty(bench.database)
    queue.fill(bench.database, load.task, load.jobs(bench.sizes))
    _create_rows(bench.database)
    bench.database.settle()
    return Drain(bench.database, OUR_QUEUE)


def _peer(load: Load, bench: Bench, peer: Peer, rows: Database) -> Figures:
    database = bench.peer_databases[peer.name]
    kind, more = int(load.has_rows), {"ROWS_URL": rows.superuser_url, "WAIT_S": str(bench.sizes.wait_s)}
    bench.add_waiting(peer, load.jobs(bench.sizes), kind, **more)
    _create_rows(rows)
    database.settle()
    drain = Drain(database, peer.queue)
    with bench.start_waiting(peer, load.at_once(bench.sizes), kind, **more) as worker:
        return _figures(load, bench, drain, worker, rows)


def _figures(load: Load, bench: Bench, drain: Drain, worker: Running, rows: Database) -> Figures:
    """Return the figures of one drain; the rate is from the start of the first job, one wait before its end."""
    jobs = load.jobs(bench.sizes)
    with Usage(worker, rows) as usage:
        seconds = jobs / drain.rate(worker, at_first=usage.begin) + bench.sizes.wait_s
        processor_s = usage.processor_s()
    return {
        "rate": jobs / seconds,
        "connections": usage.connections,
        "memory": usage.memory_mb,
        "processor": processor_s / jobs * 1000,
    }


def _create_rows(database: Database) -> None:
    """Create the table with one row, for any role."""
    database.execute("DROP TABLE IF EXISTS bench_row")
    database.execute("CREATE TABLE bench_row (id bigint PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY, number int)")
    database.execute("INSERT INTO bench_row (number) VALUES (7)")
    database.execute("GRANT ALL ON bench_row TO PUBLIC")


def _measure(name: str, title: str, load: Load, goals: Sequence[Goal]) -> Measure:
    return Measure(
        name=name,
        title=title,
        units={"rate": "jobs/s", "connections": "", "memory": "MB", "processor": "ms"},
        goals=goals,
        contestants=partial(_contestants, load),
        most_rounds=3,
    )


WAITING: Final = _measure(
    "waiting",
    "jobs that read a row, wait a second and write one, 1,000 at once; processor time a job",
    Load(has_rows=True),
    (
        *(Goal(figure="rate", against=peer, at_least=2) for peer in ("procrastinate", "celery")),
        Goal(figure="rate", against=CEILING, at_least=0.9),
        Goal(figure="connections", at_most=20),
        Goal(figure="memory", at_most=200),
    ),
)
WAITING_IDLE: Final = _measure(
    "waiting-idle",
    "jobs that only wait a second, 5,000 at once; processor time a job",
    Load(has_rows=False),
    (Goal(figure="rate", at_least=4000), Goal(figure="rate", against=CEILING, at_least=0.9)),
)
