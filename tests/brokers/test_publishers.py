"""Holds every publisher to the same promises, against a real broker each."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from salon_jobs.brokers.publisher import OutgoingMessage, Publisher, Verdict
from salon_jobs.core.errors import MessageInvalid, NotReady
from tests.brokers.messages import TOO_LARGE, draft, ids, make, publish
from tests.servers.base import Broker

# What an answer may take while the broker is down: its timeout, and room for a slow machine.
LONGEST_OUTAGE_S = 20


@pytest.fixture
def stopped(broker: Broker) -> Iterator[Callable[[], None]]:
    """Stop the broker when called; it runs again after a test that failed."""
    yield broker.stop
    broker.start()


def arrived(broker: Broker, destination: str) -> list[str]:
    """Return the ids of what arrived."""
    return [envelope.message_id for envelope in broker.received(destination)]


def test_a_message_arrives_with_all_it_says(broker: Broker, publisher: Publisher, destination: str) -> None:
    payload = '{"b": 1.50, "a":[null, true, "\\u00e9 é 髪型 💇 \\"quoted\\" \\\\ <&>\\n"],  "n": 12345678901234567890}'
    headers = '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Tenant": "Größe 髪"}'
    message = draft(destination, "42", payload, headers=headers)

    publisher.check(message)
    assert publish(publisher, message) == [None]

    [envelope] = broker.received(destination)
    assert envelope.payload == payload  # byte for byte: whoever signed it can check it
    assert dict(envelope.headers) == json.loads(headers)
    for field in ("message_id", "event", "producer", "aggregate_type", "aggregate_id", "store_id", "replay_of"):
        assert getattr(envelope, field) == str(getattr(message, field))


def test_what_a_message_does_not_say_arrives_empty(broker: Broker, publisher: Publisher, destination: str) -> None:
    assert publish(publisher, make(destination, payload="null")) == [None]
    [envelope] = broker.received(destination)
    assert (envelope.payload, envelope.store_id, envelope.replay_of) == ("null", "", "")
    assert dict(envelope.headers) == {}


def test_order_within_an_aggregate_holds_across_batches(broker: Broker, publisher: Publisher, destination: str) -> None:
    messages = [make(destination, "ab"[n % 2]) for n in range(16)]
    assert publish(publisher, *messages[:8]) == [None] * 8
    assert publish(publisher, *messages[8:]) == [None] * 8

    there = broker.received(destination)
    assert {envelope.message_id for envelope in there} == set(ids(messages))
    for aggregate in "ab" if broker.keeps_order else "":
        arrived_ids = [envelope.message_id for envelope in there if envelope.aggregate_id == aggregate]
        assert arrived_ids == ids(messages, aggregate)


def test_messages_without_an_aggregate_arrive_and_wait_for_none_or_are_refused_when_written(
    broker: Broker, publisher: Publisher, destination: str
) -> None:
    if not broker.takes_no_aggregate:
        with pytest.raises(MessageInvalid, match="aggregate_id"):
            publisher.check(draft(destination, ""))
        return
    messages = [make(destination, "") for _ in range(3)]
    refused = make(destination, "", payload=TOO_LARGE)
    assert publish(publisher, refused, *messages) == [Verdict.REFUSED, None, None, None]
    assert sorted(arrived(broker, destination)) == sorted(ids(messages))
    assert {envelope.aggregate_id for envelope in broker.received(destination)} == {""}


def test_after_a_failed_message_none_of_its_aggregate_is_sent_but_those_of_others(
    broker: Broker, publisher: Publisher, destination: str
) -> None:
    first, other, later = make(destination, "a"), make(destination, "b"), make(destination, "b")
    refused, held = make(destination, "a", payload=TOO_LARGE), [make(destination, "a") for _ in range(3)]
    batch = (first, refused, other, held[0], later, held[1], held[2])

    not_sent = Verdict.NOT_SENT
    assert publish(publisher, *batch) == [None, Verdict.REFUSED, None, not_sent, None, not_sent, not_sent]
    assert sorted(arrived(broker, destination)) == sorted(ids([first, other, later]))


def test_what_is_too_large_is_refused_when_written_and_when_published(
    broker: Broker, publisher: Publisher, destination: str
) -> None:
    with pytest.raises(MessageInvalid, match="payload"):
        publisher.check(draft(destination, payload=TOO_LARGE))
    assert publish(publisher, make(destination, payload=TOO_LARGE)) == [Verdict.REFUSED]
    assert arrived(broker, destination) == []


@pytest.mark.parametrize("times", [0, 2])
def test_nothing_is_sent_once_it_may_not_go_on_and_what_was_sent_before_is_answered_as_it_is(
    broker: Broker, publisher: Publisher, destination: str, times: int
) -> None:
    asked = itertools.count()
    messages = [make(destination, "a") for _ in range(6)]
    answers = publish(publisher, *messages, should_continue=lambda: next(asked) < times)
    sent = answers.count(None)
    assert sent <= times
    assert answers == [None] * sent + [Verdict.NOT_SENT] * (6 - sent)
    assert arrived(broker, destination) == ids(messages[:sent])


def test_a_destination_that_is_not_there_is_missing_until_it_is_and_one_beside_it_is_not(
    broker: Broker, publisher: Publisher, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("salon_jobs.brokers.aws.client.AGAIN_S", 0.0)
    there, resource = destination.rsplit(":", 1)
    missing = f"{there}:missing-{resource}"
    messages = make(missing, "a"), make(missing, "a"), make(missing, "b")
    assert publish(publisher, *messages) == [Verdict.MISSING, Verdict.NOT_SENT, Verdict.MISSING]
    assert publish(publisher, make(destination)) == [None]
    broker.destination(f"missing-{resource}".removesuffix(".fifo"))
    assert publish(publisher, *messages) == [None] * 3


def test_an_outage_costs_nothing_and_heals_without_a_restart(
    broker: Broker, publisher: Publisher, destination: str, stopped: Callable[[], None]
) -> None:
    before, late = make(destination, "a"), make(destination, "late")
    assert publish(publisher, before) == [None]
    publisher.ping()

    stopped()
    batch = [make(destination, "a"), make(destination, "a"), *(make(destination, str(n)) for n in range(10))]
    began = time.monotonic()
    answers = publish(publisher, *batch)
    assert time.monotonic() - began < LONGEST_OUTAGE_S
    assert answers[:2] == [Verdict.OUTAGE, Verdict.NOT_SENT]
    assert set(answers[2:]) <= {Verdict.OUTAGE, Verdict.NOT_SENT}
    with pytest.raises(NotReady):
        publisher.ping()
    with closing(broker.publisher()) as another:
        another.open()
        assert publish(another, late) == [Verdict.OUTAGE]

        broker.start()
        publisher.ping()
        assert publish(publisher, *batch) == [None] * len(batch)
        assert publish(another, late) == [None]
    assert sorted(arrived(broker, destination)) == sorted(ids([before, *batch, late]))


def test_several_threads_publish_at_once(
    broker: Broker, publisher: Publisher, new_destination: Callable[[], str]
) -> None:
    batches = [[make(name, "ab"[n % 2]) for n in range(8)] for name in (new_destination() for _ in range(4))]
    together = threading.Barrier(len(batches))

    def publish_together(batch: list[OutgoingMessage]) -> list[Verdict | None]:
        together.wait(timeout=10)
        return publish(publisher, *batch)

    with ThreadPoolExecutor(len(batches)) as threads:
        assert list(threads.map(publish_together, batches)) == [[None] * 8] * len(batches)
    for batch in batches:
        assert sorted(arrived(broker, batch[0].aggregate_type)) == sorted(ids(batch))


def test_what_is_published_again_arrives_under_the_same_id(
    broker: Broker, publisher: Publisher, destination: str
) -> None:
    message = make(destination)
    assert publish(publisher, message) == [None]
    assert publish(publisher, message) == [None]
    assert arrived(broker, destination) == ids([message]) * (1 if broker.drops_duplicates else 2)


def test_no_messages_are_no_work(publisher: Publisher) -> None:
    assert publish(publisher) == []


def test_closing_again_is_nothing(broker: Broker, destination: str) -> None:
    publisher = broker.publisher()
    publisher.open()
    assert publish(publisher, make(destination)) == [None]
    publisher.close()
    publisher.close()
