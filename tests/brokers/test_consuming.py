"""Turns what a real broker delivers into jobs, once each: duplicates, lost acknowledgements, poison, outages."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from salon_jobs.brokers.publisher import Publisher
from salon_jobs.brokers.source import Delivery, Source
from salon_jobs.conf.sections import read_consumers
from salon_jobs.inbox.consumer import Consumer
from tests.brokers.messages import make, publish
from tests.e2e.worker_process import eventually
from tests.servers.base import Broker
from tests.servers.registry import SOURCES
from tests.support import seen

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.parametrize("running", SOURCES, indirect=True)]
ORDERS: dict[str, Any] = {"TASKS": {"order.created": "test-system", "order.sold": "test-store"}}
PATIENCE_S = 40
VISIBILITY = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def visibility(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what is not acknowledged come again after a second."""
    monkeypatch.setattr(type(source), "visibility", VISIBILITY)


def consumer(source: Source, *, burst: bool = False, **changes: Any) -> Consumer:
    given = {"orders": {"SOURCE": "rn::x:::y", **ORDERS, **changes}}
    return Consumer("orders", read_consumers(given)["orders"], source, using="default", burst=burst)


@contextmanager
def running_consumer(loop: Consumer) -> Generator[None]:
    loop.start()
    try:
        yield
    finally:
        loop.stop()
        assert loop.join(60)


def notes() -> list[str]:
    return [row[0] for row in seen("SELECT payload::jsonb ->> 'note' FROM salon_jobs_job ORDER BY 1")]


def rows() -> list[tuple[Any, ...]]:
    return seen("SELECT status, code FROM salon_jobs_inbox ORDER BY id")


def expected(count: int) -> list[str]:
    return [f"{n:02}" for n in range(count)]


def batch(destination: str, count: int, **fields: Any) -> list[Any]:
    return [make(destination, str(n % 3), payload=f'{{"note": "{n:02}"}}', **fields) for n in range(count)]


def test_each_message_becomes_one_job_however_often_it_is_published_and_the_queue_is_empty_then(
    broker: Broker, source: Source, publisher: Publisher, destination: str
) -> None:
    messages = batch(destination, 30)
    assert publish(publisher, *messages) == [None] * 30
    assert publish(publisher, *messages[:10]) == [None] * 10  # as after a relay's crash before its mark
    consumer(source, burst=True).run()
    assert notes() == expected(30)
    assert rows() == [("enqueued", "")] * 30
    other = broker.source(destination, consumer="orders of the till.1")
    assert other.receive(10, wait=2 * VISIBILITY, visibility=VISIBILITY) == []
    other.close()


def test_acknowledgements_that_never_arrived_bring_no_second_job(
    broker: Broker, source: Source, publisher: Publisher, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert publish(publisher, *batch(destination, 5)) == [None] * 5
    lost: list[Delivery] = []
    acknowledge = source.acknowledge

    def lose(deliveries: list[Delivery]) -> None:
        if lost:
            acknowledge(deliveries)
        else:
            lost.extend(deliveries)

    monkeypatch.setattr(source, "acknowledge", lose)

    def answer(deliveries: list[Delivery]) -> None:
        acknowledge(deliveries)
        answered.append(len(deliveries))

    loop = consumer(source)
    answered: list[int] = []
    with running_consumer(loop):
        eventually(lambda: len(notes()) == 5, PATIENCE_S)
        eventually(lambda: len(lost) > 0, PATIENCE_S)
        # It comes again when its visibility is over, is known, and is acknowledged.
        monkeypatch.setattr(source, "acknowledge", answer)
        eventually(lambda: sum(answered) >= len(lost), PATIENCE_S)
    assert notes() == expected(5)
