"""Shows that many jobs come as one: in order over several statements, all or none, for every role."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext, suppress
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import ProgrammingError, connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from project.salon.models import Customer
from salon_jobs import tenant_context
from salon_jobs.core.errors import EnqueueRefused, PayloadInvalid
from salon_jobs.jobs import EnqueueAction, enqueue
from salon_jobs.jobs.payload import PayloadType
from salon_jobs.jobs.task import Call
from tests import tasks
from tests.jobs.interrupts import interrupted_while_waiting
from tests.jobs.rows import count, jobs
from tests.settings import SALON_JOBS, url_for
from tests.support import change, claim
from tests.waiting import LIMIT_S


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a statement of ten jobs."""
    monkeypatch.setattr(enqueue, "_ROWS", 10)


def test_handles_come_in_order_of_calls(stores: list[UUID]) -> None:
    with CaptureQueriesContext(connection) as queries:
        handles = tasks.in_store.using(priority=3, queue="slow").enqueue_many(
            tasks.in_store.call(store_id=stores[n % 3], number=n) for n in range(25)
        )
    assert len([query for query in queries.captured_queries if "salon_jobs_add_jobs" in query["sql"]]) == 3
    assert {handle.action for handle in handles} == {EnqueueAction.INSERTED}
    rows = [(handle.id, stores[n % 3], n, 3, "slow") for n, handle in enumerate(handles)]
    assert jobs("id, store_id, (payload->>'number')::int, priority, queue") == rows


@pytest.mark.parametrize("alias", ["default", "web"])
def test_system_jobs_come_in_order(database: None, alias: str) -> None:
    with override_settings(SALON_JOBS={**SALON_JOBS, "DATABASE": alias}):
        handles = tasks.system.enqueue_many(tasks.system.call(note=f"line\n{n}, \\ '") for n in range(25))
        alone = tasks.system.using(priority=3).enqueue(note="alone")
    rows = [(handle.id, f"line\n{n}, \\ '", 0, None) for n, handle in enumerate(handles)]
    assert jobs("id, payload->>'note', priority, store_id") == [*rows, (alone.id, "alone", 3, None)]


def test_key_belongs_to_its_store(stores: list[UUID]) -> None:
    calls = [tasks.keyed.call(store_id=stores[n % 3], number=n % 12, note=str(n)) for n in range(36)]
    handles = tasks.keyed.enqueue_many(calls)
    assert [handle.action for handle in handles] == ["inserted"] * 12 + ["kept"] * 24
    assert [handle.id for handle in handles] == [handle.id for handle in handles[:12]] * 3
    assert jobs("id, payload->>'note'") == sorted((handle.id, str(n)) for n, handle in enumerate(handles[24:], 24))
    same = tasks.keyed.using(job_key="same").enqueue_many(calls[:3])
    assert [handle.action for handle in same] == ["inserted"] * 3


def test_wrong_call_spares_the_transaction(stores: list[UUID]) -> None:
    def calls() -> Iterator[Call[...]]:
        for number in range(15):
            yield tasks.in_store.call(store_id=stores[0], number=number)
        yield tasks.keyed.call(store_id=stores[0], number=1)

    for around in (nullcontext(), transaction.atomic()):
        with around:
            tasks.in_store.enqueue(store_id=stores[0], number=99)
            with pytest.raises(PayloadInvalid, match="a call of 'test-keyed'"):
                tasks.in_store.enqueue_many(calls())
    assert jobs("payload->>'number'") == [("99",)] * 2
    assert tasks.in_store.enqueue_many([]) == []


def test_calls_may_query_meanwhile(stores: list[UUID]) -> None:
    change(
        "INSERT INTO customer (id, store_id, name, email)"
        " SELECT gen_random_uuid(), %s, 'c' || n, 'e' FROM generate_series(1, 45) AS n",
        stores[0],
    )

    def calls() -> Iterator[Call[...]]:
        # One cursor of the server is open all the time, and a query comes between each two calls.
        for number, customer in enumerate(Customer.objects.order_by("id").iterator(chunk_size=7)):
            assert Customer.objects.filter(pk=customer.pk).exists()
            yield tasks.in_store.call(store_id=stores[0], number=number)

    with tenant_context(stores[0]):
        handles = tasks.in_store.enqueue_many(calls())
    assert jobs("id, (payload->>'number')::int") == [(handle.id, n) for n, handle in enumerate(handles)]
    assert len(handles) == 45


@pytest.mark.parametrize("queries", [False, True])
def test_refused_batch_leaves_none(stores: list[UUID], *, queries: bool) -> None:
    def calls() -> Iterator[Call[...]]:
        for number in range(45):
            if queries and number > 30:
                Customer.objects.using("web").count()
            yield tasks.in_store.call(store_id=stores[number > 25], number=number)

    with override_settings(SALON_JOBS={**SALON_JOBS, "DATABASE": "web"}):
        with pytest.raises(EnqueueRefused, match="store_id is not the current store"), tenant_context(stores[0]):
            tasks.in_store.enqueue_many(calls())
        assert count() == 0
        with tenant_context(stores[0]):
            assert len(tasks.in_store.enqueue_many(tasks.in_store.call(store_id=stores[0]) for _ in range(25))) == 25


def test_abandoned_calls_leave_connection_clean(stores: list[UUID]) -> None:
    """Every later statement of a connection that lasts would pass through what was left."""

    def make_calls() -> Generator[Call[...]]:
        yield from (tasks.in_store.call(store_id=stores[0]) for _ in range(10))
        with tenant_context(stores[0]):
            yield tasks.system.call()

    calls = make_calls()
    with pytest.raises(PayloadInvalid, match="got a call of"):
        tasks.in_store.enqueue_many(calls)
    calls.close()
    assert (connection.execute_wrappers, count()) == ([], 0)


def test_first_insert_runs_during_next_calls(stores: list[UUID]) -> None:
    advanced = threading.Event()

    def held(execute: Callable[..., Any], *call: Any) -> Any:
        assert "salon_jobs_add_jobs" not in call[0] or advanced.wait(LIMIT_S)
        return execute(*call)

    def calls() -> Iterator[Call[...]]:
        for number in range(25):
            if number == 15:
                advanced.set()
            yield tasks.in_store.call(store_id=stores[0], number=number)

    with connection.execute_wrapper(held):
        assert len(tasks.in_store.enqueue_many(calls())) == 25


def test_statements_grow_from_small_one(stores: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with CaptureQueriesContext(connection) as queries:
        handles = tasks.in_store.enqueue_many(
            tasks.in_store.call(store_id=stores[n % 3 if n < 600 else 0], number=n) for n in range(2_000)
        )
    assert len([query for query in queries.captured_queries if "salon_jobs_add_jobs" in query["sql"]]) == 3
    rows = [(handle.id, stores[n % 3 if n < 600 else 0], n) for n, handle in enumerate(handles)]
    assert jobs("id, store_id, (payload->>'number')::int") == rows


def test_savepoint_rollback_takes_no_jobs_along(stores: list[UUID]) -> None:
    """A savepoint of the calls waits for the insert that runs."""
    asked, caller = threading.Event(), threading.current_thread()
    ran: list[str] = []

    def held(execute: Callable[..., Any], *call: Any) -> Any:
        if threading.current_thread() is caller:
            asked.set()  # for a savepoint, after which the insert goes on
        else:
            assert asked.wait(LIMIT_S)
        result = execute(*call)
        ran.append(call[0].split()[0])
        return result

    def calls() -> Iterator[Call[...]]:
        for number in range(45):
            if number == 25:
                asked.clear()
                with suppress(ZeroDivisionError), transaction.atomic():
                    raise ZeroDivisionError
            yield tasks.in_store.call(store_id=stores[0], number=number)

    with connection.execute_wrapper(held):
        asked.set()  # for what comes before
        handles = tasks.in_store.enqueue_many(calls())
    assert jobs("id") == [(handle.id,) for handle in handles]
    assert len(handles) == 45
    assert ran.index("SAVEPOINT") > 1


def test_error_of_calls_reaches_caller(stores: list[UUID]) -> None:
    """It is told, and not what came of it."""

    def calls() -> Iterator[Call[...]]:
        for number in range(45):
            if number == 25:
                Customer.objects.extra(where=["no_such_column"]).count()
            yield tasks.in_store.call(store_id=stores[0], number=number)

    with pytest.raises(ProgrammingError, match="no_such_column"):
        tasks.in_store.enqueue_many(calls())
    assert count() == 0


def test_interrupt_waits_for_no_lock(stores: list[UUID]) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with psycopg.connect(url_for(None)) as other, interrupted_while_waiting(interrupt):
        other.execute("LOCK TABLE salon_jobs_job")
        with pytest.raises(KeyboardInterrupt):
            tasks.in_store.enqueue_many(tasks.in_store.call(store_id=stores[0], number=n) for n in range(40))
    tasks.in_store.enqueue_many(tasks.in_store.call(store_id=stores[0], number=n) for n in range(12))
    assert count() == 12


def test_running_job_supersedes_only_in_its_store(stores: list[UUID], process_id: int) -> None:
    tasks.keyed.enqueue(store_id=stores[0], number=1)
    claim(process_id)
    handles = tasks.keyed.enqueue_many([tasks.keyed.call(store_id=store, number=1) for store in stores])
    assert [handle.action for handle in handles] == ["superseded_running", "inserted", "inserted"]
    assert count("salon_jobs_superseded") == 1


def test_sets_are_sorted_in_payloads(database: None) -> None:
    """The order of a set would make another payload, and another key."""

    def of_sets(tags: set[str]) -> None: ...

    tags = {f"tag {n}" for n in range(20)}
    assert PayloadType("sets", of_sets, with_store=False).bind((tags,), {}).plain["tags"] == sorted(tags)
