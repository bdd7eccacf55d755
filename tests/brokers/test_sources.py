"""Holds every source to the same promises, fed by its own publisher through a real broker."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import pytest

from salon_jobs.brokers.publisher import OutgoingMessage, Publisher
from salon_jobs.brokers.source import Delivery, Source
from salon_jobs.core.errors import NotReady
from tests.brokers.messages import draft, make, publish
from tests.servers.base import Broker
from tests.servers.registry import SOURCES

pytestmark = pytest.mark.parametrize("running", SOURCES, indirect=True)
NO_TIME, SHORT, LONG = timedelta(0), timedelta(seconds=1), timedelta(minutes=1)
# How long a receive may wait for what comes again after SHORT.
WAIT = timedelta(seconds=10)


def receive(source: Source, limit: int = 10, *, wait: timedelta = WAIT, visibility: timedelta = LONG) -> list[Delivery]:
    """Receive once; whatever comes can be read."""
    deliveries = source.receive(limit, wait=wait, visibility=visibility)
    assert len(deliveries) <= limit
    assert all(delivery.envelope is not None and not delivery.fault for delivery in deliveries)
    return deliveries


def message_ids(deliveries: list[Delivery]) -> set[str]:
    return {delivery.envelope.message_id for delivery in deliveries if delivery.envelope is not None}


@pytest.fixture
def message(source: Source, publisher: Publisher, destination: str) -> OutgoingMessage:
    """Publish one message to the source."""
    message = draft(destination, "42", '{"id":  "é"}', headers='{"Tenant": "a"}')
    assert publish(publisher, message) == [None]
    return message


def test_what_was_published_is_received_once_and_gone_when_acknowledged(
    source: Source, message: OutgoingMessage, destination: str
) -> None:
    [delivery] = receive(source, visibility=SHORT)
    envelope = delivery.envelope
    assert envelope is not None
    assert envelope.message_id == str(message.message_id)
    assert (envelope.event, envelope.payload) == (message.event, message.payload)
    for field in ("producer", "aggregate_type", "aggregate_id", "store_id", "replay_of"):
        assert getattr(envelope, field) == str(getattr(message, field))
    assert dict(envelope.headers) == {"Tenant": "a"}
    assert message.payload in delivery.raw
    assert delivery.count == 1

    source.acknowledge([delivery])
    assert receive(source, wait=2 * SHORT) == []


def test_an_empty_queue_is_waited_for_and_then_nothing(source: Source) -> None:
    assert receive(source, wait=NO_TIME) == []
    assert receive(source, wait=SHORT) == []


def test_many_are_received_up_to_the_limit(source: Source, publisher: Publisher, destination: str) -> None:
    messages = [make(destination, str(n % 5)) for n in range(50)]
    assert publish(publisher, *messages) == [None] * 50
    there: list[Delivery] = []
    while deliveries := receive(source, 45, wait=SHORT):
        there += deliveries
    assert len(there) == 50
    assert message_ids(there) == {str(message.message_id) for message in messages}
    source.acknowledge(there)


def test_extending_holds_a_message_and_one_that_was_delivered_to_somebody_else_is_left_to_them(
    source: Source, message: OutgoingMessage
) -> None:
    [first] = receive(source, visibility=SHORT)
    [second] = receive(source, visibility=SHORT)
    source.extend([first, second], visibility=LONG)
    assert receive(source, wait=2 * SHORT) == []
    source.acknowledge([second])
    source.acknowledge([first])
    assert receive(source, wait=NO_TIME) == []


def test_what_is_not_acknowledged_or_given_back_comes_again(source: Source, message: OutgoingMessage) -> None:
    [first] = receive(source, visibility=SHORT)
    [second] = receive(source)
    source.give_back([second], after=NO_TIME)
    [third] = receive(source)
    source.give_back([third], after=SHORT)
    [fourth] = receive(source)
    assert message_ids([fourth]) == {str(message.message_id)}
    assert [each.count for each in (first, second, third, fourth)] == [1, 2, 3, 4]
    source.acknowledge([fourth])


def test_what_can_not_be_read_is_received_with_its_fault(broker: Broker, source: Source, destination: str) -> None:
    broker.spoil(destination, "this is no message")
    [delivery] = source.receive(10, wait=WAIT, visibility=LONG)
    assert delivery.envelope is None
    assert delivery.fault
    assert "this is no message" in delivery.raw
    source.acknowledge([delivery])


def test_what_nests_too_deep_is_received_like_anything_else(
    source: Source, publisher: Publisher, destination: str
) -> None:
    deep = make(destination, "a", payload="[" * 20_000 + "]" * 20_000)
    assert publish(publisher, deep, make(destination, "b")) == [None, None]
    received = source.receive(10, wait=WAIT, visibility=LONG)
    received += [] if len(received) == 2 else source.receive(10, wait=WAIT, visibility=LONG)
    assert len(received) == 2
    source.acknowledge(received)


def test_a_broker_that_is_down_is_not_ready_and_heals_without_a_restart(
    broker: Broker, source: Source, message: OutgoingMessage
) -> None:
    broker.stop()
    try:
        with pytest.raises(NotReady):
            source.receive(1, wait=NO_TIME, visibility=LONG)
    finally:
        broker.start()
    source.acknowledge(receive(source))


def test_a_queue_that_is_not_there_is_not_ready(broker: Broker, destination: str) -> None:
    there, resource = destination.rsplit(":", 1)
    with closing(broker.source(f"{there}:missing-{resource}")) as missing, pytest.raises(NotReady):
        missing.receive(1, wait=NO_TIME, visibility=LONG)


def test_closing_again_is_nothing(source: Source, message: OutgoingMessage) -> None:
    source.acknowledge(receive(source))
    source.close()
    source.close()
