"""Shows that many jobs come as one: in order over several statements, all or none, for every role."""

from __future__ import annotations

import signal
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
from salon_jobs import store_task, tenant_context
from salon_jobs.core.errors import EnqueueRefused, PayloadInvalid
from salon_jobs.jobs import EnqueueAction, enqueue, registry
from salon_jobs.jobs.task import Call
from tests import tasks
from tests.settings import SALON_JOBS, url_for
from tests.support import change, claim, seen, store_id_of


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a statement of ten jobs."""
    monkeypatch.setattr(enqueue, "_ROWS", 10)


def test_handles_come_in_the_order_of_a_generators_calls_over_several_statements(stores: list[UUID]) -> None:
    with CaptureQueriesContext(connection) as queries:
        handles = tasks.in_store.using(priority=3, queue="slow").enqueue_many(
            tasks.in_store.call(store_id=stores[n % 3], number=n) for n in range(25)
        )
    assert len([query for query in queries.captured_queries if "salon_jobs_add_jobs" in query["sql"]]) == 3
    assert {handle.action for handle in handles} == {EnqueueAction.INSERTED}
    rows = seen("SELECT id, store_id, (payload->>'number')::int, priority, queue FROM salon_jobs_job")
    assert sorted(rows) == [(handle.id, stores[n % 3], n, 3, "slow") for n, handle in enumerate(handles)]


@pytest.mark.parametrize("alias", ["default", "web"])
def test_system_jobs_come_in_order_too_whatever_role_adds_them(database: None, alias: str) -> None:
    with override_settings(SALON_JOBS={**SALON_JOBS, "DATABASE": alias}):
        handles = tasks.system.enqueue_many(tasks.system.call(note=f"line\n{n}, \\ '") for n in range(25))
        alone = tasks.system.using(priority=3).enqueue(note="alone")
    rows = seen("SELECT id, payload->>'note', priority, store_id FROM salon_jobs_job ORDER BY id")
    assert rows[:-1] == [(handle.id, f"line\n{n}, \\ '", 0, None) for n, handle in enumerate(handles)]
    assert rows[-1] == (alone.id, "alone", 3, None)


def test_keyed_jobs_of_one_key_in_many_stores_and_of_many_keys_in_one(stores: list[UUID]) -> None:
    calls = [tasks.keyed.call(store_id=stores[n % 3], number=n % 12, note=str(n)) for n in range(36)]
    handles = tasks.keyed.enqueue_many(calls)
    assert [handle.action for handle in handles] == ["inserted"] * 12 + ["kept"] * 24
    assert [handle.id for handle in handles] == [handle.id for handle in handles[:12]] * 3
    rows = seen("SELECT id, payload->>'note' FROM salon_jobs_job ORDER BY (payload->>'note')::int")
    assert rows == [(handle.id, str(n)) for n, handle in enumerate(handles) if n >= 24]
    same = tasks.keyed.using(job_key="same").enqueue_many(calls[:3])
    assert [handle.action for handle in same] == ["inserted"] * 3, "a key belongs to its store"


def test_a_refused_call_after_many_good_ones_leaves_none_and_the_transaction_usable(stores: list[UUID]) -> None:
    def calls() -> Iterator[Call[...]]:
        for number in range(15):
            yield tasks.in_store.call(store_id=stores[0], number=number)
        yield tasks.keyed.call(store_id=stores[0], number=1)

    for around in (nullcontext(), transaction.atomic()):
        with around:
            tasks.in_store.enqueue(store_id=stores[0], number=99)
            with pytest.raises(PayloadInvalid, match="a call of 'test-keyed'"):
                tasks.in_store.enqueue_many(calls())
    assert seen("SELECT payload->>'number' FROM salon_jobs_job") == [("99",)] * 2
    assert tasks.in_store.enqueue_many([]) == []


def test_whoever_makes_the_calls_may_query_while_the_server_inserts(stores: list[UUID]) -> None:
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
    rows = seen("SELECT id, (payload->>'number')::int FROM salon_jobs_job ORDER BY id")
    assert rows == [(handle.id, n) for n, handle in enumerate(handles)]
    assert len(rows) == 45


@pytest.mark.parametrize("queries", [False, True])
def test_a_batch_that_is_refused_tells_why_and_leaves_none(stores: list[UUID], *, queries: bool) -> None:
    def calls() -> Iterator[Call[...]]:
        for number in range(45):
            if queries and number > 30:
                Customer.objects.using("web").count()
            yield tasks.in_store.call(store_id=stores[number > 25], number=number)

    with override_settings(SALON_JOBS={**SALON_JOBS, "DATABASE": "web"}):
        with pytest.raises(EnqueueRefused, match="store_id is not the current store"), tenant_context(stores[0]):
            tasks.in_store.enqueue_many(calls())
        assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]
        with tenant_context(stores[0]):
            assert len(tasks.in_store.enqueue_many(tasks.in_store.call(store_id=stores[0]) for _ in range(25))) == 25


def test_calls_that_end_inside_a_context_of_their_own_leave_nothing_on_the_connection(stores: list[UUID]) -> None:
    """Every later statement of a connection that lasts would pass through what was left."""

    def make_calls() -> Generator[Call[...]]:
        yield from (tasks.in_store.call(store_id=stores[0]) for _ in range(10))
        with tenant_context(stores[0]):
            yield tasks.system.call()

    calls = make_calls()
    with pytest.raises(PayloadInvalid, match="got a call of"):
        tasks.in_store.enqueue_many(calls)
    calls.close()
    assert connection.execute_wrappers == []
    assert seen("SELECT FROM salon_jobs_job") == []


def test_the_first_statement_runs_while_the_next_calls_are_made(stores: list[UUID]) -> None:
    advanced = threading.Event()

    def held(execute: Callable[..., Any], *call: Any) -> Any:
        assert "salon_jobs_add_jobs" not in call[0] or advanced.wait(10)
        return execute(*call)

    def calls() -> Iterator[Call[...]]:
        for number in range(25):
            if number == 15:
                advanced.set()
            yield tasks.in_store.call(store_id=stores[0], number=number)

    with connection.execute_wrapper(held):
        assert len(tasks.in_store.enqueue_many(calls())) == 25


def test_statements_grow_from_a_small_one(stores: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with CaptureQueriesContext(connection) as queries:
        handles = tasks.in_store.enqueue_many(
            tasks.in_store.call(store_id=stores[n % 3 if n < 600 else 0], number=n) for n in range(2_000)
        )
    assert len([query for query in queries.captured_queries if "salon_jobs_add_jobs" in query["sql"]]) == 3
    rows = seen("SELECT id, store_id, (payload->>'number')::int FROM salon_jobs_job ORDER BY id")
    assert rows == [(handle.id, stores[n % 3 if n < 600 else 0], n) for n, handle in enumerate(handles)]


def test_a_savepoint_that_is_rolled_back_takes_no_jobs_along(stores: list[UUID]) -> None:
    saved, inserted = threading.Event(), threading.Event()
    caller = threading.current_thread()

    def held(execute: Callable[..., Any], *call: Any) -> Any:
        if threading.current_thread() is caller:
            return execute(*call)
        saved.wait(0.5)  # in vain: the caller's savepoint waits for this insert
        try:
            return execute(*call)
        finally:
            inserted.set()

    def calls() -> Iterator[Call[...]]:
        for number in range(45):
            if number == 25:
                inserted.clear()  # by the statement before
                with suppress(ZeroDivisionError), transaction.atomic():
                    saved.set()
                    assert inserted.wait(10)
                    raise ZeroDivisionError
            yield tasks.in_store.call(store_id=stores[0], number=number)

    with connection.execute_wrapper(held):
        handles = tasks.in_store.enqueue_many(calls())
    assert seen("SELECT id FROM salon_jobs_job ORDER BY id") == [(handle.id,) for handle in handles]
    assert len(handles) == 45


def test_what_ends_the_calls_is_told_and_not_what_came_of_it(stores: list[UUID]) -> None:
    def calls() -> Iterator[Call[...]]:
        for number in range(45):
            if number == 25:
                Customer.objects.extra(where=["no_such_column"]).count()
            yield tasks.in_store.call(store_id=stores[0], number=number)

    with pytest.raises(ProgrammingError, match="no_such_column"):
        tasks.in_store.enqueue_many(calls())
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]


def test_an_interrupt_waits_for_no_lock_of_another_transaction(
    stores: list[UUID], request: pytest.FixtureRequest
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGALRM, interrupt)
    request.addfinalizer(lambda: signal.signal(signal.SIGALRM, former))
    with psycopg.connect(url_for(None)) as other:
        other.execute("LOCK TABLE salon_jobs_job")
        release = threading.Timer(10, other.close)
        release.start()
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            tasks.in_store.enqueue_many(tasks.in_store.call(store_id=stores[0], number=n) for n in range(40))
        assert release.is_alive()
        release.cancel()
    tasks.in_store.enqueue_many(tasks.in_store.call(store_id=stores[0], number=n) for n in range(12))
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(12,)]


def test_a_running_holder_of_another_store_supersedes_nobody(stores: list[UUID], process_id: int) -> None:
    tasks.keyed.enqueue(store_id=stores[0], number=1)
    claim(process_id)
    handles = tasks.keyed.enqueue_many([tasks.keyed.call(store_id=store, number=1) for store in stores])
    assert [handle.action for handle in handles] == ["superseded_running", "inserted", "inserted"]
    assert seen("SELECT count(*) FROM salon_jobs_superseded") == [(1,)]


def test_the_order_of_a_set_makes_no_other_payload(database: None) -> None:
    @store_task(name="test-sets", job_key="{tags}")
    def of_sets(store_id: UUID, tags: set[str]) -> None: ...

    try:
        tags = {f"tag {n}" for n in range(20)}
        bound = of_sets.payload.bind((), {"store_id": store_id_of(1), "tags": tags})
        assert bound.plain["tags"] == sorted(tags)
    finally:
        registry.unregister("test-sets")
