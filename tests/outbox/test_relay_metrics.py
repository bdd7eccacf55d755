"""Shows what a relay counts and reports of itself, and what makes it not ready."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import PublishFailure, Verdict
from salon_jobs.core.errors import NotReady
from salon_jobs.outbox.relay_publishers import BrokerPing
from tests.metrics import of, shown
from tests.outbox.scene import ORDERS, RunningRelay, answer_with, emitted, open_writer, relaying, statuses
from tests.support import change, event_fields, seen
from tests.waiting import LIMIT_S, eventually


def value(running: RunningRelay, name: str, **labels: str) -> float:
    return of(shown(running.relay.samples()), name, **labels)


def test_metrics_of_destinations(tune: Callable[..., None]) -> None:
    tune(progress_s=0.0)
    once = iter([PublishFailure(Verdict.RETRY, "TEST.ONCE")])
    answers: dict[str, Callable[[], PublishFailure | None]] = {
        "skipped": lambda: PublishFailure(Verdict.SKIPPED, "TEST.SKIP"),
        "refused": lambda: PublishFailure(Verdict.REFUSED, "TEST.NEVER"),
        "away": lambda: PublishFailure(Verdict.OUTAGE, "TEST.AWAY"),
        "once": lambda: next(once, None),
        "good": lambda: None,
    }
    MemoryPublisher.answer = lambda message: answers[message.event]()
    for event in ("good", "good", "skipped", "refused", "once"):
        emitted(event, event=event)
    with relaying() as running:
        eventually(statuses, {"published": 3, "skipped": 1, "failed": 1})
        for outcome, count in (("published", 3), ("skipped", 1), ("failed", 1), ("retried", 1)):
            assert value(running, "relay_messages_total", destination=ORDERS, outcome=outcome) == count
        eventually(lambda: value(running, "relay_blocked_aggregates", destination=ORDERS, status="parked"), 1)
        assert value(running, "relay_partitions") == 16
        assert value(running, "relay_breaker_open", destination=ORDERS) == 0
        emitted("away", event="away")
        eventually(lambda: value(running, "relay_breaker_open", destination=ORDERS), 1)
        eventually(lambda: value(running, "relay_lag_seconds", destination=ORDERS) > 0.01)


def test_messages_waiting_for_a_retry_are_logged(tune: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    tune(progress_s=0.0)
    caplog.set_level(logging.INFO, "salon_jobs")
    answer_with(Verdict.RETRY)
    emitted("a")
    emitted("b")
    with relaying():
        eventually(lambda: 2 in [fields["waiting_for_retry"] for fields in event_fields(caplog, "relayed")])


def test_metric_of_the_held_gate() -> None:
    with relaying() as running:
        running.wait_for_partitions()
        with open_writer():
            emitted("b")
            eventually(lambda: value(running, "relay_gate_held_seconds") > 0)
        eventually(lambda: value(running, "relay_gate_held_seconds"), 0)


class Hanging(MemoryPublisher):
    """Publisher that answers a ping when the test lets it, with the trouble of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.pinged = threading.Semaphore(0)
        self.let_go = threading.Semaphore(0)
        self.trouble = ""

    def ping(self) -> None:
        self.pinged.release()
        assert self.let_go.acquire(timeout=LIMIT_S)
        if self.trouble:
            raise NotReady(self.trouble)


def test_hanging_broker_hangs_nobody() -> None:
    """It is asked once in ten seconds, or two while it is in trouble; to look at it asks nothing."""
    publisher, now = Hanging(), [100.0]
    broker = BrokerPing(publisher, clock=lambda: now[0])
    assert broker.silent_s() == 0
    assert not publisher.pinged.acquire(blocking=False)
    broker.ping_if_due()
    assert publisher.pinged.acquire(timeout=LIMIT_S)
    now[0] += 40
    broker.ping_if_due()
    assert broker.silent_s() == 40
    assert not publisher.pinged.acquire(blocking=False)
    publisher.let_go.release()
    eventually(broker.silent_s, 0)
    publisher.trouble = "refused"
    publisher.let_go.release()
    broker.ping_if_due()
    eventually(lambda: broker.trouble, "refused")
    assert publisher.pinged.acquire(blocking=False)
    publisher.trouble = ""
    publisher.let_go.release()
    now[0] += 1
    broker.ping_if_due()
    assert not publisher.pinged.acquire(blocking=False)
    assert broker.silent_s() == 1, "since it last answered"
    now[0] += 1

    def silent_s() -> float:
        broker.ping_if_due()  # the thread of the last one may not have ended
        return broker.silent_s()

    eventually(silent_s, 0)


def test_broker_that_is_away_makes_a_relay_unready(tune: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """And its destinations are down, although no message waits for them."""
    outages = "SELECT outage_code, outage, outage_since IS NOT NULL FROM salon_jobs_destination"
    down = [("OUTBOX.BROKER_SILENT", "connection refused", True)]
    tune(pings_s=0.0, pings_again_s=0.0, silent_for_s=0.2)
    away = [True]

    def ping(_publisher: MemoryPublisher) -> None:
        if away[0]:
            raise NotReady("connection refused")

    def readiness() -> Any:
        """Return the brokers' facts, or what is wrong."""
        try:
            return running.facts()["brokers"]
        except NotReady as error:
            return str(error)

    monkeypatch.setattr(MemoryPublisher, "ping", ping)
    emitted("a")
    with relaying() as running:
        eventually(statuses, {"published": 1})
        eventually(lambda: "the broker of 'memory' cannot be used (connection refused)" in readiness())
        eventually(partial(seen, outages), down)
        change("UPDATE salon_jobs_destination SET paused = true")
        eventually(readiness, {})
        change("UPDATE salon_jobs_destination SET paused = false")
        eventually(lambda: "connection refused" in readiness())
        eventually(partial(seen, outages), down)
        away[0] = False
        eventually(readiness, {"memory": {"silent_s": 0.0}})
        eventually(partial(seen, outages), [("", "", False)])
