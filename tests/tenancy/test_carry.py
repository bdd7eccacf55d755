"""Threads and tasks have no store, unless it was handed to them with ``carry_store``."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction

from project.salon.models import Store
from salon_jobs import current_store_id, tenant_context
from salon_jobs.core.errors import TenantContextError
from salon_jobs.core.outcomes import Succeeded
from salon_jobs.tenancy import carry_store
from tests import tasks
from tests.support import elsewhere, in_thread, run_due, seen
from tests.tenancy.probe import in_session, visible
from tests.waiting import eventually


def visible_as() -> tuple[list[UUID], UUID | None]:
    return visible(), current_store_id()


def visible_and_closed() -> list[UUID]:
    try:
        return visible()
    finally:
        connections.close_all()


@pytest.mark.parametrize("session", [True, False])
def test_thread_starts_without_store(stores: list[UUID], session: bool) -> None:
    """Unless the store was handed to it; the caller's stays with the caller."""
    context = in_session(stores[0], using="default") if session else tenant_context(stores[0])
    with context, ThreadPoolExecutor(2) as pool:
        assert in_thread(visible_as) == ([], None)
        carried, bare = pool.submit(carry_store(visible_as)), elsewhere(pool, visible_as)
        assert (carried.result(), bare.result()) == (([stores[0]], stores[0]), ([], None))
        assert visible() == [stores[0]]


def test_thread_with_copied_context(stores: list[UUID]) -> None:
    """It opens the store on its own connection."""

    def work() -> list[list[UUID]]:
        outside = visible()
        with transaction.atomic():
            before = visible()
            with tenant_context(stores[0]):
                inside = visible()
            return [outside, before, inside, visible()]

    with tenant_context(stores[0]):
        context = copy_context()
        assert in_thread(lambda: context.run(work)) == [[], [], [stores[0]], []]
        assert visible() == [stores[0]]


def test_carried_store_outlives_block_and_task(stores: list[UUID]) -> None:
    with tenant_context(stores[0]):
        first = carry_store(visible)
    with tenant_context(stores[1], atomic=False):
        second = carry_store(visible)
    with ThreadPoolExecutor(1) as pool:
        results = [pool.submit(work).result() for work in (first, second, visible_and_closed, current_store_id)]
    assert results == [[stores[0]], [stores[1]], [], None]


def test_connection_stays_open_or_closed(stores: list[UUID]) -> None:
    with tenant_context(stores[0]):
        carried = carry_store(visible)
        backend = carry_store(lambda: int(connection.connection.info.backend_pid))
    with ThreadPoolExecutor(1) as pool:
        pid = pool.submit(backend).result()
        assert pool.submit(lambda: connection.connection).result() is None
    eventually(lambda: seen("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid), [(0,)])
    connection.ensure_connection()
    assert carried() == [stores[0]]
    assert connection.connection is not None, "it was open before"


def test_arguments_results_and_errors(stores: list[UUID]) -> None:
    @transaction.atomic
    def fail(name: str, *, why: str) -> None:
        Store.objects.update(name=name)
        raise ValueError(why)

    with tenant_context(stores[0]):
        assert carry_store(divmod)(7, 2) == (3, 1)
        carried = carry_store(fail, atomic=False)
    assert carried.__name__ == "fail"
    with pytest.raises(ValueError, match="no reason"):
        carried("undone", why="no reason")
    assert seen("SELECT count(*) FROM store WHERE name = 'undone'") == [(0,)]


def test_tasks_see_what_each_was_handed(stores: list[UUID]) -> None:
    async def look() -> list[UUID]:
        stores_seen = [pk async for pk in Store.objects.values_list("pk", flat=True)]
        assert [current_store_id()] == stores_seen
        return stores_seen

    carriers = []
    for store in stores:
        with tenant_context(store):
            carriers.append(carry_store(look, atomic=False))
    with tenant_context(stores[0]):
        handed_to_thread = carry_store(visible)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        started = [loop.create_task(each(), context=Context()) for each in carriers * 5]
        assert await asyncio.gather(*started) == [[store] for store in stores] * 5
        assert current_store_id() is None
        assert await asyncio.to_thread(handed_to_thread) == [stores[0]]
        assert await asyncio.to_thread(visible_and_closed) == []
        await sync_to_async(connections.close_all)()

    in_thread(lambda: Context().run(asyncio.run, work()))


def test_carrying_nothing_or_into_another_store_is_refused(stores: list[UUID]) -> None:
    with pytest.raises(TenantContextError, match="no store to carry"):
        carry_store(visible)
    with tenant_context(stores[0]):
        carried = carry_store(visible)
        assert carried() == [stores[0]]
    with tenant_context(stores[1]), pytest.raises(TenantContextError, match="switch=True"):
        carried()


def test_job_hands_its_store_to_thread(stores: list[UUID], hooks: tasks.Hooks, process_id: int) -> None:
    stores_seen: list[object] = []
    hooks.store = lambda **_: stores_seen.append(in_thread(carry_store(visible)))
    tasks.in_store.enqueue(store_id=stores[1])
    assert run_due(process_id) == [Succeeded(finished=True)]
    assert stores_seen == [[stores[1]]]
