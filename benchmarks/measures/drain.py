"""Measures how fast one process empties a queue of jobs that do nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks import queue
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure
from benchmarks.observer import Drain, Queue
from benchmarks.peers import Peer
from benchmarks.processes import ProcessFailed

CEILING: Final = "bare psycopg loop"
OUR_QUEUE: Final = Queue("salon_jobs_job")


@contextmanager
def _contestants(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [
        Contestant(OURS, partial(_ours, bench)),
        Contestant(CEILING, partial(_ceiling, bench)),
        *(Contestant(peer.name, partial(_peer, bench, peer)) for peer in bench.peers),
    ]
    queue.empty(bench.database)


def _ours(bench: Bench) -> Figures:
    jobs = bench.sizes.drain_jobs
    drain = _filled(bench)
    with bench.worker() as worker:
        rate = drain.rate(worker)
    logged = worker.log.read_text().count('"job_succeeded"')
    if logged != jobs:
        raise ProcessFailed(f"{logged} of {jobs} jobs were logged: the log was to be on")
    return {"rate": rate}


def _ceiling(bench: Bench) -> Figures:
    drain = _filled(bench)
    with bench.start("benchmarks.ceilings.drain", role="worker") as worker:
        return {"rate": drain.rate(worker)}


def _filled(bench: Bench) -> Drain:
    queue.empty(bench.database)
    queue.fill(bench.database, "bench-noop", bench.sizes.drain_jobs)
    bench.database.settle()
    return Drain(bench.database, OUR_QUEUE)


def _peer(bench: Bench, peer: Peer) -> Figures:
    database = bench.peer_databases[peer.name]
    bench.act_peer(peer, "bulk", round(bench.sizes.drain_jobs * peer.share))
    database.settle()
    drain = Drain(database, peer.queue)
    with bench.start_peer(peer) as worker:
        return {"rate": drain.rate(worker)}


DRAIN = Measure(
    name="drain",
    title="no-op jobs, one process",
    units={"rate": "jobs/s"},
    goals=(
        Goal(figure="rate", against="graphile-worker", at_least=1.5),
        Goal(figure="rate", against="pgqueuer", at_least=8),
        Goal(figure="rate", against="procrastinate", at_least=40),
        Goal(figure="rate", against="oban", at_least=1),
        Goal(figure="rate", against=CEILING, at_least=0.8),
    ),
    contestants=_contestants,
)
