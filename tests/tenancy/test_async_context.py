"""Contexts in coroutines: many tasks on one thread or each on its own, cancelled anywhere, and none mixed."""

from __future__ import annotations

import asyncio
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
from tests.support import seen
from tests.tenancy.asgi import own_thread
from tests.tenancy.probe import backend, visible_in_transaction

Work = Callable[[], Coroutine[Any, Any, None]]


def run(work: Work) -> None:
    """Run as a script would: one thread for the synchronous parts of all tasks, which is not this one."""

    async def main() -> None:
        async with own_thread():
            await work()

    asyncio.run(main())


def apart(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task that inherits nothing, as the one of another request."""
    return asyncio.get_running_loop().create_task(work, context=Context())


async def visible() -> list[UUID]:
    return [pk async for pk in Store.objects.order_by("id").values_list("pk", flat=True)]


visible_in_a_transaction = sync_to_async(visible_in_transaction)


async def add(name: str) -> None:
    store_id = current_store_id()
    assert store_id is not None
    await Customer.objects.acreate(id=uuid4(), store_id=store_id, name=name, email="a@example.com")


def names() -> list[str]:
    return [row[0] for row in seen("SELECT name FROM customer ORDER BY name")]


@pytest.mark.parametrize("atomic", [True, False])
def test_statements_see_the_store_and_none_afterwards(stores: list[UUID], atomic: bool) -> None:
    async def work() -> None:
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
        assert (current_store_id(), await visible(), await visible_in_a_transaction()) == (None, [], [])

    run(work)
    assert names() == ["nested"]


def test_an_error_rolls_back_what_one_transaction_held(stores: list[UUID]) -> None:
    async def work() -> None:
        for name, atomic in (("undone", True), ("kept", False)):
            with suppress(ZeroDivisionError):
                async with tenant_context(stores[0], atomic=atomic):
                    await add(name)
                    raise ZeroDivisionError
        assert await visible() == []

    run(work)
    assert names() == ["kept"]


def test_many_tasks_on_one_thread_and_connection_see_their_own_store_alone(stores: list[UUID]) -> None:
    tasks, rounds = 30, 8
    backends: set[int] = set()
    wrong: list[object] = []

    async def one(number: int) -> None:
        store = stores[number % 3] if number % 5 else None
        expected = [] if store is None else [store]

        async def reads() -> None:
            for _ in range(rounds):
                backends.add(await sync_to_async(backend)())
                views = (await visible_in_a_transaction(), await visible(), current_store_id())
                if views != (expected, expected, store):
                    wrong.append((store, views))

        if store is None:
            await reads()
        else:
            async with tenant_context(store, atomic=False):
                await reads()

    async def work() -> None:
        await asyncio.gather(*map(one, range(tasks)))

    run(work)
    assert (wrong, len(backends)) == ([], 1)


def test_while_one_task_holds_a_transaction_the_others_on_its_thread_are_refused(stores: list[UUID]) -> None:
    async def work() -> None:
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

    run(work)


@pytest.mark.parametrize("switched", [False, True])
def test_a_block_without_a_transaction_ends_beside_one_that_holds_it_and_takes_nothing_from_it(
    stores: list[UUID], switched: bool
) -> None:
    """It would have put its own outer store, or none, on the transaction of the other task."""

    async def work() -> None:
        may_begin, ended = asyncio.Event(), asyncio.Event()
        began = asyncio.Event()

        async def holder() -> None:
            await may_begin.wait()
            async with tenant_context(stores[1]):
                await add("committed")
                began.set()
                await ended.wait()
                assert await visible() == [stores[1]]

        holding = asyncio.create_task(holder())
        async with tenant_context(stores[0], atomic=False):
            inner = tenant_context(stores[2], atomic=False, switch=True) if switched else nullcontext()
            async with inner:
                may_begin.set()
                await began.wait()
        ended.set()
        await holding

    run(work)
    assert names() == ["committed"]


def test_tasks_cancelled_at_any_step_leave_nothing_behind(stores: list[UUID]) -> None:
    chance = random.Random(4)
    completed: list[str] = []

    async def one(number: int, atomic: bool) -> None:
        store = stores[number % 3]
        async with tenant_context(store, atomic=atomic):
            assert await visible() == [store]
            await add(f"{number}")
            assert await visible() == [store]
        completed.append(f"{number}")

    async def cancelled(work: asyncio.Task[None], *, within_s: float) -> None:
        await asyncio.wait([work], timeout=chance.random() * within_s)
        work.cancel()
        await asyncio.wait([work])
        if not work.cancelled():
            work.result()

    async def work() -> None:
        for number in range(60):
            await cancelled(asyncio.create_task(one(number, atomic=True)), within_s=0.03)
            assert (await visible(), await visible_in_a_transaction()) == ([], [])
        at_once = (asyncio.create_task(one(number, atomic=False)) for number in range(60, 120))
        await asyncio.gather(*(cancelled(task, within_s=1) for task in at_once))
        assert (await visible(), await visible_in_a_transaction()) == ([], [])
        async with tenant_context(stores[0]):
            assert await visible() == [stores[0]]

    run(work)
    assert 0 < len(completed) < 120, "some were cancelled, some were not"
    assert set(completed) <= set(names())


def test_a_task_that_is_cancelled_while_it_enters_has_left_when_it_ends(stores: list[UUID]) -> None:
    entering, go_on = threading.Event(), threading.Event()

    def stop(**_: object) -> None:
        entering.set()
        assert go_on.wait(10)

    async def cancelled(task: asyncio.Task[Any]) -> None:
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await visible(), await visible_in_a_transaction()) == ([], [])

    async def work() -> None:
        busy = asyncio.create_task(sync_to_async(stop)())  # the thread, so that the step has to wait
        waiting = asyncio.create_task(tenant_context(stores[0]).__aenter__())
        await asyncio.to_thread(entering.wait, 10)
        await cancelled(waiting)
        await busy
        await sync_to_async(connections.close_all)()
        entering.clear()
        go_on.clear()
        connection_created.connect(stop)
        try:
            running = asyncio.create_task(tenant_context(stores[0]).__aenter__())
            await asyncio.to_thread(entering.wait, 10)
            await cancelled(running)
        finally:
            connection_created.disconnect(stop)

    run(work)


def test_a_child_task_has_the_store_until_the_block_ends(stores: list[UUID]) -> None:
    async def work() -> None:
        ended = asyncio.Event()

        async def child() -> list[UUID]:
            inside = await visible()
            await ended.wait()
            assert (current_store_id(), await visible(), await visible_in_a_transaction()) == (None, [], [])
            return inside

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

    async def without_a_store() -> None:
        assert current_store_id() is None

    run(work)


def test_a_task_that_outlives_the_transaction_it_nested_in_is_ended_loudly(stores: list[UUID]) -> None:
    async def work() -> None:
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

    run(work)
    assert names() == []


def test_below_async_to_sync_it_is_the_callers_connection(stores: list[UUID]) -> None:
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
