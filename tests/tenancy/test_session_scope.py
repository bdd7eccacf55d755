"""Puts stores on whole sessions, on a pool of one connection and on one that persists."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextvars import Context
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, connections, transaction

from project.salon.models import Store
from salon_jobs import current_store_id, tenant_context
from salon_jobs.core.errors import TenantContextError
from tests.conftest import ROOT
from tests.support import seen
from tests.tenancy.pooled import POOLED, backend, carried, in_session, in_thread, visible


def test_it_is_set_when_the_connection_is_acquired_and_off_when_it_is_released(stores: list[UUID], pool: Any) -> None:
    assert seen("SELECT count(*) FROM store") == [(3,)]
    assert pool.connection is None
    with in_session(stores[0]):
        assert pool.connection is None, "nothing was acquired yet"
        assert (visible(), carried(), current_store_id()) == ([stores[0]], str(stores[0]), stores[0])
        with transaction.atomic(using=POOLED):
            assert visible() == [stores[0]]
            assert Store.objects.using(POOLED).update(name="changed") == 1
        first = backend()
    assert (visible(), carried(), current_store_id()) == ([], "", None)
    pool.close()
    assert (backend(), visible(), carried()) == (first, [], "")
    names = seen("SELECT name FROM store ORDER BY id")
    assert names == [("changed",), ("Salon 1",), ("Salon 2",)]


def test_an_open_connection_gets_it_at_once(stores: list[UUID], pool: Any) -> None:
    first = backend()
    with in_session(stores[0]):
        assert (carried(), backend()) == (str(stores[0]), first)
    assert carried() == ""


def test_two_stores_follow_each_other_on_the_same_physical_connection(stores: list[UUID], pool: Any) -> None:
    found: list[tuple[int, list[UUID]]] = []

    def use(store: UUID) -> None:
        with in_session(store):
            found.append((backend(), visible()))
        connections[POOLED].close()

    use(stores[0])
    in_thread(lambda: use(stores[1]))
    use(stores[2])
    assert found == [(found[0][0], [store]) for store in stores]


def test_a_connection_that_is_released_inside_is_clean_for_others_and_set_again_when_it_comes_back(
    stores: list[UUID], pool: Any
) -> None:
    found: list[object] = []
    with in_session(stores[0]):
        first = backend()
        pool.close()
        in_thread(lambda: found.extend((backend(), visible(), carried())))
        assert found == [first, [], ""]
        assert (visible(), carried(), backend()) == ([stores[0]], str(stores[0]), first)
        pool.close()
    assert (visible(), carried(), backend()) == ([], "", first)


def test_nested_and_switched(stores: list[UUID], pool: Any) -> None:
    with in_session(stores[0]):
        with in_session(stores[0]):
            assert visible() == [stores[0]]
        with tenant_context(stores[0], using=POOLED):
            assert visible() == [stores[0]]
        with in_session(stores[1], switch=True):
            assert visible() == [stores[1]]
            pool.close()
            assert visible() == [stores[1]]
        assert visible() == [stores[0]]
        with tenant_context(stores[2], switch=True, using=POOLED):
            assert visible() == [stores[2]]
        assert visible() == [stores[0]]
        with pytest.raises(TenantContextError, match="switch=True"):
            in_session(stores[1]).__enter__()
        with pytest.raises(TenantContextError, match="between transactions"):
            tenant_context(stores[1], atomic=False, switch=True, using=POOLED).__enter__()
        assert visible() == [stores[0]]
    assert visible() == []


def test_the_pools_reset_takes_off_what_was_set_by_hand_and_in_manual_transactions(
    stores: list[UUID], pool: Any
) -> None:
    for autocommit in (True, False):
        if not autocommit:
            pool.set_autocommit(False)
        with pool.cursor() as cursor:
            cursor.execute("SELECT set_config('app.current_store_id', %s, false)", [str(stores[0])])
        if not autocommit:
            pool.commit()
        assert visible() == [stores[0]]
        first = backend()
        pool.close()
        assert (visible(), carried(), backend()) == ([], "", first)


def test_a_pool_that_does_not_reset_is_refused(stores: list[UUID], pool_without_reset: Any) -> None:
    with pytest.raises(
        TenantContextError, match=r"\['pooled'\]\['OPTIONS'\]\['pool'\]\['reset'\] = salon_jobs.tenancy.reset_store"
    ):
        in_session(stores[0]).__enter__()


def test_it_needs_no_transaction_and_begins_in_none(stores: list[UUID], pool: Any) -> None:
    wrong: Any = "for ever"
    with pytest.raises(TenantContextError, match="atomic=False"):
        tenant_context(stores[0], scope="session", using=POOLED)
    with pytest.raises(TenantContextError, match="'transaction' or 'session'"):
        tenant_context(stores[0], scope=wrong)
    with transaction.atomic(using=POOLED), pytest.raises(TenantContextError, match="inside a transaction"):
        in_session(stores[0]).__enter__()
    pool.cursor().execute("BEGIN")
    with pytest.raises(TenantContextError, match="inside a transaction"):
        in_session(stores[0]).__enter__()
    pool.close()
    pool.set_autocommit(False)
    with pytest.raises(TenantContextError, match="without autocommit"):
        in_session(stores[0]).__enter__()


def test_a_new_thread_starts_without_it(stores: list[UUID]) -> None:
    found: list[object] = []
    with in_session(stores[0], using="default"):
        in_thread(lambda: found.extend((current_store_id(), visible("default"), carried("default"))))
    assert found == [None, [], ""]


def test_a_connection_that_persists_goes_on_without_it(stores: list[UUID]) -> None:
    first = backend("default")
    with in_session(stores[0], using="default"):
        assert (visible("default"), backend("default")) == ([stores[0]], first)
    assert (visible("default"), carried("default"), backend("default")) == ([], "", first)
    with in_session(stores[0], using="default"):
        connection.close()
        assert visible("default") == [stores[0]]
        assert backend("default") != first


def test_coroutines_see_it_and_other_tasks_are_refused(stores: list[UUID], pool: Any) -> None:
    @async_to_sync
    async def work() -> None:
        async with in_session(stores[0]):
            assert [pk async for pk in Store.objects.using(POOLED).values_list("pk", flat=True)] == [stores[0]]
            assert await sync_to_async(visible)() == [stores[0]]
            with pytest.raises(TenantContextError, match="another context"):
                await asyncio.get_running_loop().create_task(sync_to_async(visible)(), context=Context())
        assert await sync_to_async(visible)() == []

    work()


def test_settings_can_import_the_reset_before_django_is_ready() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from salon_jobs.tenancy import reset_store"],
        cwd=ROOT,
        env={"DJANGO_SETTINGS_MODULE": "no.such.settings"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
