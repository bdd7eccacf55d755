"""Shows the whole way out: emitted in a transaction, relayed, published to SNS, arrived in SQS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.brokers.sns import SnsBroker, SnsFifoBroker
from tests.e2e.worker_process import eventually
from tests.outbox.scene import emitted, relay_in_burst, relaying, statuses
from tests.support import seen


@pytest.fixture(scope="module")
def broker() -> Iterator[SnsBroker]:
    """Run one server for these tests."""
    broker = SnsFifoBroker()
    broker.start()
    yield broker
    broker.close()


@pytest.fixture
def topic(broker: SnsBroker, outbox: None, settings: Any) -> str:
    """Point the settings at the server, and create a FIFO topic."""
    settings.SALON_JOBS = {**settings.SALON_JOBS, **broker.settings()}
    return broker.destination(f"orders-{uuid4().hex[:12]}")


def arrived(broker: SnsBroker, topic: str, aggregate_id: str) -> list[int]:
    """Return the numbers of what arrived of an aggregate, in the broker's order."""
    return [json.loads(one.payload)["number"] for one in broker.received(topic) if one.aggregate_id == aggregate_id]


def test_what_committed_arrives_once_and_in_order(broker: SnsBroker, topic: str) -> None:
    for number in range(6):
        for aggregate in "abc":
            emitted(aggregate, number=number, to=topic)
    assert relay_in_burst()
    assert statuses() == {"published": 18}
    for aggregate in "abc":
        assert arrived(broker, topic, aggregate) == list(range(6))


def test_an_outage_costs_no_attempt_and_what_waited_arrives_in_order(broker: SnsBroker, topic: str) -> None:
    with relaying():
        emitted("a", number=0, to=topic)
        eventually(lambda: statuses() == {"published": 1})
        broker.stop()
        try:
            for number in range(1, 5):
                emitted("a", number=number, to=topic)
            eventually(lambda: seen("SELECT outage_code FROM salon_jobs_destination") == [("SNS.UNREACHABLE",)])
        finally:
            broker.start()
        eventually(lambda: statuses() == {"published": 5}, 20)
    assert seen("SELECT max(retry_count) FROM salon_jobs_message") == [(0,)]
    assert arrived(broker, topic, "a") == [0, 1, 2, 3, 4]


def test_a_denied_topic_is_skipped(broker: SnsBroker, topic: str, settings: Any) -> None:
    sns = {**broker.settings()["SNS"], "DENY_LIST": [topic]}
    settings.SALON_JOBS = {**settings.SALON_JOBS, "SNS": sns}
    emitted("a", to=topic)
    emitted("a", to=topic)
    assert relay_in_burst()
    assert statuses() == {"skipped": 2}
    assert broker.received(topic) == []
