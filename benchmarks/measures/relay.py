"""Measures the relay: to nowhere, behind a poisoned aggregate, and with millions of messages to catch up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks import messages
from benchmarks.bench import Bench
from benchmarks.measure import OURS, Contestant, Figures, Goal, Measure
from benchmarks.messages import NOWHERE, OUTBOX, POISON, POISONED
from benchmarks.observer import Drain, Queue
from benchmarks.processes import resident_mb

_CEILING: Final = "bare partition owner"
_UNDISTURBED: Final = "undisturbed"
_SHORT: Final = "short queue"
_OTHERS: Final = Queue("salon_jobs_message", unfinished=f"status = 'pending' AND aggregate_id <> '{POISON}'")


@contextmanager
def _contestants(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [Contestant(OURS, partial(_drained, bench)), Contestant(_CEILING, partial(_ceiling, bench))]
    messages.empty(bench.database)


@contextmanager
def _poisoned(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [Contestant(OURS, partial(_beside_poison, bench)), Contestant(_UNDISTURBED, partial(_drained, bench))]
    messages.empty(bench.database)


@contextmanager
def _deep(bench: Bench) -> Iterator[Sequence[Contestant]]:
    yield [Contestant(OURS, partial(_caught_up, bench)), Contestant(_SHORT, partial(_drained, bench))]
    messages.empty(bench.database)


def _drained(bench: Bench) -> Figures:
    drain = _filled(bench, bench.sizes.relay_messages)
    with bench.relay() as relay:
        return {"rate": drain.rate(relay)}


def _ceiling(bench: Bench) -> Figures:
    drain = _filled(bench, bench.sizes.relay_messages)
    with bench.start("benchmarks.ceilings.relay", role="worker") as loop:
        return {"rate": drain.rate(loop)}


def _beside_poison(bench: Bench) -> Figures:
    messages.empty(bench.database)
    messages.fill(bench.database, POISONED, bench.sizes.poisoned_messages, aggregate=POISON)
    messages.fill(bench.database, POISONED, bench.sizes.relay_messages)
    bench.database.settle()
    drain = Drain(bench.database, _OTHERS)
    with bench.relay() as relay:
        return {"rate": drain.rate(relay)}


def _caught_up(bench: Bench) -> Figures:
    drain = _filled(bench, bench.sizes.deep_messages)
    with bench.relay() as relay:
        halfway = [0.0]

        def at_half() -> None:
            halfway[0] = resident_mb(relay.pid)

        rate = drain.rate(relay, at_half=at_half)
        after = resident_mb(relay.pid)
    return {"rate": rate, "at_half": halfway[0], "after": after, "growth": after / halfway[0] if halfway[0] else 1.0}


def _filled(bench: Bench, count: int) -> Drain:
    messages.empty(bench.database)
    messages.fill(bench.database, NOWHERE, count)
    bench.database.settle()
    return Drain(bench.database, OUTBOX)


RELAY = Measure(
    name="relay",
    title="messages to nowhere, in order over 1,000 aggregates, one process",
    units={"rate": "messages/s"},
    goals=(Goal(figure="rate", against=_CEILING, at_least=0.6),),
    contestants=_contestants,
)
POISON_RELAY = Measure(
    name="poison",
    title="messages of others beside one poisoned aggregate with 200,000 (less in small runs)",
    units={"rate": "messages/s"},
    goals=(Goal(figure="rate", against=_UNDISTURBED, at_least=0.9),),
    contestants=_poisoned,
)
CATCH_UP = Measure(
    name="catch-up",
    title="5,000,000 messages to catch up (less in small runs)",
    units={"rate": "messages/s", "at_half": "MB", "after": "MB", "growth": ""},
    goals=(Goal(figure="rate", against=_SHORT, at_least=0.8), Goal(figure="growth", at_most=1.1)),
    contestants=_deep,
    most_rounds=2,
)
