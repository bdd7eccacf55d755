"""Holds every source to the same promises, fed by its own publisher through a real broker."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import pytest

from salon_jobs.brokers.publisher import OutgoingMessage, Publisher
from salon_jobs.brokers.source import Delivery, Source
from salon_jobs.conf.sections import read_consumers
from salon_jobs.core.errors import NotReady
from salon_jobs.inbox.consumer import Consumer
from tests.brokers.messages import draft, make, publish
from tests.servers.base import TEXTS, Broker
from tests.servers.registry import SOURCES, on
from tests.support import seen
from tests.waiting import LIMIT_S

pytestmark = on(*SOURCES)
NO_TIME, SHORT, LONG = timedelta(0), timedelta(seconds=1), timedelta(minutes=1)
# How long a receive may wait for what comes again after SHORT.
WAIT = timedelta(seconds=LIMIT_S)


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


def test_acknowledged_and_extended_messages_stay_away(
    source: Source, publisher: Publisher, message: OutgoingMessage, destination: str
) -> None:
    """One that was delivered to somebody else meanwhile is left to them."""
    [delivery] = receive(source, visibility=SHORT)
    envelope = delivery.envelope
    assert envelope is not None
    for field in TEXTS:
        assert getattr(envelope, field) == str(getattr(message, field))
    assert dict(envelope.headers) == {"Tenant": "a"}
    assert message.payload in delivery.raw
    assert delivery.count == 1
    source.acknowledge([delivery])
    assert publish(publisher, make(destination)) == [None]
    [first] = receive(source, visibility=SHORT)
    [second] = receive(source, visibility=SHORT)
    source.extend([first, second], visibility=LONG)
    assert receive(source, wait=2 * SHORT) == []
    source.acknowledge([second])
    source.acknowledge([first])
    assert receive(source, wait=NO_TIME) == []
    source.close()
    source.close()


def test_empty_queue(source: Source) -> None:
    assert receive(source, wait=NO_TIME) == []
    assert receive(source, wait=SHORT) == []


def test_many_are_received_up_to_the_limit(source: Source, publisher: Publisher, destination: str) -> None:
    messages = [make(destination, str(n % 5)) for n in range(50)]
    assert publish(publisher, *messages) == [None] * 50
    there: list[Delivery] = []
    while len(there) < 50:
        there += receive(source, 45)
    assert receive(source, wait=NO_TIME) == []
    assert message_ids(there) == {str(message.message_id) for message in messages}
    source.acknowledge(there)


def test_unacknowledged_message_comes_again(source: Source, message: OutgoingMessage) -> None:
    [first] = receive(source, visibility=SHORT)
    [second] = receive(source)
    source.give_back([second], after=NO_TIME)
    [third] = receive(source)
    source.give_back([third], after=SHORT)
    [fourth] = receive(source)
    assert message_ids([fourth]) == {str(message.message_id)}
    assert [each.count for each in (first, second, third, fourth)] == [1, 2, 3, 4]
    source.acknowledge([fourth])


def test_unreadable_message_comes_with_its_fault(broker: Broker, source: Source, destination: str) -> None:
    broker.spoil(destination, "this is no message")
    [delivery] = source.receive(10, wait=WAIT, visibility=LONG)
    assert delivery.envelope is None
    assert delivery.fault
    assert "this is no message" in delivery.raw
    source.acknowledge([delivery])


def test_deeply_nested_payload_is_received(source: Source, publisher: Publisher, destination: str) -> None:
    deep = make(destination, "a", payload="[" * 20_000 + "]" * 20_000)
    assert publish(publisher, deep, make(destination, "b")) == [None, None]
    received = source.receive(10, wait=WAIT, visibility=LONG)
    received += [] if len(received) == 2 else source.receive(10, wait=WAIT, visibility=LONG)
    assert len(received) == 2
    source.acknowledge(received)


def test_outage_heals_without_a_restart(broker: Broker, source: Source, message: OutgoingMessage) -> None:
    broker.stop()
    try:
        with pytest.raises(NotReady):
            source.receive(1, wait=NO_TIME, visibility=LONG)
    finally:
        broker.start()
    source.acknowledge(receive(source))


def test_missing_queue_is_not_ready(broker: Broker, missing: str) -> None:
    with closing(broker.source(missing)) as absent, pytest.raises(NotReady):
        absent.receive(1, wait=NO_TIME, visibility=LONG)


@pytest.mark.usefixtures("database")
def test_each_message_becomes_one_job(
    broker: Broker, source: Source, publisher: Publisher, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it is published; then the queue is empty."""
    monkeypatch.setattr(type(source), "visibility", SHORT)
    notes = [f"{n:02}" for n in range(30)]
    messages = [make(destination, str(n % 3), payload=f'{{"note": "{note}"}}') for n, note in enumerate(notes)]
    assert publish(publisher, *messages) == [None] * 30
    assert publish(publisher, *messages[:10]) == [None] * 10  # as after a relay's crash before its mark
    given = {"orders": {"SOURCE": "rn::x:::y", "TASKS": {"order.created": "test-system"}}}
    Consumer("orders", read_consumers(given)["orders"], source, using="default", burst=True).run()
    assert seen("SELECT payload ->> 'note' FROM salon_jobs_job ORDER BY 1") == [(note,) for note in notes]
    assert seen("SELECT status, code FROM salon_jobs_inbox") == [("enqueued", "")] * 30
    with closing(broker.source(destination, consumer="orders of the till.1")) as other:
        assert receive(other, wait=2 * SHORT, visibility=SHORT) == []
