"""Contexts in coroutines: many tasks on one thread or each on its own, cancelled anywhere, and none mixed."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from contextvars import Context
from typing import Any
from uuid import UUID, uuid4

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction
from django.db.backends.signals import connection_created

from project.salon.models import Customer, Store
from salon_jobs import current_store_id, tenant_context
from salon_jobs.core.errors import TenantContextError, TransactionBroken
from tests.support import connected, seen
from tests.tenancy.asgi import own_thread
from tests.tenancy.probe import backend, visible_in_transaction
from tests.waiting import LIMIT_S

Work = Coroutine[Any, Any, None]


def on_one_thread(test: Callable[..., Work]) -> Callable[..., None]:
    """Run as a script would: one thread for the synchronous parts of all tasks, which is not this one."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def main() -> None:
            async with own_thread():
                await test(*arguments, **named)

        asyncio.run(main())

    return run


def apart(work: Work) -> asyncio.Task[None]:
    """Start a task that inherits nothing, as the one of another request."""
    return asyncio.get_running_loop().create_task(work, context=Context())


async def visible() -> list[UUID]:
    return [pk async for pk in Store.objects.order_by("id").values_list("pk", flat=True)]


visible_in_a_transaction = sync_to_async(visible_in_transaction)


async def add(name: str) -> None:
    store_id = current_store_id()
    assert store_id is not None
    await Customer.objects.acreate(id=uuid4(), store_id=store_id, name=name, email="a@example.com")


@sync_to_async
def names() -> list[str]:
    return [row[0] for row in seen("SELECT name FROM customer ORDER BY name")]


async def assert_no_store() -> None:
    assert (current_store_id(), await visible(), await visible_in_a_transaction()) == (None, [], [])


@pytest.mark.parametrize("atomic", [True, False])
@on_one_thread
async def test_statements_see_store_and_none_afterwards(stores: list[UUID], atomic: bool) -> None:
    async with tenant_context(stores[0], atomic=atomic):
        assert current_store_id() == stores[0]
        assert await visible() == [stores[0]]
        assert await visible_in_a_transaction() == [stores[0]]
        async with tenant_context(stores[0], atomic=atomic):
            await add("nested")
        async with tenant_context(stores[1], atomic=atomic, switch=True):
            assert await visible() == [stores[1]]
        with pytest.raises(TenantContextError, match="switch=True"):
            await tenant_context(stores[1]).__aenter__()
        assert await visible() == [stores[0]]
    await assert_no_store()
    assert await names() == ["nested"]


@on_one_thread
async def test_error_rolls_back_transaction(stores: list[UUID]) -> None:
    for name, atomic in (("undone", True), ("kept", False)):
        with suppress(ZeroDivisionError):
            async with tenant_context(stores[0], atomic=atomic):
                await add(name)
                raise ZeroDivisionError
    assert await visible() == []
    assert await names() == ["kept"]


@on_one_thread
async def test_many_tasks_on_one_thread(stores: list[UUID]) -> None:
    """They share a connection, and each sees its own store alone."""
    tasks, rounds = 30, 8
    backends: set[int] = set()
    wrong: list[object] = []

    async def one(number: int) -> None:
        store = stores[number % 3] if number % 5 else None
        expected = [] if store is None else [store]
        async with nullcontext() if store is None else tenant_context(store, atomic=False):
            for _ in range(rounds):
                backends.add(await sync_to_async(backend)())
                views = (await visible_in_a_transaction(), await visible(), current_store_id())
                if views != (expected, expected, store):
                    wrong.append((store, views))

    await asyncio.gather(*map(one, range(tasks)))
    assert (wrong, len(backends)) == ([], 1)


@on_one_thread
async def test_tasks_beside_held_transaction_are_refused(stores: list[UUID]) -> None:
    is_held, were_refused = asyncio.Event(), asyncio.Event()

    async def on_its_own_thread() -> None:
        async with own_thread(), tenant_context(stores[1]):
            assert await visible() == [stores[1]]

    async def holder() -> None:
        async with tenant_context(stores[0]):
            is_held.set()
            await were_refused.wait()
            assert await visible() == [stores[0]]

    holding = asyncio.create_task(holder())
    await is_held.wait()
    for refused in (
        visible,
        visible_in_a_transaction,
        tenant_context(stores[0]).__aenter__,
        tenant_context(stores[1], atomic=False).__aenter__,
    ):
        with pytest.raises(TenantContextError, match=f"another context, of store {stores[0]}"):
            await refused()
    await apart(on_its_own_thread())
    were_refused.set()
    await holding
    async with tenant_context(stores[1]):
        assert await visible() == [stores[1]]


@pytest.mark.parametrize("switched", [False, True])
@on_one_thread
async def test_context_ends_beside_held_transaction(stores: list[UUID], switched: bool) -> None:
    """It does not put its own outer store, or none, on the transaction of the other task."""
    may_begin, began, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def holder() -> None:
        await may_begin.wait()
        async with tenant_context(stores[1]):
            await add("committed")
            began.set()
            await ended.wait()
            assert await visible() == [stores[1]]

    holding = asyncio.create_task(holder())
    inner = tenant_context(stores[2], atomic=False, switch=True) if switched else nullcontext()
    async with tenant_context(stores[0], atomic=False), inner:
        may_begin.set()
        await began.wait()
    ended.set()
    await holding
    assert await names() == ["committed"]


@on_one_thread
async def test_cancelled_tasks_leave_nothing_behind(stores: list[UUID]) -> None:
    chance = random.Random(4)
    completed: set[str] = set()

    async def one(number: int, atomic: bool) -> None:
        store = stores[number % 3]
        async with tenant_context(store, atomic=atomic):
            assert await visible() == [store]
            await add(f"{number}")
            assert await visible() == [store]
        completed.add(f"{number}")

    async def cancelled(number: int, *, atomic: bool, within_s: float) -> None:
        """Cancel a task at once, after a random time or, every third, not at all."""
        work = asyncio.create_task(one(number, atomic))
        await asyncio.wait([work], timeout=[None, 0, chance.random() * within_s][number % 3])
        work.cancel()
        await asyncio.wait([work])
        if not work.cancelled():
            work.result()

    for number in range(60):
        await cancelled(number, atomic=True, within_s=0.03)
        await assert_no_store()
    await asyncio.gather(*(cancelled(number, atomic=False, within_s=1) for number in range(60, 120)))
    await assert_no_store()
    async with tenant_context(stores[0]):
        assert await visible() == [stores[0]]
    assert {f"{number}" for number in range(0, 120, 3)} <= completed <= set(await names())


@on_one_thread
async def test_task_cancelled_while_entering(stores: list[UUID]) -> None:
    """It has left the context when it ends."""
    entering, go_on = threading.Event(), threading.Event()

    def stop(**_: object) -> None:
        entering.set()
        assert go_on.wait(LIMIT_S)

    async def cancelled(task: asyncio.Task[Any]) -> None:
        await asyncio.to_thread(entering.wait, LIMIT_S)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await assert_no_store()
        entering.clear()
        go_on.clear()

    busy = asyncio.create_task(sync_to_async(stop)())  # the thread, so that the step has to wait
    await cancelled(asyncio.create_task(tenant_context(stores[0]).__aenter__()))
    await busy
    await sync_to_async(connections.close_all)()
    with connected(connection_created, stop):
        await cancelled(asyncio.create_task(tenant_context(stores[0]).__aenter__()))


@on_one_thread
async def test_child_task_has_store_until_block_ends(stores: list[UUID]) -> None:
    ended = asyncio.Event()

    async def child() -> list[UUID]:
        inside = await visible()
        await ended.wait()
        await assert_no_store()
        return inside

    async def without_a_store() -> None:
        assert current_store_id() is None

    for atomic in (True, False):
        ended.clear()
        async with tenant_context(stores[0], atomic=atomic):
            started = asyncio.create_task(child())
            await apart(without_a_store())
            for views in await asyncio.gather(visible(), visible()):
                assert views == [stores[0]]
        async with tenant_context(stores[1], atomic=False):
            ended.set()
            assert await started == [stores[0]]


@on_one_thread
async def test_nested_task_outlives_transaction(stores: list[UUID]) -> None:
    """It ends with an error."""
    inside, ended = asyncio.Event(), asyncio.Event()

    async def child() -> None:
        async with tenant_context(stores[0]):
            inside.set()
            await ended.wait()

    context = tenant_context(stores[0])
    await context.__aenter__()
    await add("never committed")
    started = asyncio.create_task(child())
    await inside.wait()
    with pytest.raises(TenantContextError, match="another task"):
        await context.__aexit__(None, None, None)
    ended.set()
    with pytest.raises(TransactionBroken):
        await started
    assert await visible() == []
    async with tenant_context(stores[1]):
        assert await visible() == [stores[1]]
    assert await names() == []


def test_connection_below_async_to_sync(stores: list[UUID]) -> None:
    """It is the caller's."""

    @async_to_sync
    async def inner() -> list[UUID]:
        async with tenant_context(stores[0]):
            return await visible()

    with transaction.atomic():
        assert inner() == [stores[0]]
        assert list(Store.objects.all()) == []
    with tenant_context(stores[0], atomic=False):
        assert inner() == [stores[0]]
    with tenant_context(stores[0]):
        assert inner() == [stores[0]]
    with tenant_context(stores[1]), pytest.raises(TenantContextError, match="switch=True"):
        inner()
