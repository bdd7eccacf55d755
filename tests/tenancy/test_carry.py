"""Hands the store to threads and tasks on purpose, and shows that it arrives nowhere else."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
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
from tests.support import run_due, seen


def visible() -> list[UUID]:
    """Return the stores this thread's connection sees."""
    return list(Store.objects.order_by("id").values_list("pk", flat=True))


def visible_and_closed() -> list[UUID]:
    """See for a thread that was given nothing."""
    try:
        return visible()
    finally:
        connections.close_all()


def test_a_thread_sees_the_store_it_was_handed_and_only_that_one_does(stores: list[UUID]) -> None:
    found: dict[str, object] = {}

    def look(name: str) -> None:
        found[name] = (visible(), current_store_id())

    def look_alone(name: str) -> None:
        found[name] = (visible_and_closed(), current_store_id())

    with tenant_context(stores[0]):
        threads = [
            threading.Thread(target=carry_store(look), args=["carried"]),
            threading.Thread(target=look_alone, args=["not carried"]),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert visible() == [stores[0]]
    assert found == {"carried": ([stores[0]], stores[0]), "not carried": ([], None)}


def test_it_works_after_the_block_and_on_threads_that_are_used_again(stores: list[UUID]) -> None:
    with tenant_context(stores[0]):
        first = carry_store(visible)
    with tenant_context(stores[1], atomic=False):
        second = carry_store(visible)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(first).result() == [stores[0]]
        assert pool.submit(second).result() == [stores[1]]
        assert pool.submit(visible_and_closed).result() == []
        assert pool.submit(current_store_id).result() is None


def test_it_leaves_a_connection_as_it_was(stores: list[UUID]) -> None:
    with tenant_context(stores[0]):
        carried = carry_store(visible)
        backend = carry_store(lambda: int(connection.connection.info.backend_pid))
    with ThreadPoolExecutor(1) as pool:
        pid = pool.submit(backend).result()
        assert pool.submit(lambda: connection.connection).result() is None
    assert seen("SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND state = 'active'", pid) == [(0,)]
    connection.ensure_connection()
    assert carried() == [stores[0]]
    assert connection.connection is not None, "it was open before"


def test_arguments_results_and_errors_come_through(stores: list[UUID]) -> None:
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
        found = [pk async for pk in Store.objects.values_list("pk", flat=True)]
        assert [current_store_id()] == found
        return found

    handed = []
    for store in stores:
        with tenant_context(store):
            handed.append(carry_store(look, atomic=False))

    async def work() -> None:
        loop = asyncio.get_running_loop()
        started = [loop.create_task(each(), context=contextvars.Context()) for each in handed * 5]
        found = await asyncio.gather(*started)
        assert found == [[store] for store in stores] * 5
        assert current_store_id() is None
        assert await asyncio.to_thread(handed_to_thread) == [stores[0]]
        assert await asyncio.to_thread(visible_and_closed) == []
        await sync_to_async(connections.close_all)()

    with tenant_context(stores[0]):
        handed_to_thread = carry_store(visible)
    context = contextvars.Context()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(context.run, asyncio.run, work()).result()


def test_outside_there_is_nothing_to_carry_and_another_store_is_refused(stores: list[UUID]) -> None:
    with pytest.raises(TenantContextError, match="no store to carry"):
        carry_store(visible)
    with tenant_context(stores[0]):
        carried = carry_store(visible)
        assert carried() == [stores[0]]
    with tenant_context(stores[1]), pytest.raises(TenantContextError, match="switch=True"):
        carried()


def test_a_job_hands_its_store_to_a_thread(stores: list[UUID], hooks: tasks.Hooks, process_id: int) -> None:
    found: list[object] = []

    def body(**_: object) -> None:
        with ThreadPoolExecutor(1) as pool:
            found.append(pool.submit(carry_store(visible)).result())

    hooks.store = body
    tasks.in_store.enqueue(store_id=stores[1])
    assert run_due(process_id) == [Succeeded(finished=True)]
    assert found == [[stores[1]]]
