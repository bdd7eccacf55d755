"""Runs the loop of consume_queue over a queue in memory and the real database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
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
from tests.inbox.memory_source import MemorySource, message
from tests.metrics import of, shown
from tests.support import change, seen
from tests.waiting import eventually

ORDERS = {"SOURCE": "rn::memory:::orders", "TASKS": {"noted": "test-system"}}
PLAIN: dict[str, Any] = {"SOURCE": "rn::azurequeue:::parse-tasks", "ENVELOPE": "none", "TASKS": {"*": "test-store"}}
pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture(autouse=True)
def consumers_settings(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Declare the consumer ``orders``, or others."""

    def declare(**consumers: Any) -> None:
        settings.SALON_JOBS = {
            **settings.SALON_JOBS,
            "CONSUMERS": consumers,
            "OUTBOX": {"SOURCES": {"memory": "tests.inbox.memory_source.MemorySource"}},
        }

    monkeypatch.setattr("salon_jobs.inbox.consumer._WAIT", timedelta(milliseconds=10))
    short = Backoff(base=timedelta(milliseconds=50), cap=timedelta(milliseconds=200))
    monkeypatch.setattr("salon_jobs.inbox.consumer._WAITS", short)
    declare(orders=ORDERS)
    yield declare
    MemorySource.queues.clear()


def consumer(**changes: Any) -> tuple[Consumer, MemorySource]:
    from salon_jobs.conf import settings as conf

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
        assert loop.join(20)


def jobs() -> int:
    return int(seen("SELECT count(*) FROM salon_jobs_job")[0][0])


def ready(loop: Consumer) -> bool:
    try:
        loop.facts()
    except SourceLost:
        return False
    return True


def test_a_burst_goes_on_until_every_source_is_empty(
    consumers_settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("salon_jobs.inbox.consumer._BATCH", 2)
    consumers_settings(orders=ORDERS, notes={**ORDERS, "SOURCE": "rn::memory:::notes"})
    MemorySource.queues.update({"orders": [message() for _ in range(7)], "notes": [message() for _ in range(3)]})
    assert Consumers(burst=True, using="default").run()
    assert jobs() == 10
    assert dict(seen("SELECT consumer, count(*) FROM salon_jobs_inbox GROUP BY 1")) == {"orders": 7, "notes": 3}


def test_it_acknowledges_after_the_commit_alone() -> None:
    loop, source = consumer(burst=True)
    source.queue += [message(), message()]
    committed: list[int] = []
    source.before_acknowledge = lambda: committed.append(jobs())
    loop.run()
    assert committed == [2]
    assert len(source.acknowledged) == 2
    assert source.closed


def test_a_broker_that_is_down_is_logged_once_shown_by_readiness_and_found_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="salon_jobs")
    loop, source = consumer()
    polls = threading.Semaphore(0)
    source.before_receive = polls.release
    source.down = True
    with running(loop):
        for _ in range(3):
            assert polls.acquire(timeout=10)
        with pytest.raises(SourceLost, match=r"consumer 'orders': WORKER.NOT_READY: the broker in memory is down"):
            loop.facts()
        assert SourceLost.code == "INBOX.SOURCE_LOST"
        source.queue.append(message())
        source.down = False
        eventually(jobs, 1)
        eventually(lambda: ready(loop))
    assert caplog.text.count("source_lost") == 1
    assert caplog.text.count("source_back") == 1


def test_a_broker_that_takes_no_acknowledgement_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
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
            assert refused.acquire(timeout=10)
        assert not ready(loop)
    assert caplog.text.count("source_lost") == 1


def test_a_batch_is_kept_while_the_database_is_lost_and_hidden_all_the_time(caplog: pytest.LogCaptureFixture) -> None:
    loop, source = consumer()
    source.queue += [message(), message()]
    # Nobody can log in as the worker, and whoever has is thrown out: what a failover polls like from here.
    change("ALTER ROLE worker_runtime NOLOGIN")
    try:
        connections["default"].close()
        change("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'worker_runtime'")
        with running(loop):
            for _ in range(3):
                assert source.extended.acquire(timeout=10)
            assert not ready(loop)
            assert source.given_back == []
            change("ALTER ROLE worker_runtime LOGIN")
            eventually(jobs, 2)
            eventually(lambda: len(source.acknowledged), 2)
    finally:
        change("ALTER ROLE worker_runtime LOGIN")
    assert caplog.text.count("database_lost") == 1


def test_what_was_only_received_is_given_back_when_it_must_stop() -> None:
    loop, source = consumer()
    source.queue.append(message())
    source.before_receive = loop.stop
    loop.run()
    assert [after.total_seconds() for _, after in source.given_back] == [0]
    assert (jobs(), source.acknowledged) == (0, [])


def test_operators_retries_happen_at_the_next_poll() -> None:
    loop, source = consumer()
    source.queue.append(message(event="unheard-of"))
    with running(loop):
        eventually(lambda: loop.facts()["rejected"], 1)
        change("UPDATE salon_jobs_inbox SET raw = replace(raw, 'unheard-of', 'noted')")
        [(row,)] = seen("SELECT id FROM salon_jobs_inbox")
        assert inbox.retry_messages([row], using="operator")[0].changed
        eventually(jobs, 1)
        eventually(lambda: loop.facts()["rejected"], 0)


def test_a_custom_source_that_breaks_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    loop, source = consumer()

    def break_down() -> None:
        raise RuntimeError("a bug of its own")

    source.before_receive = break_down
    with running(loop):
        eventually(lambda: not ready(loop))
    assert "consumer_failed" in caplog.text
    assert "a bug of its own" in caplog.text


def test_a_burst_ends_with_the_first_error() -> None:
    loop, source = consumer(burst=True)
    source.down = True
    assert not loop.run()
    assert isinstance(loop.error, NotReady)


def test_it_prunes_the_inbox() -> None:
    change(
        "INSERT INTO salon_jobs_inbox (consumer, message_id, status, received_at)"
        " SELECT 'gone', n::text, 'enqueued', now() - interval '31 days' FROM generate_series(1, 2500) n"
    )
    with running(Consumers(using="default")):
        eventually(lambda: seen("SELECT count(*) FROM salon_jobs_inbox"), [(0,)])


@pytest.mark.parametrize("store", ["envelope", 1, "north-1", uuid4()])
def test_a_consumer_may_be_one_stores(consumers_settings: Callable[..., None], store: object) -> None:
    consumers_settings(orders={**ORDERS, "STORE": store})
    assert conf.consumers["orders"].store == store


def test_the_check_names_unknown_tasks_sources_and_stores(consumers_settings: Callable[..., None]) -> None:
    assert check_consumers() == []
    consumers_settings(
        a={**ORDERS, "TASKS": {"e": "test-sistem"}},
        b={**ORDERS, "SOURCE": "rn::kafka:::orders"},
        c=ORDERS,
        d={**ORDERS, "STORE": "no store"},
    )
    task, source, store = check_consumers()
    assert [each.id for each in (task, source, store)] == 3 * ["salon_jobs.E050"]
    assert store.msg == f"SALON_JOBS['CONSUMERS']['d']['STORE'] must be {store_key().description}, or 'envelope'"
    assert "did you mean 'test-system'" in task.msg
    assert (
        "choose one of azurequeue, memory, nats, sqs (name a class of your own in SALON_JOBS['OUTBOX']['SOURCES'])"
        in source.msg
    )


@pytest.mark.parametrize(
    ("names", "consumers", "error"),
    [
        (["order"], {"orders": ORDERS}, "has no 'order'; did you mean 'orders'"),
        ([], {}, "nothing to consume"),
        (
            [],
            {"a": {**ORDERS, "SOURCE": "rn::nots:::orders"}},
            r"\['a'\]\['SOURCE'\]: .*.nots. has no source; .*.nats.",
        ),
        ([], {"a": {**ORDERS, "SOURCE": "orders"}}, r"\['a'\]\['SOURCE'\] must be an ARN or RN"),
        ([], {"a": {**ORDERS, "TASKS": {"e": "no-such"}}}, r"\['a'\]\['TASKS'\]\['e'\]: no task is named 'no-such'"),
        ([], {"a": {**ORDERS, "TASKS": {}}}, r"\['a'\]\['TASKS'\] must map at least one event"),
        ([], {"a": {"TASKS": {"e": "ping"}}}, r"\['a'\]\['SOURCE'\] must be set"),
        ([], {"a": {**PLAIN, "ENVELOPE": "all"}}, r"\['a'\]\['ENVELOPE'\] must be one of salon_jobs, none, not 'all'"),
        (
            [],
            {"a": {**PLAIN, "SOURCE": "rn::nats:::a"}},
            r"\['ENVELOPE'\] 'none' .* of azurequeue, .*, not 'rn::nats:::a'",
        ),
        ([], {"a": {**PLAIN, "TASKS": {"e": "ping"}}}, r"\['a'\]\['TASKS'\] must be .*'\*'.* with ENVELOPE 'none'"),
        ([], {"a": {**PLAIN, "TASKS": {"*": "ping", "e": "ping"}}}, r"\['a'\]\['TASKS'\] must be"),
        ([], {"a": {**PLAIN, "TASKS": {"*": "pin"}}}, r"\['a'\]\['TASKS'\]\['\*'\]: no task is named 'pin'"),
        ([], {"a": {**ORDERS, "TASKS": {"*": "ping"}}}, r"\['a'\]\['TASKS'\] .*'\*' .* with ENVELOPE 'none'"),
        ([], {"a": {**PLAIN, "PRODUCERS": ["x"]}}, r"\['a'\]\['PRODUCERS'\] cannot be set with ENVELOPE 'none'"),
        ([], {"a": {**PLAIN, "REPLAYS": "refuse"}}, r"\['a'\]\['REPLAYS'\] cannot be 'refuse' with ENVELOPE 'none'"),
        ([], {"a": {**ORDERS, "STORE": 1.5}}, r"\['a'\]\['STORE'\] must be .envelope., or the key of a store"),
        ([], {"a": {**ORDERS, "STORE": True}}, r"\['a'\]\['STORE'\] must be .envelope., or the key of a store"),
        ([], {"a": {**ORDERS, "STORE": ""}}, r"\['a'\]\['STORE'\] must be .envelope., or the key of a store"),
        ([], {"a": {**ORDERS, "REPLAYS": "never"}}, r"\['a'\]\['REPLAYS'\] must be one of accept, refuse"),
        ([], {"a": {**ORDERS, "PRODUCER": 0}}, r"\['a'\] has an unknown key 'PRODUCER'; did you mean 'PRODUCERS'"),
        ([], {"x" * 101: ORDERS}, "must be a dict of names, of 1 to 100 characters"),
    ],
)
def test_settings_are_refused_by_field(
    names: list[str], consumers: dict[str, Any], error: str, consumers_settings: Callable[..., None]
) -> None:
    consumers_settings(**consumers)
    with pytest.raises(ConfigurationError, match=error):
        Consumers(names, using="default")


def test_a_consumer_counts_what_it_received_and_what_became_of_it() -> None:
    loop, source = consumer()
    twice = message()
    source.queue += [message(), twice, twice, message(event="unheard-of")]

    def value(name: str, **labels: str) -> float:
        return of(shown(loop.samples()), name, consumer="orders", **labels)

    with running(loop):
        eventually(lambda: value("consumer_received_total"), 4)
        eventually(lambda: value("consumer_messages_total", outcome="enqueued"), 2)
        assert value("consumer_messages_total", outcome="duplicate") == 1
        assert value("consumer_messages_total", outcome="rejected") == 1
        eventually(lambda: value("consumer_rejected"), 1)
        assert value("consumer_up") == 1
        source.down = True
        eventually(lambda: value("consumer_up"), 0)


def test_batches_are_bounded_by_the_size_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, source = consumer()
    limits: list[int] = []
    really = source.receive

    def receive(limit: int, **options: Any) -> list[Delivery]:
        limits.append(limit)
        return really(limit, **options)

    monkeypatch.setattr(source, "receive", receive)
    small, large = (Delivery(count=9, raw="x" * size, handle=0, fault="unreadable") for size in (1000, 1_000_000))
    source.queue[:] = [small] * 20 + [large] * 100
    for _ in range(3):
        loop._process_batch()
    assert limits == [10, 100, 8]
