"""Measures tasks of Django's framework: what one ``enqueue()`` costs, and how fast a worker with its defaults is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks import queue
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure
from benchmarks.measures.drain import OUR_QUEUE
from benchmarks.observer import Drain
from benchmarks.peers import Peer

_PEER: Final = "django-tasks-db"
_SHARE: Final = 0.2


@contextmanager
def _contestants(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [
        Contestant(OURS, partial(_ours, bench)),
        *(Contestant(peer.name, partial(_peer, bench, peer)) for peer in bench.peers if peer.name == _PEER),
    ]
    queue.empty(bench.database)


def _ours(bench: Bench) -> Figures:
    queue.empty(bench.database)
    figures = bench.act("django_tasks", bench.sizes.enqueue_calls, "timed", role="web")
    queue.empty(bench.database)
    bench.act("django_tasks", round(bench.sizes.drain_jobs * _SHARE), "many", role="web")
    bench.database.settle()
    drain = Drain(bench.database, OUR_QUEUE)
    with bench.worker() as worker:
        return {**figures, "rate": drain.rate(worker)}


def _peer(bench: Bench, peer: Peer) -> Figures:
    database = bench.peer_databases[peer.name]
    figures = bench.act_peer(peer, "enqueue", bench.sizes.enqueue_calls)
    peer.queue.empty(database.superuser_url)
    bench.act_peer(peer, "bulk", round(bench.sizes.drain_jobs * peer.share))
    database.settle()
    drain = Drain(database, peer.queue)
    with bench.start_peer(peer, action="default-worker") as worker:
        return {**figures, "rate": drain.rate(worker)}


DJANGO_TASKS: Final = Measure(
    name="django-tasks",
    title="tasks of Django's framework: enqueue() in a transaction, and a worker with its defaults",
    units={"us": "µs", "queries": "", "rate": "jobs/s"},
    goals=(
        Goal(figure="us", against=_PEER, at_most=1),
        Goal(figure="queries", against=_PEER, at_most=1),
        Goal(figure="rate", against=_PEER, at_least=100),
    ),
    contestants=_contestants,
)
