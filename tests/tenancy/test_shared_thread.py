"""Coroutines without a thread of their own, as Django Channels runs its consumers: many messages at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import Context
from typing import Any
from uuid import UUID, uuid4

import pytest
from asgiref.sync import SyncToAsync, sync_to_async
from django.contrib.auth.models import User
from django.db import close_old_connections, connections

from project.salon.models import Customer, Store
from salon_jobs import current_store_id, tenant_context
from salon_jobs.core.errors import TenantContextError
from salon_jobs.tenancy import carry_store, threads
from tests.support import seen
from tests.tenancy.probe import backend
from tests.waiting import eventually

MESSAGES = 50
Message = Callable[[UUID], Awaitable[list[UUID]]]


class DatabaseSyncToAsync(SyncToAsync[..., Any]):
    """What Django Channels calls ``database_sync_to_async``."""

    def thread_handler(self, loop: Any, *args: Any, **kwargs: Any) -> Any:
        close_old_connections()
        try:
            return super().thread_handler(loop, *args, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            close_old_connections()


def add(store: UUID) -> None:
    Customer.objects.create(id=uuid4(), store_id=store, name=f"of {store}", email="")


async def visible() -> list[UUID]:
    return [pk async for pk in Store.objects.values_list("pk", flat=True)]


async def atomically(store: UUID) -> list[UUID]:
    async with tenant_context(store):
        await sync_to_async(add)(store)
        return await visible()


async def by_statement(store: UUID) -> list[UUID]:
    async with tenant_context(store, atomic=False):
        await sync_to_async(add)(store)
        return await visible()


async def on_the_session(store: UUID) -> list[UUID]:
    async with tenant_context(store, atomic=False, scope="session"):
        await sync_to_async(add)(store)
        return await visible()


async def in_a_function(store: UUID) -> list[UUID]:
    def work() -> list[UUID]:
        with tenant_context(store):
            add(store)
            return [*Store.objects.values_list("pk", flat=True)]

    return list(await DatabaseSyncToAsync(work)())


async def carried(store: UUID) -> list[UUID]:
    """A task that is started in a context, and outlives it."""
    async with tenant_context(store, atomic=False):
        work = carry_store(atomically)
    return await work(store)


WAYS: list[Message] = [atomically, by_statement, on_the_session, in_a_function, carried]


@pytest.fixture
def run(stores: list[UUID], web_role: None) -> Any:
    """Run a coroutine on a loop of its own; then no connection is left but that of the thread that all share."""

    def run_and_close(work: Any) -> Any:
        async def main() -> Any:
            try:
                return await work
            finally:
                await sync_to_async(connections.close_all)()

        return asyncio.run(main(), debug=False)

    return run_and_close


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_messages_of_two_stores_at_once(run: Any, stores: list[UUID], way: Message) -> None:
    async def message(number: int) -> None:
        store = stores[number % 2]
        assert await way(store) == [store]
        assert current_store_id() is None

    async def no_store(_: int) -> None:
        """The query of a user as a socket connects, which belongs to no store."""
        assert not await User.objects.filter(is_staff=False).aexists()  # the admin may be served beside
        assert await DatabaseSyncToAsync(Store.objects.count)() == 0

    async def all_at_once() -> None:
        await asyncio.gather(*(one(number) for number in range(MESSAGES) for one in (message, no_store)))

    run(all_at_once())
    written = seen("SELECT store_id, name, count(*) FROM customer GROUP BY 1, 2 ORDER BY 1")
    assert written == [(store, f"of {store}", MESSAGES // 2) for store in stores[:2]]


def test_block_has_connection_of_its_own(run: Any, stores: list[UUID]) -> None:
    """Inside it is one, for nested blocks and child tasks too; before and after it is the shared one."""

    async def look() -> None:
        shared = await sync_to_async(backend)()
        async with tenant_context(stores[0], atomic=False), tenant_context(stores[0]):
            own = await sync_to_async(backend)()
            await sync_to_async(add)(stores[0])
            async with tenant_context(stores[0]):
                assert await Customer.objects.acount() == 1
            inside = await asyncio.gather(*(sync_to_async(backend)() for _ in range(3)))
            others = await asyncio.create_task(sync_to_async(backend)(), context=Context())
        assert (own != shared, set(inside), others) == (True, {own}, shared)
        assert await sync_to_async(backend)() == shared
        assert (current_store_id(), await visible()) == (None, [])

    run(look())


def test_few_connections_serve_many_blocks(run: Any, stores: list[UUID]) -> None:
    backends: set[int] = set()
    open_now = most = 0
    full = asyncio.Barrier(threads.AT_ONCE)

    async def message(number: int) -> None:
        nonlocal open_now, most
        async with tenant_context(stores[number % 2]):
            open_now += 1
            most = max(most, open_now)
            backends.add(await sync_to_async(backend)())
            await full.wait()
            open_now -= 1

    async def all_at_once() -> None:
        await asyncio.gather(*map(message, range(MESSAGES)))

    run(all_at_once())
    assert (most, len(backends)) == (threads.AT_ONCE, MESSAGES)
    assert_closed(backends)


def assert_closed(backends: set[int]) -> None:
    def left() -> int:
        return int(seen("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s)", list(backends))[0][0])

    eventually(left, 0)


def test_blocks_that_wait_for_each_other_fail(run: Any, stores: list[UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PATIENCE_S", 0.05)

    async def wait_for_another(depth: int) -> None:
        async with tenant_context(stores[0]):
            await asyncio.create_task(wait_for_another(depth + 1), context=Context())

    with pytest.raises(TenantContextError, match="10 contexts with a transaction or session are open, and none has"):
        run(wait_for_another(0))


def test_cancelled_blocks_give_their_turns_back(run: Any, stores: list[UUID]) -> None:
    """While they wait for one, begin, work or end."""

    async def message(number: int) -> None:
        async with tenant_context(stores[number % 2]):
            await sync_to_async(add)(stores[number % 2])
            await visible()

    async def all_at_once() -> None:
        for round_ in range(4):
            tasks = [asyncio.create_task(message(number)) for number in range(MESSAGES)]
            for _ in range(20 * round_):
                await asyncio.sleep(0)
            for number, task in enumerate(tasks):
                if number % 3:
                    task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(end) for end in ended} <= {type(None), asyncio.CancelledError}
            assert ended[::3] == [None] * len(ended[::3])
            assert (current_store_id(), await visible()) == (None, [])
        for number in range(threads.AT_ONCE + 1):
            await message(number)

    run(all_at_once())


def test_task_that_outlives_block_shares_again(run: Any, stores: list[UUID]) -> None:
    async def look() -> None:
        ended = asyncio.Event()

        async def child() -> int:
            assert await visible() == [stores[0]]
            await ended.wait()
            assert (current_store_id(), await visible()) == (None, [])
            return int(await sync_to_async(backend)())

        async with tenant_context(stores[0]):
            started = asyncio.create_task(child())
            assert await visible() == [stores[0]]
            await asyncio.sleep(0)
        ended.set()
        assert await started == await sync_to_async(backend)()

    run(look())


def test_generator_ends_in_another_task(run: Any, stores: list[UUID]) -> None:
    async def rows() -> AsyncGenerator[Any]:
        async with tenant_context(stores[0]):
            await sync_to_async(add)(stores[0])
            yield await visible()

    async def look() -> None:
        generator = rows()
        assert await anext(generator) == [stores[0]]
        await asyncio.create_task(generator.aclose(), context=Context())
        assert await visible() == []
        async with tenant_context(stores[1]):
            assert await visible() == [stores[1]]

    run(look())
    assert seen("SELECT count(*) FROM customer") == [(0,)]
