"""Runs the loop of consume_queue over a queue in memory and the real database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from django.db import connections

from salon_jobs.brokers.registry import make_source
from salon_jobs.brokers.source import Delivery
from salon_jobs.checks import check_consumers
from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.backoff import Backoff
from salon_jobs.core.errors import ConfigurationError, NotReady, SourceLost
from salon_jobs.inbox import queries as inbox
from salon_jobs.inbox.consumer import Consumer, Consumers
from tests.e2e.worker_process import end_worker_connections
from tests.inbox.memory_source import MemorySource, message
from tests.metrics import of, shown
from tests.settings import TEST_DATABASE
from tests.support import change, seen
from tests.waiting import LIMIT_S, eventually

ORDERS = {"SOURCE": "rn::memory:::orders", "TASKS": {"noted": "test-system"}}
PLAIN: dict[str, Any] = {"SOURCE": "rn::azurequeue:::parse-tasks", "ENVELOPE": "none", "TASKS": {"*": "test-store"}}
Declare = Callable[..., None]
pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture(autouse=True)
def declare(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Declare]:
    """Declare the consumer ``orders``, or others."""
    sources = {"memory": "tests.inbox.memory_source.MemorySource"}

    def declare(**consumers: Any) -> None:
        settings.SALON_JOBS = {**settings.SALON_JOBS, "CONSUMERS": consumers, "OUTBOX": {"SOURCES": sources}}

    monkeypatch.setattr("salon_jobs.inbox.consumer._WAIT", timedelta(milliseconds=10))
    short = Backoff(base=timedelta(milliseconds=50), cap=timedelta(milliseconds=200))
    monkeypatch.setattr("salon_jobs.inbox.consumer._WAITS", short)
    declare(orders=ORDERS)
    yield declare
    MemorySource.queues.clear()


def consumer(**changes: Any) -> tuple[Consumer, MemorySource]:
    source = make_source("rn::memory:::orders", consumer="orders")
    assert isinstance(source, MemorySource)
    return Consumer("orders", conf.consumers["orders"], source, using="default", **changes), source


@contextmanager
def running(loop: Consumer | Consumers) -> Generator[None]:
    loop.start()
    try:
        yield
    finally:
        loop.stop()
        assert loop.join(LIMIT_S)


def jobs() -> int:
    return int(seen("SELECT count(*) FROM salon_jobs_job")[0][0])


def ready(loop: Consumer) -> bool:
    try:
        loop.facts()
    except SourceLost:
        return False
    return True


def test_burst_empties_every_source(declare: Declare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("salon_jobs.inbox.consumer._BATCH", 2)
    declare(orders=ORDERS, notes={**ORDERS, "SOURCE": "rn::memory:::notes"})
    MemorySource.queues.update({"orders": [message() for _ in range(7)], "notes": [message() for _ in range(3)]})
    assert Consumers(burst=True, using="default").run()
    assert jobs() == 10
    assert dict(seen("SELECT consumer, count(*) FROM salon_jobs_inbox GROUP BY 1")) == {"orders": 7, "notes": 3}


def test_acknowledgement_follows_the_commit() -> None:
    loop, source = consumer(burst=True)
    source.queue += [message(), message()]
    committed: list[int] = []
    source.before_acknowledge = lambda: committed.append(jobs())
    loop.run()
    assert committed == [2]
    assert len(source.acknowledged) == 2
    assert source.closed


def test_broker_that_is_down_is_found_again(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once, and readiness shows it."""
    caplog.set_level("INFO", logger="salon_jobs")
    loop, source = consumer()
    polls = threading.Semaphore(0)
    source.before_receive = polls.release
    source.down = True
    with running(loop):
        for _ in range(3):
            assert polls.acquire(timeout=LIMIT_S)
        with pytest.raises(SourceLost, match=r"consumer 'orders': WORKER.NOT_READY: the broker in memory is down"):
            loop.facts()
        assert SourceLost.code == "INBOX.SOURCE_LOST"
        source.queue.append(message())
        source.down = False
        eventually(jobs, 1)
        eventually(lambda: ready(loop))
    assert caplog.text.count("source_lost") == 1
    assert caplog.text.count("source_back") == 1


def test_refused_acknowledgements_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    loop, source = consumer()
    source.queue += [message() for _ in range(3)]
    refused = threading.Semaphore(0)

    def refuse() -> None:
        refused.release()
        source.queue.append(message())
        raise NotReady("no acknowledgements just now")

    source.before_acknowledge = refuse
    with running(loop):
        for _ in range(3):
            assert refused.acquire(timeout=LIMIT_S)
        assert not ready(loop)
    assert caplog.text.count("source_lost") == 1


def test_batch_stays_hidden_while_the_database_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    loop, source = consumer()
    polls = threading.Semaphore(0)
    source.before_receive = polls.release
    try:
        with running(loop):
            assert polls.acquire(timeout=LIMIT_S)
            # Nobody can connect as the worker, and whoever has is thrown out: what a failover polls like from here.
            change(f"REVOKE CONNECT ON DATABASE {TEST_DATABASE} FROM worker_runtime")
            connections["default"].close()
            end_worker_connections()
            source.queue += [message(), message()]
            for _ in range(3):
                assert source.extended.acquire(timeout=LIMIT_S)
            assert not ready(loop)
            assert source.given_back == []
            change(f"GRANT CONNECT ON DATABASE {TEST_DATABASE} TO worker_runtime")
            eventually(jobs, 2)
            eventually(lambda: len(source.acknowledged), 2)
    finally:
        change(f"GRANT CONNECT ON DATABASE {TEST_DATABASE} TO worker_runtime")
    assert caplog.text.count("database_lost") == 1


def test_source_learns_whether_it_goes_on() -> None:
    """The inbox has what it received before, or has not."""
    loop, source = consumer(burst=True)
    loop.run()
    assert not source.resumes
    source.queue.append(message())
    consumer(burst=True)[0].run()
    again, source = consumer(burst=True)
    again.run()
    assert source.resumes


def test_stop_gives_back_what_was_only_received() -> None:
    loop, source = consumer()
    source.queue.append(message())
    source.before_receive = loop.stop
    loop.run()
    assert [after.total_seconds() for _, after in source.given_back] == [0]
    assert (jobs(), source.acknowledged) == (0, [])


def test_retry_happens_at_the_next_poll() -> None:
    loop, source = consumer()
    source.queue.append(message(event="unheard-of"))
    with running(loop):
        eventually(lambda: loop.facts()["rejected"], 1)
        change("UPDATE salon_jobs_inbox SET raw = replace(raw, 'unheard-of', 'noted')")
        [(row,)] = seen("SELECT id FROM salon_jobs_inbox")
        assert inbox.retry_messages([row], using="operator")[0].changed
        eventually(jobs, 1)
        eventually(lambda: loop.facts()["rejected"], 0)


def test_broken_source_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    loop, source = consumer()

    def break_down() -> None:
        raise RuntimeError("a bug of its own")

    source.before_receive = break_down
    with running(loop):
        eventually(lambda: not ready(loop))
    assert "consumer_failed" in caplog.text
    assert "a bug of its own" in caplog.text


def test_burst_ends_with_the_first_error() -> None:
    loop, source = consumer(burst=True)
    source.down = True
    assert not loop.run()
    assert isinstance(loop.error, NotReady)


@pytest.mark.parametrize("store", ["envelope", 1, "north-1", uuid4()])
def test_consumer_of_one_store(declare: Declare, store: object) -> None:
    declare(orders={**ORDERS, "STORE": store})
    assert conf.consumers["orders"].store == store


def test_check_names_unknown_tasks_sources_and_stores(declare: Declare) -> None:
    assert check_consumers() == []
    declare(
        a={**ORDERS, "TASKS": {"e": "test-sistem"}},
        b={**ORDERS, "SOURCE": "rn::kafka:::orders"},
        c=ORDERS,
        d={**ORDERS, "STORE": "no store"},
    )
    task, source, store = check_consumers()
    assert [each.id for each in (task, source, store)] == 3 * ["salon_jobs.E050"]
    assert store.msg == f"SALON_JOBS['CONSUMERS']['d']['STORE'] must be {store_key().description}, or 'envelope'"
    assert "did you mean 'test-system'" in task.msg
    own = "(name a class of your own in SALON_JOBS['OUTBOX']['SOURCES'])"
    assert f"choose one of azurequeue, memory, nats, sqs {own}" in source.msg


STORE = r"\['STORE'\] must be .envelope., or the key of a store"
TASKS = r"\['TASKS'\]"


@pytest.mark.parametrize(
    ("consumer", "error"),
    [
        ({**ORDERS, "SOURCE": "rn::nots:::orders"}, r"\['SOURCE'\]: .*.nots. has no source; .*.nats."),
        ({**ORDERS, "SOURCE": "orders"}, r"\['SOURCE'\] must be an ARN or RN"),
        ({**ORDERS, "TASKS": {"e": "no-such"}}, rf"{TASKS}\['e'\]: no task is named 'no-such'"),
        ({**ORDERS, "TASKS": {}}, f"{TASKS} must map at least one event"),
        ({"TASKS": {"e": "ping"}}, r"\['SOURCE'\] must be set"),
        ({**PLAIN, "ENVELOPE": "all"}, r"\['ENVELOPE'\] must be one of salon_jobs, none, not 'all'"),
        ({**PLAIN, "SOURCE": "rn::nats:::a"}, r"\['ENVELOPE'\] 'none' .* of azurequeue, .*, not 'rn::nats:::a'"),
        ({**PLAIN, "TASKS": {"e": "ping"}}, rf"{TASKS} must be .*'\*'.* with ENVELOPE 'none'"),
        ({**PLAIN, "TASKS": {"*": "ping", "e": "ping"}}, f"{TASKS} must be"),
        ({**PLAIN, "TASKS": {"*": "pin"}}, rf"{TASKS}\['\*'\]: no task is named 'pin'"),
        ({**ORDERS, "TASKS": {"*": "ping"}}, rf"{TASKS} .*'\*' .* with ENVELOPE 'none'"),
        ({**PLAIN, "PRODUCERS": ["x"]}, r"\['PRODUCERS'\] cannot be set with ENVELOPE 'none'"),
        ({**PLAIN, "REPLAYS": "refuse"}, r"\['REPLAYS'\] cannot be 'refuse' with ENVELOPE 'none'"),
        ({**ORDERS, "STORE": 1.5}, STORE),
        ({**ORDERS, "STORE": True}, STORE),
        ({**ORDERS, "STORE": ""}, STORE),
        ({**ORDERS, "REPLAYS": "never"}, r"\['REPLAYS'\] must be one of accept, refuse"),
        ({**ORDERS, "PRODUCER": 0}, r" has an unknown key 'PRODUCER'; did you mean 'PRODUCERS'"),
    ],
)
def test_wrong_consumers_are_named(consumer: dict[str, Any], error: str, declare: Declare) -> None:
    declare(a=consumer)
    with pytest.raises(ConfigurationError, match=rf"\['a'\]{error}"):
        Consumers(using="default")


@pytest.mark.parametrize(
    ("names", "consumers", "error"),
    [
        (["order"], ["orders"], "has no 'order'; did you mean 'orders'"),
        ([], [], "nothing to consume"),
        ([], ["x" * 101], "must be a dict of names, of 1 to 100 characters"),
    ],
)
def test_wrong_names_of_consumers(names: list[str], consumers: list[str], error: str, declare: Declare) -> None:
    declare(**dict.fromkeys(consumers, ORDERS))
    with pytest.raises(ConfigurationError, match=error):
        Consumers(names, using="default")


def test_metrics_of_a_consumer() -> None:
    loop, source = consumer()
    twice = message()
    source.queue += [message(), twice, twice, message(event="unheard-of")]

    def value(name: str, **labels: str) -> float:
        return of(shown(loop.samples()), name, consumer="orders", **labels)

    with running(loop):
        eventually(lambda: value("consumer_received_total"), 4)
        for outcome, count in (("enqueued", 2), ("duplicate", 1), ("rejected", 1)):
            eventually(partial(value, "consumer_messages_total", outcome=outcome), count)
        eventually(lambda: value("consumer_rejected"), 1)
        assert value("consumer_up") == 1
        source.down = True
        eventually(lambda: value("consumer_up"), 0)


def test_size_of_messages_bounds_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, source = consumer(burst=True)
    limits: list[int] = []
    really = source.receive

    def receive(limit: int, **options: Any) -> list[Delivery]:
        limits.append(limit)
        return really(limit, **options)

    monkeypatch.setattr(source, "receive", receive)
    small, large = (Delivery(count=9, raw="x" * size, handle=0, fault="unreadable") for size in (1000, 1_000_000))
    source.queue[:] = [small] * 20 + [large] * 100
    loop.run()
    assert limits[:3] == [10, 100, 8]
