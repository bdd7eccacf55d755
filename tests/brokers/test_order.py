"""Shows that jobs are in the order of their aggregate's messages, where the broker keeps it among its readers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig

from salon_jobs.brokers.publisher import Publisher
from salon_jobs.conf.sections import read_consumers
from salon_jobs.inbox.consumer import Consumer
from tests.brokers.messages import make, publish
from tests.servers.base import Broker
from tests.servers.nats import NatsBroker
from tests.servers.registry import on
from tests.support import change, seen
from tests.waiting import eventually

pytestmark = [on("nats", "sns-fifo"), pytest.mark.usefixtures("database")]
SETTINGS = {"SOURCE": "rn::x:::y", "TASKS": {"order.created": "test-ordered", "order.keyed": "test-ordered-key"}}


@contextmanager
def deadlocks(number: int, times: int) -> Iterator[None]:
    """Have the database refuse the jobs with a number that often, as it refuses the victim of a deadlock."""
    change("CREATE SEQUENCE public.refusals")
    change("GRANT USAGE ON SEQUENCE public.refusals TO PUBLIC")
    change(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$BEGIN IF NEW.payload ->> 'number' = '{number}' AND nextval('public.refusals') <= {times} THEN"
        " RAISE 'a deadlock' USING ERRCODE = 'deadlock_detected'; END IF; RETURN NEW; END$$"
    )
    change("CREATE TRIGGER refuse BEFORE INSERT ON salon_jobs_job FOR EACH ROW EXECUTE FUNCTION refuse()")
    try:
        yield
    finally:
        change("DROP FUNCTION refuse CASCADE")
        change("DROP SEQUENCE public.refusals")


@pytest.mark.parametrize("event", ["order.created", "order.keyed"])
def test_two_consumers_and_a_deadlock_keep_the_order(
    broker: Broker, publisher: Publisher, destination: str, name: str, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a consumer of NATS that has one message on its way at a time, or a FIFO queue."""
    if isinstance(broker, NatsBroker):
        one_by_one = ConsumerConfig(durable_name="till", ack_policy=AckPolicy.EXPLICIT, max_ack_pending=1)

        async def add(client: Client) -> None:
            await client.jetstream().add_consumer(name, one_by_one)

        broker.look(add)
    numbers = {"a": range(12), "b": range(100, 112)}
    pairs = [("ab"[n % 2], numbers["ab"[n % 2]][n // 2]) for n in range(24)]
    payloads = [(customer, f'{{"customer": "{customer}", "number": {number}}}') for customer, number in pairs]
    messages = [make(destination, customer, payload, event=event) for customer, payload in payloads]
    assert publish(publisher, *messages) == [None] * 24
    consumers = read_consumers({"till": SETTINGS})["till"]
    with deadlocks(number=4, times=3), ExitStack() as stack:
        for _ in range(2):
            source = broker.source(destination, consumer="till")
            monkeypatch.setattr(type(source), "visibility", timedelta(seconds=4))  # or a busy machine misses it
            loop = Consumer("till", consumers, source, using="default")
            loop.start()
            stack.callback(loop.join)
            stack.callback(loop.stop)
        eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job"), [(24,)])
    for customer, expected in numbers.items():
        statement = "SELECT (payload ->> 'number')::int FROM salon_jobs_job WHERE concurrency_key = %s ORDER BY id"
        assert seen(statement, customer) == [(number,) for number in expected]
