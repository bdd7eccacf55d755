"""Holds every publisher to the same promises, against a real broker each."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from salon_jobs.brokers.publisher import OutgoingMessage, Publisher, Verdict
from salon_jobs.core.errors import MessageInvalid, NotReady
from tests.brokers.messages import TOO_LARGE, draft, ids, make, publish
from tests.servers.base import TEXTS, Broker
from tests.servers.registry import PUBLISHERS, on
from tests.waiting import LIMIT_S

pytestmark = on(*PUBLISHERS)
MISSING, NOT_SENT, OUTAGE, REFUSED = Verdict.MISSING, Verdict.NOT_SENT, Verdict.OUTAGE, Verdict.REFUSED


@pytest.fixture
def stop(broker: Broker) -> Iterator[Callable[[], None]]:
    """Stop the broker when called; it runs again after a test that failed."""
    yield broker.stop
    broker.start()


def arrived(broker: Broker, destination: str) -> list[str]:
    """Return the ids of what arrived."""
    return [envelope.message_id for envelope in broker.received(destination)]


def test_message_arrives_whole(broker: Broker, publisher: Publisher, destination: str) -> None:
    payload = '{"b": 1.50, "a":[null, true, "\\u00e9 é 髪型 💇 \\"quoted\\" \\\\ <&>\\n"],  "n": 12345678901234567890}'
    headers = '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Tenant": "Größe 髪"}'
    message = draft(destination, "42", payload, headers=headers)
    publisher.check(message)
    assert publish(publisher, message) == [None]
    [envelope] = broker.received(destination)
    assert envelope.payload == payload  # byte for byte: whoever signed it can check it
    assert dict(envelope.headers) == json.loads(headers)
    for field in TEXTS:
        assert getattr(envelope, field) == str(getattr(message, field))


def test_missing_fields_arrive_empty(broker: Broker, publisher: Publisher, destination: str) -> None:
    assert publish(publisher, make(destination, payload="null")) == [None]
    [envelope] = broker.received(destination)
    assert (envelope.payload, envelope.store_id, envelope.replay_of) == ("null", "", "")
    assert dict(envelope.headers) == {}


def test_order_across_batches(broker: Broker, publisher: Publisher, destination: str) -> None:
    messages = [make(destination, "ab"[n % 2]) for n in range(16)]
    assert publish(publisher, *messages[:8]) == [None] * 8
    assert publish(publisher, *messages[8:]) == [None] * 8
    there = broker.received(destination)
    assert {envelope.message_id for envelope in there} == set(ids(messages))
    for aggregate in "ab" if broker.keeps_order else "":
        arrived_ids = [envelope.message_id for envelope in there if envelope.aggregate_id == aggregate]
        assert arrived_ids == ids(messages, aggregate)


def test_messages_without_an_aggregate(broker: Broker, publisher: Publisher, destination: str) -> None:
    """They wait for none, or are refused when they are written."""
    if not broker.takes_no_aggregate:
        with pytest.raises(MessageInvalid, match="aggregate_id"):
            publisher.check(draft(destination, ""))
        return
    messages = [make(destination, "") for _ in range(3)]
    refused = make(destination, "", payload=TOO_LARGE)
    assert publish(publisher, refused, *messages) == [REFUSED, None, None, None]
    assert sorted(arrived(broker, destination)) == sorted(ids(messages))
    assert {envelope.aggregate_id for envelope in broker.received(destination)} == {""}


def test_failure_holds_its_aggregate_alone(broker: Broker, publisher: Publisher, destination: str) -> None:
    first, other, later = make(destination, "a"), make(destination, "b"), make(destination, "b")
    refused, held = make(destination, "a", payload=TOO_LARGE), [make(destination, "a") for _ in range(3)]
    batch = (first, refused, other, held[0], later, held[1], held[2])
    assert publish(publisher, *batch) == [None, REFUSED, None, NOT_SENT, None, NOT_SENT, NOT_SENT]
    assert sorted(arrived(broker, destination)) == sorted(ids([first, other, later]))


def test_too_large_is_refused(broker: Broker, publisher: Publisher, destination: str) -> None:
    with pytest.raises(MessageInvalid, match="payload"):
        publisher.check(draft(destination, payload=TOO_LARGE))
    assert publish(publisher, make(destination, payload=TOO_LARGE)) == [REFUSED]
    assert arrived(broker, destination) == []


@pytest.mark.parametrize("times", [0, 2])
def test_batch_that_may_not_go_on(broker: Broker, publisher: Publisher, destination: str, times: int) -> None:
    """Nothing more is sent, and what was sent before is answered as it is."""
    asked = itertools.count()
    messages = [make(destination, "a") for _ in range(6)]
    answers = publish(publisher, *messages, should_continue=lambda: next(asked) < times)
    sent = answers.count(None)
    assert sent <= times
    assert answers == [None] * sent + [NOT_SENT] * (6 - sent)
    assert arrived(broker, destination) == ids(messages[:sent])


def test_missing_destination(
    broker: Broker, publisher: Publisher, destination: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("salon_jobs.brokers.aws.topics.AGAIN_S", 0.0)
    messages = make(missing, "a"), make(missing, "a"), make(missing, "b")
    assert publish(publisher, *messages) == [MISSING, NOT_SENT, MISSING]
    assert publish(publisher, make(destination)) == [None]
    broker.destination(missing.rpartition(":")[2].removesuffix(".fifo"))
    assert publish(publisher, *messages) == [None] * 3


def test_outage_heals_without_a_restart(
    broker: Broker, publisher: Publisher, destination: str, stop: Callable[[], None]
) -> None:
    before, late = make(destination, "a"), make(destination, "late")
    assert publish(publisher, before) == [None]
    publisher.ping()
    stop()
    batch = [make(destination, "a"), make(destination, "a"), *(make(destination, str(n)) for n in range(10))]
    answers = publish(publisher, *batch)
    assert answers[:2] == [OUTAGE, NOT_SENT]
    assert set(answers[2:]) <= {OUTAGE, NOT_SENT}
    with pytest.raises(NotReady):
        publisher.ping()
    with closing(broker.publisher()) as another:
        another.open()
        assert publish(another, late) == [OUTAGE]
        broker.start()
        publisher.ping()
        assert publish(publisher, *batch) == [None] * len(batch)
        assert publish(another, late) == [None]
    assert sorted(arrived(broker, destination)) == sorted(ids([before, *batch, late]))


def test_several_threads_publish_at_once(broker: Broker, publisher: Publisher, name: str) -> None:
    destinations = [broker.destination(f"{name}-{n}") for n in range(4)]
    batches = [[make(each, "ab"[n % 2]) for n in range(8)] for each in destinations]
    together = threading.Barrier(len(batches), timeout=LIMIT_S)

    def publish_together(batch: list[OutgoingMessage]) -> list[Verdict | None]:
        together.wait()
        return publish(publisher, *batch)

    with ThreadPoolExecutor(len(batches)) as threads:
        assert list(threads.map(publish_together, batches)) == [[None] * 8] * len(batches)
    for batch in batches:
        assert sorted(arrived(broker, batch[0].aggregate_type)) == sorted(ids(batch))


def test_message_published_again_keeps_its_id(broker: Broker, publisher: Publisher, destination: str) -> None:
    message = make(destination)
    assert publish(publisher, message) == publish(publisher, message) == [None]
    assert arrived(broker, destination) == ids([message]) * (1 if broker.drops_duplicates else 2)


def test_no_messages_and_closing_twice(publisher: Publisher, destination: str) -> None:
    assert publish(publisher) == []
    assert publish(publisher, make(destination)) == [None]
    publisher.close()
    publisher.close()
