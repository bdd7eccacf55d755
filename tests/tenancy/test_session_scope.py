"""Stores on whole sessions, on a pool of one connection and on one that persists, and every bad end of theirs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, connections, transaction
from django.db.utils import DatabaseError, OperationalError

from project.salon.models import Store
from salon_jobs import current_store_id, tenant_context
from salon_jobs.core.errors import TenantContextError
from tests.interpreter import ROOT
from tests.support import change, in_thread, seen
from tests.tenancy.probe import (
    POOLED,
    backend,
    carried,
    execute,
    fail,
    fail_in_database,
    in_session,
    pool_alias,
    visible,
)
from tests.waiting import eventually

SET_CONFIG = "FUNCTION pg_catalog.set_config(text, text, boolean)"


def state(using: str = POOLED) -> tuple[list[UUID], str, UUID | None]:
    """Return the stores that a statement sees, the store on the session and that of the code."""
    return visible(using), carried(using), current_store_id()


CLEAN: tuple[list[UUID], str, None] = ([], "", None)


def of(store: UUID) -> tuple[list[UUID], str, UUID]:
    return [store], str(store), store


@pytest.mark.parametrize("pool", ["default", "web"], indirect=True)
def test_store_is_set_from_acquiring_to_releasing(stores: list[UUID], pool: Any) -> None:
    assert pool.connection is None
    with in_session(stores[0]):
        assert pool.connection is None, "nothing was acquired yet"
        assert state() == of(stores[0])
        with transaction.atomic(using=POOLED):
            assert visible(POOLED) == [stores[0]]
            assert Store.objects.using(POOLED).update(name="changed") == 1
        first = backend(POOLED)
        pool.close()
        assert in_thread(lambda: (backend(POOLED), state())) == (first, CLEAN), "it is clean for others"
        assert (backend(POOLED), state()) == (first, of(stores[0])), "it is set again when it comes back"
    assert state() == CLEAN
    pool.close()
    assert (backend(POOLED), state()) == (first, CLEAN)
    assert seen("SELECT name FROM store ORDER BY id") == [("changed",), ("Salon 1",), ("Salon 2",)]


@pytest.mark.parametrize("pool", ["default", "web"], indirect=True)
def test_stores_follow_each_other_on_one_connection(stores: list[UUID], pool: Any) -> None:
    def use(store: UUID) -> tuple[int, object]:
        with in_session(store):
            return backend(POOLED), state()

    first = backend(POOLED)
    assert use(stores[0]) == (first, of(stores[0])), "an open connection gets it at once"
    pool.close()
    assert in_thread(lambda: use(stores[1])) == (first, of(stores[1]))
    assert use(stores[2]) == (first, of(stores[2]))


def test_nested_and_switched(stores: list[UUID], pool: Any) -> None:
    with in_session(stores[0]):
        for inner, store in (
            (in_session(stores[0]), stores[0]),
            (tenant_context(stores[0], using=POOLED), stores[0]),
            (in_session(stores[1], switch=True), stores[1]),
            (tenant_context(stores[2], switch=True, using=POOLED), stores[2]),
        ):
            with inner:
                assert visible(POOLED) == [store]
                if not pool.in_atomic_block:
                    pool.close()
                    assert visible(POOLED) == [store]
            assert visible(POOLED) == [stores[0]]
        with pytest.raises(TenantContextError, match="switch=True"):
            in_session(stores[1]).__enter__()
        with pytest.raises(TenantContextError, match="between transactions"):
            tenant_context(stores[1], atomic=False, switch=True, using=POOLED).__enter__()
        assert visible(POOLED) == [stores[0]]
    assert visible(POOLED) == []


@pytest.mark.parametrize("autocommit", [True, False])
def test_reset_of_pool_clears_store_set_by_hand(stores: list[UUID], pool: Any, autocommit: bool) -> None:
    pool.set_autocommit(autocommit)
    execute(f"SELECT set_config('app.current_store_id', '{stores[0]}', false)", using=POOLED)
    if not autocommit:
        pool.commit()
    assert visible(POOLED) == [stores[0]]
    first = backend(POOLED)
    pool.close()
    assert (backend(POOLED), state()) == (first, CLEAN)


def test_pool_without_reset_is_refused(stores: list[UUID]) -> None:
    reset = r"\['pooled'\]\['OPTIONS'\]\['pool'\]\['reset'\] = salon_jobs.tenancy.reset_store"
    with pool_alias("default"), pytest.raises(TenantContextError, match=reset):
        in_session(stores[0]).__enter__()


def test_session_needs_connection_outside_transaction(stores: list[UUID], pool: Any) -> None:
    wrong: Any = "for ever"
    with pytest.raises(TenantContextError, match="atomic=False"):
        tenant_context(stores[0], scope="session", using=POOLED)
    with pytest.raises(TenantContextError, match="'transaction' or 'session'"):
        tenant_context(stores[0], scope=wrong)
    with transaction.atomic(using=POOLED), pytest.raises(TenantContextError, match="inside a transaction"):
        in_session(stores[0]).__enter__()
    execute("BEGIN", using=POOLED)
    with pytest.raises(TenantContextError, match="inside a transaction"):
        in_session(stores[0]).__enter__()
    pool.close()
    pool.set_autocommit(False)
    with pytest.raises(TenantContextError, match="without autocommit"):
        in_session(stores[0]).__enter__()


def test_persistent_connection_goes_on_without_store(stores: list[UUID]) -> None:
    first = backend()
    with in_session(stores[0], using="default"):
        assert (state("default"), backend()) == (of(stores[0]), first)
    assert (state("default"), backend()) == (CLEAN, first)
    with in_session(stores[0], using="default"):
        connection.close()
        assert visible() == [stores[0]]
        assert backend() != first


def test_session_of_coroutine(stores: list[UUID], pool: Any) -> None:
    @async_to_sync
    async def work() -> None:
        look = sync_to_async(visible)
        async with in_session(stores[0]):
            assert [pk async for pk in Store.objects.using(POOLED).values_list("pk", flat=True)] == [stores[0]]
            assert await look(POOLED) == [stores[0]]
            with pytest.raises(TenantContextError, match="another context"):
                await asyncio.get_running_loop().create_task(look(POOLED), context=Context())
        assert await look(POOLED) == []

    work()


@pytest.mark.process
def test_settings_import_reset_before_django_is_ready() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from salon_jobs.tenancy import reset_store"],
        cwd=ROOT,
        env={"DJANGO_SETTINGS_MODULE": "no.such.settings"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# Bad ends


@contextmanager
def every_set_fails() -> Generator[None]:
    """Make every set fail, really: the right to it is revoked in this database. Django needs it to connect."""
    change(f"REVOKE EXECUTE ON {SET_CONFIG} FROM PUBLIC")
    try:
        yield
    finally:
        change(f"GRANT EXECUTE ON {SET_CONFIG} TO PUBLIC")


def lose_backend() -> None:
    change("SELECT pg_terminate_backend(%s, 60000)", backend(POOLED))
    visible(POOLED)


def in_transaction(happens: Callable[[], None]) -> Callable[[], None]:
    return transaction.atomic(using=POOLED)(happens)


def close() -> None:
    visible(POOLED)
    connections[POOLED].close()
    visible(POOLED)


@pytest.mark.parametrize(
    ("happens", "error"),
    [
        pytest.param(fail, ZeroDivisionError, id="error"),
        pytest.param(partial(fail_in_database, POOLED), DatabaseError, id="database error"),
        pytest.param(in_transaction(partial(fail_in_database, POOLED)), DatabaseError, id="error in a transaction"),
        pytest.param(partial(execute, "BEGIN", "SELECT nonsense", using=POOLED), DatabaseError, id="broken by hand"),
        pytest.param(lose_backend, OperationalError, id="lost backend"),
        pytest.param(in_transaction(lose_backend), DatabaseError, id="lost backend in a transaction"),
        pytest.param(in_transaction(close), DatabaseError, id="closed in a transaction"),
    ],
)
def test_next_session_is_clean(
    stores: list[UUID], pool: Any, happens: Callable[[], None], error: type[Exception]
) -> None:
    with pytest.raises(error), in_session(stores[0]):
        happens()
    assert state() == CLEAN
    pool.close()
    assert in_thread(state) == CLEAN
    with in_session(stores[1]):
        assert state() == of(stores[1])


@pytest.mark.parametrize("kind", ["literal", "autocommit"])
def test_open_transaction_is_rolled_back_with_error(stores: list[UUID], pool: Any, kind: str) -> None:
    context = in_session(stores[0])
    context.__enter__()
    first = backend(POOLED)
    if kind == "literal":
        execute("BEGIN", using=POOLED)
    else:
        pool.set_autocommit(False)
    Store.objects.using(POOLED).update(name="never committed")
    with pytest.raises(TenantContextError, match="inside a transaction or without autocommit"):
        context.__exit__(None, None, None)
    assert (state(), backend(POOLED) == first) == (CLEAN, False)
    assert seen("SELECT count(*) FROM store WHERE name = 'never committed'") == [(0,)]


def test_backend_gone_at_end_is_no_error(stores: list[UUID], pool: Any) -> None:
    with in_session(stores[0]):
        first = backend(POOLED)
        change("SELECT pg_terminate_backend(%s, 60000)", first)
    assert (state(), backend(POOLED) == first) == (CLEAN, False)


@pytest.mark.parametrize("in_pool", [False, True])
def test_connection_whose_reset_fails_is_discarded(
    stores: list[UUID], pool: Any, caplog: pytest.LogCaptureFixture, in_pool: bool
) -> None:
    """By the end of the block, or by the pool."""
    context = in_session(stores[0])
    context.__enter__()
    first = backend(POOLED)
    with every_set_fails():
        if in_pool:
            pool.close()
            eventually(lambda: seen("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", first), [(0,)])
        else:
            context.__exit__(None, None, None)
            assert pool.connection is None
            log = "connection_discarded database=pooled reason=permission denied for function set_config"
            assert log in caplog.text
    if in_pool:
        context.__exit__(None, None, None)
    assert (state(), backend(POOLED) == first) == (CLEAN, False)


def test_store_that_cannot_be_set_is_error(stores: list[UUID], pool: Any) -> None:
    first = backend(POOLED)
    with every_set_fails(), pytest.raises(DatabaseError, match="permission denied"):
        in_session(stores[0]).__enter__()
    assert (state(), backend(POOLED) == first) == (CLEAN, False)
    pool.close()
    pool.settings_dict["AUTOCOMMIT"] = False
    with in_session(stores[0]):
        for _ in range(2):
            with pytest.raises(TenantContextError, match="without autocommit"):
                visible(POOLED)
