"""Shows what a relay counts and tells of itself, and what makes it not ready."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections, transaction

from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure, Verdict
from salon_jobs.core.errors import NotReady
from salon_jobs.outbox import destinations as progress
from salon_jobs.outbox.destinations import BrokerPing
from tests.e2e.worker_process import eventually
from tests.metrics import of, shown
from tests.outbox.scene import ORDERS, emitted, relaying, statuses
from tests.support import change

Require = Callable[..., None]


@pytest.fixture
def require(settings: Any) -> Require:
    """Set thresholds of readiness."""

    def set_(**thresholds: Any) -> None:
        settings.SALON_JOBS = {**settings.SALON_JOBS, "READINESS": thresholds}

    return set_


def test_a_relay_tells_of_its_destinations(require: Require, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PROGRESS_EVERY_S", 0.0)
    monkeypatch.setattr(MemoryPublisher, "answer", staticmethod(_by_event))
    for event in ("good", "good", "skipped", "refused", "once"):
        emitted(event, event=event)
    _tried.clear()
    with relaying() as running_relay:
        eventually(lambda: statuses() == {"published": 3, "skipped": 1, "failed": 1})

        def value(name: str, **labels: str) -> float:
            return of(shown(running_relay.relay.samples()), name, **labels)

        for outcome, count in (("published", 3), ("skipped", 1), ("failed", 1), ("retried", 1)):
            assert value("relay_messages_total", destination=ORDERS, outcome=outcome) == count
        eventually(lambda: value("relay_blocked_aggregates", destination=ORDERS, status="parked") == 1)
        assert value("relay_partitions") == 16
        assert value("relay_breaker_open", destination=ORDERS) == 0
        emitted("away", event="away")
        eventually(lambda: value("relay_breaker_open", destination=ORDERS) == 1)
        eventually(lambda: value("relay_lag_seconds", destination=ORDERS) > 0.01)
        require(RELAY_LAG=0.01)
        with pytest.raises(NotReady, match=r"READINESS\['RELAY_LAG'\] allows 0.01 s"):
            running_relay.facts()


def test_a_relay_tells_for_how_long_a_writer_has_held_the_gate(require: Require) -> None:
    with relaying() as running_relay:
        eventually(lambda: len(running_relay.facts()["partitions"]) == 16)
        web = connections["web"]
        with transaction.atomic(using="web"), web.cursor() as cursor:
            cursor.execute("SELECT salon_jobs_emit(%s, 'a', 'e', '{}', wake => false)", [ORDERS])
            emitted("b")
            eventually(lambda: of(shown(running_relay.relay.samples()), "relay_gate_held_seconds") > 0)
            require(GATE_HELD=0.001)
            with pytest.raises(NotReady, match="an open transaction has held messages back"):
                running_relay.facts()
        eventually(lambda: of(shown(running_relay.relay.samples()), "relay_gate_held_seconds") == 0)
    web.close()


_tried: set[int] = set()


def _by_event(message: OutgoingMessage) -> PublishFailure | None:
    match message.event:
        case "skipped":
            return PublishFailure(Verdict.SKIPPED, "TEST.SKIP")
        case "refused":
            return PublishFailure(Verdict.REFUSED, "TEST.NEVER")
        case "away":
            return PublishFailure(Verdict.OUTAGE, "TEST.AWAY")
        case "once" if message.id not in _tried:
            _tried.add(message.id)
            return PublishFailure(Verdict.RETRY, "TEST.ONCE")
        case _:
            return None


class Hanging(MemoryPublisher):
    """Answers a ping when it is told to, with the trouble it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.pinged = threading.Semaphore(0)
        self.let_go = threading.Semaphore(0)
        self.trouble = ""

    def ping(self) -> None:
        """Wait, then answer."""
        self.pinged.release()
        assert self.let_go.acquire(timeout=10)
        if self.trouble:
            raise NotReady(self.trouble)


def test_a_broker_that_hangs_hangs_nobody_and_is_asked_once_in_ten_seconds() -> None:
    publisher, now = Hanging(), [100.0]
    broker = BrokerPing(publisher, clock=lambda: now[0])
    assert broker.silent_s() == 0
    assert publisher.pinged.acquire(timeout=10)
    now[0] += 40
    assert broker.silent_s() == 40
    assert not publisher.pinged.acquire(blocking=False)
    publisher.let_go.release()
    eventually(lambda: not broker._thread.is_alive())  # type: ignore[union-attr]
    now[0] += 1
    publisher.trouble = "refused"
    publisher.let_go.release()
    broker.silent_s()
    eventually(lambda: broker.trouble == "refused")
    now[0] += 60
    assert broker.silent_s() == 60
    publisher.trouble = ""
    publisher.let_go.release()
    eventually(lambda: broker.silent_s() == 0)


def test_a_broker_that_is_away_makes_a_relay_unready_and_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("salon_jobs.outbox.destinations._PING_EVERY_S", 0.0)
    monkeypatch.setattr("salon_jobs.outbox.destinations._SILENT_FOR_S", 0.2)
    away = [True]

    def ping(_publisher: MemoryPublisher) -> None:
        if away[0]:
            raise NotReady("connection refused")

    monkeypatch.setattr(MemoryPublisher, "ping", ping)
    emitted("a")
    with relaying() as running_relay:
        eventually(lambda: statuses() == {"published": 1})
        fault = eventually_not_ready(running_relay.facts)
        assert "the broker of 'memory' cannot be used (connection refused)" in fault
        change("UPDATE salon_jobs_destination SET paused = true")
        eventually(lambda: "brokers" in ready_facts(running_relay.facts))
        change("UPDATE salon_jobs_destination SET paused = false")
        eventually_not_ready(running_relay.facts)
        away[0] = False
        eventually(lambda: ready_facts(running_relay.facts).get("brokers") == {"memory": {"silent_s": 0.0}})


def ready_facts(facts: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return facts()
    except NotReady:
        return {}


def eventually_not_ready(facts: Callable[[], dict[str, Any]]) -> str:
    faults: list[str] = []

    def told() -> bool:
        try:
            facts()
        except NotReady as error:
            faults.append(str(error))
        return bool(faults)

    eventually(told)
    return faults[0]
