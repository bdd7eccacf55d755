"""Enqueueing and emitting from coroutines: whose connection, whose transaction and whose store it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, transaction

from salon_jobs import aemit, afan_out, tenant_context
from salon_jobs.core.errors import EmitRefused, EnqueueRefused
from salon_jobs.core.records import FanOutResult
from salon_jobs.jobs import JobHandle
from tests import tasks
from tests.jobs.rows import count, jobs
from tests.support import run_due, seen
from tests.tenancy.asgi import own_thread

T = TypeVar("T")
TOPIC = "rn::memory:::orders"


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Run as under ASGI: another thread has the connection of all synchronous parts."""

    async def main() -> T:
        async with own_thread():
            return await work()

    return asyncio.run(main())


async def add_everything(store: UUID) -> list[JobHandle]:
    in_store = tasks.in_store
    return [
        await tasks.system.aenqueue(note="a"),
        await tasks.system.using(priority=5).aenqueue("b"),
        await in_store.aenqueue(store_id=store, number=1),
        *await in_store.aenqueue_many(in_store.call(store_id=store, number=n) for n in range(2)),
        *await in_store.using(queue="mail").aenqueue_many([in_store.call(store_id=store, number=7)]),
    ]


def test_jobs_exist_at_once_without_transaction(stores: list[UUID]) -> None:
    async def work() -> list[tuple[object, ...]]:
        await add_everything(stores[0])
        return await sync_to_async(seen)("SELECT task, priority, queue, store_id FROM salon_jobs_job ORDER BY id")

    assert run(work) == [
        ("test-system", 0, "default", None),
        ("test-system", 5, "default", None),
        *[("test-store", 0, "default", stores[0])] * 3,
        ("test-store", 0, "mail", stores[0]),
    ]


def test_async_to_sync_joins_callers_transaction(stores: list[UUID]) -> None:
    for rolls_back in (True, False):
        with transaction.atomic():
            assert len(async_to_sync(add_everything)(stores[0])) == 6
            assert count() == 0, "nobody else sees them before the commit"
            assert len(connection.run_on_commit) == 1, "one wake-up"
            transaction.set_rollback(rolls_back)
        assert count() == (0 if rolls_back else 6)


@pytest.mark.parametrize("fails", [False, True])
def test_tenant_context_is_transaction_and_store(stores: list[UUID], fails: bool) -> None:
    async def work() -> None:
        with suppress(ZeroDivisionError):
            async with tenant_context(stores[0]):
                await add_everything(stores[0])
                await aemit(TOPIC, event="order.created", payload={"id": 1})
                if fails:
                    raise ZeroDivisionError

    run(work)
    assert count() == (0 if fails else 6)
    assert seen("SELECT DISTINCT store_id FROM salon_jobs_message") == ([] if fails else [(stores[0],)])


def test_web_role_is_held_to_store(stores: list[UUID], settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "DATABASE": "web"}

    async def work() -> None:
        async with tenant_context(stores[0]):
            await tasks.in_store.aenqueue(store_id=stores[0])
        with pytest.raises(EnqueueRefused):
            async with tenant_context(stores[0]):
                await tasks.in_store.aenqueue(store_id=stores[1])
        with pytest.raises(EnqueueRefused):
            await tasks.in_store.aenqueue(store_id=stores[1])

    run(work)
    assert seen("SELECT store_id FROM salon_jobs_job") == [(stores[0],)]


def test_concurrent_coroutines_keep_their_stores(stores: list[UUID]) -> None:
    async def add(store: UUID, number: int) -> None:
        async with tenant_context(store, atomic=False):
            await tasks.in_store.aenqueue(store_id=store, number=number)

    async def work() -> None:
        await asyncio.gather(*(add(store, number) for number, store in enumerate(stores)))

    run(work)
    assert sorted(jobs("payload->>'number', store_id")) == [(str(n), store) for n, store in enumerate(stores)]


def test_emit_needs_transaction(database: None) -> None:
    with pytest.raises(EmitRefused, match="none is open"):
        run(lambda: aemit(TOPIC, event="order.created", payload={}))
    with transaction.atomic():
        async_to_sync(aemit)(TOPIC, event="order.created", payload={}, headers={"Priority": "low"})
        assert count("salon_jobs_message") == 0
    assert seen("SELECT event FROM salon_jobs_message") == [("order.created",)]


def test_async_handler_enqueues_on_own_connection(stores: list[UUID], hooks: tasks.Hooks, process_id: int) -> None:
    async def body(**_: object) -> None:
        await tasks.system.aenqueue(note="from a handler")
        assert await afan_out(tasks.keyed, number=7) == FanOutResult(inserted=3, kept=0)

    hooks.coroutine = body
    tasks.with_async_error_rules.enqueue()
    run_due(process_id)
    assert sorted(jobs("task")) == [("test-keyed",)] * 3 + [("test-system",)]
