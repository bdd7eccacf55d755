"""Turns what a real broker delivers into jobs, once each."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import pytest

from salon_jobs.brokers.publisher import Publisher
from salon_jobs.brokers.source import Source
from salon_jobs.conf.sections import read_consumers
from salon_jobs.inbox.consumer import Consumer
from tests.brokers.messages import make, publish
from tests.servers.base import Broker
from tests.servers.registry import SOURCES
from tests.support import seen

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.parametrize("running", SOURCES, indirect=True)]


def test_each_message_becomes_one_job_however_often_it_is_published_and_the_queue_is_empty_then(
    broker: Broker, source: Source, publisher: Publisher, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    visibility = timedelta(seconds=1)
    monkeypatch.setattr(type(source), "visibility", visibility)
    notes = [f"{n:02}" for n in range(30)]
    messages = [make(destination, str(n % 3), payload=f'{{"note": "{note}"}}') for n, note in enumerate(notes)]
    assert publish(publisher, *messages) == [None] * 30
    assert publish(publisher, *messages[:10]) == [None] * 10  # as after a relay's crash before its mark
    given = {"orders": {"SOURCE": "rn::x:::y", "TASKS": {"order.created": "test-system"}}}
    Consumer("orders", read_consumers(given)["orders"], source, using="default", burst=True).run()
    assert seen("SELECT payload ->> 'note' FROM salon_jobs_job ORDER BY 1") == [(note,) for note in notes]
    assert seen("SELECT status, code FROM salon_jobs_inbox") == [("enqueued", "")] * 30
    with closing(broker.source(destination, consumer="orders of the till.1")) as other:
        assert other.receive(10, wait=2 * visibility, visibility=visibility) == []
