"""Measures how fast a queue of jobs that do nothing is emptied: by one process, and by the whole machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks import queue
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure
from benchmarks.observer import Drain, Queue
from benchmarks.peers import PEERS, Peer
from benchmarks.processes import ProcessFailed

CEILING: Final = "bare psycopg loop"
OUR_QUEUE: Final = Queue("salon_jobs_job")
_CORES: Final = len(os.sched_getaffinity(0))
_ONE: Final = "graphile-worker, one process"


@contextmanager
def _by_one(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [
        Contestant(OURS, partial(_ours, bench, "--processes", "1")),
        Contestant(CEILING, partial(_ceiling, bench)),
        *(Contestant(peer.name, partial(_peer, bench, peer, 1)) for peer in bench.peers),
    ]
    queue.empty(bench.database)


@contextmanager
def _by_all(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [
        Contestant(OURS, partial(_ours, bench)),
        *(Contestant(peer.name, partial(_peer, bench, peer, _CORES)) for peer in bench.peers),
        *(Contestant(_ONE, partial(_peer, bench, peer, 1)) for peer in bench.peers if _ONE.startswith(peer.name)),
    ]
    queue.empty(bench.database)


def _ours(bench: Bench, *options: str) -> Figures:
    jobs = bench.sizes.drain_jobs
    drain = _filled(bench)
    with bench.worker(*options) as worker:
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


def _peer(bench: Bench, peer: Peer, processes: int) -> Figures:
    database = bench.peer_databases[peer.name]
    bench.act_peer(peer, "bulk", round(bench.sizes.drain_jobs * peer.share))
    database.settle()
    drain = Drain(database, peer.queue)
    with bench.start_peer(peer, processes=processes) as worker:
        return {"rate": drain.rate(worker)}


def _ahead(at_least: dict[str, float]) -> tuple[Goal, ...]:
    return tuple(Goal(figure="rate", against=peer.name, at_least=at_least.get(peer.name, 1)) for peer in PEERS)


DRAIN: Final = Measure(
    name="drain",
    title="no-op jobs, one process",
    units={"rate": "jobs/s"},
    goals=(
        *_ahead({"graphile-worker": 1.1, "pgqueuer": 8, "procrastinate": 40, "celery": 10, "django-tasks-db": 100}),
        Goal(figure="rate", against=CEILING, at_least=0.85),
    ),
    contestants=_by_one,
)
DRAIN_MACHINE: Final = Measure(
    name="drain-machine",
    title=f"no-op jobs, our defaults and peers with a process for each of {_CORES} cores",
    units={"rate": "jobs/s"},
    goals=(
        *_ahead({"graphile-worker": 1.7, "celery": 10, "django-tasks-db": 100}),
        Goal(figure="rate", against=_ONE, at_least=1.7),
    ),
    contestants=_by_all,
)
