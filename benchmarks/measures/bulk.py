"""Measures how fast many jobs are added at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks import queue
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure
from benchmarks.peers import Peer

_STORELESS: Final = "salon_jobs, jobs of no store"


@contextmanager
def _contestants(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [
        Contestant(OURS, partial(_ours, bench, "store")),
        Contestant(_STORELESS, partial(_ours, bench, "system")),
        *(Contestant(peer.name, partial(_peer, bench, peer)) for peer in bench.peers),
    ]
    queue.empty(bench.database)


def _ours(bench: Bench, kind: str) -> Figures:
    queue.empty(bench.database)
    bench.database.settle()
    return bench.act("bulk", kind, queue.store_id(1), bench.sizes.bulk_jobs, role="web")


def _peer(bench: Bench, peer: Peer) -> Figures:
    database = bench.peer_databases[peer.name]
    peer.queue.empty(database.superuser_url)
    database.settle()
    figures = bench.act_peer(peer, "bulk", round(bench.sizes.bulk_jobs * peer.bulk_share))
    peer.queue.empty(database.superuser_url)
    return figures


BULK = Measure(
    name="bulk",
    title="many jobs added at once",
    units={"rate": "jobs/s"},
    goals=(
        Goal(figure="rate", against="graphile-worker", at_least=2),
        Goal(figure="rate", of=_STORELESS, against="graphile-worker", at_least=2),
    ),
    contestants=_contestants,
)
