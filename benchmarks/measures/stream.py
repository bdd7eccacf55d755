"""Measures the relay to a real JetStream: its rate, and how soon after the commit a message is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks import messages
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure
from benchmarks.messages import OUTBOX, STREAM, TO_STREAM
from benchmarks.observer import Drain
from benchmarks.processes import act, environment, python
from project.local.nats import NatsServer

_PIPELINED: Final = "bare publish_async loop"
_RAW: Final = "raw publishes, counted"


@contextmanager
def _rates(bench: Bench) -> Iterator[Sequence[Contestant]]:
    with NatsServer() as nats:
        yield [
            Contestant(OURS, partial(_rate, bench, nats)),
            Contestant(_PIPELINED, partial(_bare, bench, nats, "pipelined")),
            Contestant(_RAW, partial(_bare, bench, nats, "raw")),
        ]
    messages.empty(bench.database)


@contextmanager
def _latencies(bench: Bench) -> Iterator[Sequence[Contestant]]:
    with NatsServer() as nats:
        yield [Contestant(OURS, partial(_latency, bench, nats))]
    messages.empty(bench.database)


def _rate(bench: Bench, nats: NatsServer) -> Figures:
    messages.empty(bench.database)
    messages.fill(bench.database, TO_STREAM, bench.sizes.stream_messages)
    bench.database.settle()
    _stream(nats, "new")
    drain = Drain(bench.database, OUTBOX)
    with bench.relay(NATS_SERVER=nats.url) as relay:
        return {"rate": drain.rate(relay)}


def _bare(bench: Bench, nats: NatsServer, action: str) -> Figures:
    return _stream(nats, action, bench.sizes.stream_messages)


def _latency(bench: Bench, nats: NatsServer) -> Figures:
    messages.empty(bench.database)
    bench.database.settle()
    _stream(nats, "new")
    with bench.relay(NATS_SERVER=nats.url) as relay:
        figures = bench.act("emit_latency", nats.url, bench.sizes.latency_jobs, role="web")
        relay.check()
    return figures


def _stream(nats: NatsServer, action: str, *arguments: object) -> Figures:
    return act(python("benchmarks.ceilings.jetstream", action, nats.url, STREAM, *map(str, arguments)), environment())


STREAM_RELAY = Measure(
    name="stream",
    title="messages to JetStream, in order over 1,000 aggregates, one process",
    units={"rate": "messages/s"},
    goals=(Goal(figure="rate", at_least=8000), Goal(figure="rate", against=_PIPELINED, at_least=0.6)),
    contestants=_rates,
)
EMIT_LATENCY = Measure(
    name="emit-latency",
    title="from before a commit to the broker, relay idle",
    units={"p50": "ms", "p99": "ms"},
    goals=(Goal(figure="p50", at_most=5), Goal(figure="p99", at_most=25)),
    contestants=_latencies,
)
