"""Shows the whole way out: emitted in a transaction, relayed, published to SNS."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from salon_jobs.brokers.aws import topics
from salon_jobs.outbox import queries
from tests.outbox.conftest import change_settings, outbox
from tests.outbox.scene import emitted, relay_in_burst, relaying, statuses
from tests.servers.registry import on
from tests.servers.sns import SnsBroker
from tests.waiting import eventually

pytestmark = on("sns-fifo")
__all__ = ["change_settings", "outbox"]  # fixtures


@pytest.fixture
def topic(broker: SnsBroker, outbox: None, name: str, caplog: pytest.LogCaptureFixture) -> str:
    caplog.set_level(logging.INFO, "salon_jobs")
    return broker.destination(name)


def test_topics_are_read_for_a_known_destination(
    topic: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("salon_jobs.outbox.relay_publishers.configured", tuple)
    with relaying() as running:
        running.wait_for_partitions()
    assert "topics_read" not in caplog.text, "nothing says that this deployment uses SNS"
    queries.add_destinations([topic], using="default")
    with relaying():
        eventually(lambda: "topics_read" in caplog.text)
    assert statuses() == {}


def test_topics_are_read_once_sns_is_back(
    broker: SnsBroker, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topics, "AGAIN_S", 0.1)
    broker.stop()
    with relaying() as running:
        try:
            eventually(lambda: "topics_not_read" in caplog.text)
            running.wait_for_partitions()
        finally:
            broker.start()
        eventually(lambda: "topics_read" in caplog.text)
        emitted("a", to=topic)
        eventually(statuses, {"published": 1})
    assert caplog.text.count("topics_not_read") == caplog.text.count("topics_read") == 1


def test_changed_list_after_a_restart(
    broker: SnsBroker, topic: str, name: str, change_settings: Callable[..., None]
) -> None:
    """It holds for what is not sent yet."""

    def lists(**given: list[str]) -> None:
        change_settings(SNS={**broker.settings()["SNS"], **given})

    lists(DENY_LIST=[topic])
    emitted("a", to=topic)
    emitted("a", to=topic, event="order.viewed")
    emitted("a", to=f"rn::sns:::{name}-2.fifo")
    lists(SKIP_EVENTS=["order.viewed"])
    assert relay_in_burst()
    assert statuses() == {"published": 1, "skipped": 1, "pending": 1}, "of the last there is no topic yet"
    lists(ALLOW_LIST=[topic])
    assert relay_in_burst()
    assert statuses() == {"published": 1, "skipped": 2}
