"""Shows the whole way out: emitted in a transaction, relayed, published to SNS, arrived in SQS."""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import uuid4

import pytest

from salon_jobs.brokers.aws import client
from salon_jobs.brokers.aws.client import SnsConnection
from salon_jobs.outbox import queries
from tests.outbox.conftest import change_settings, outbox
from tests.outbox.scene import emitted, relay_in_burst, relaying, statuses
from tests.servers.sns import SnsBroker
from tests.waiting import eventually

pytestmark = pytest.mark.parametrize("running", ["sns-fifo"], indirect=True)
__all__ = ["change_settings", "outbox"]  # fixtures


@pytest.fixture
def topic(broker: SnsBroker, outbox: None) -> str:
    return broker.destination(f"orders-{uuid4().hex[:12]}")


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Collect the topics of each successful reading."""
    found: list[list[str]] = []
    read = SnsConnection._topic_arns

    def noticed(self: SnsConnection) -> list[str]:
        arns = read(self)
        found.append(arns)
        return arns

    monkeypatch.setattr(SnsConnection, "_topic_arns", noticed)
    return found


def test_a_relay_reads_the_topics_for_a_destination_that_it_knows(
    topic: str, readings: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("salon_jobs.outbox.publishers.configured", tuple)
    with relaying() as running:
        eventually(lambda: running.facts()["partitions"] != [])
    assert readings == [], "nothing says that this deployment uses SNS"
    queries.add_destinations([topic], using="default")
    with relaying():
        eventually(lambda: bool(readings))
    assert statuses() == {}


def test_a_relay_that_starts_while_sns_is_away_reads_the_topics_when_it_is_back(
    broker: SnsBroker,
    topic: str,
    readings: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(client, "AGAIN_S", 0.1)
    broker.stop()
    with caplog.at_level(logging.INFO, "salon_jobs"), relaying() as running:
        try:
            eventually(lambda: "topics_not_read" in caplog.text)
            eventually(lambda: running.facts()["partitions"] != [])
        finally:
            broker.start()
        eventually(lambda: bool(readings))
        emitted("a", to=topic)
        eventually(statuses, {"published": 1})
    assert caplog.text.count("topics_not_read") == 1
    assert len(readings) == 1


def test_a_changed_list_holds_for_what_is_not_sent_yet_once_the_relay_is_restarted(
    broker: SnsBroker, topic: str, change_settings: Callable[..., None]
) -> None:
    later = f"later-{uuid4().hex[:12]}.fifo"

    def lists(**given: list[str]) -> None:
        change_settings(SNS={**broker.settings()["SNS"], **given})

    lists(DENY_LIST=[topic])
    emitted("a", to=topic)
    emitted("a", to=topic, event="order.viewed")
    emitted("a", to=f"rn::sns:::{later}")
    lists(SKIP_EVENTS=["order.viewed"])
    assert relay_in_burst()
    assert statuses() == {"published": 1, "skipped": 1, "pending": 1}, "of the last there is no topic yet"
    lists(ALLOW_LIST=[topic])
    assert relay_in_burst()
    assert statuses() == {"published": 1, "skipped": 2}
