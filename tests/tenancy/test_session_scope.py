"""Puts stores on whole sessions, on a pool of one connection and on one that persists, and looks what they leave."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.signals import request_finished, request_started
from django.db import connection, connections, transaction
from django.db.utils import DatabaseError, OperationalError

from project.salon.models import Store
from salon_jobs import current_store_id, reset_store, tenant_context
from salon_jobs.core.errors import TenantContextError
from salon_jobs.tenancy.context import TenantContext
from tests.conftest import ROOT
from tests.e2e.worker_process import eventually
from tests.support import change, seen

POOLED = "pooled"
SET_CONFIG = "FUNCTION pg_catalog.set_config(text, text, boolean)"


@pytest.fixture(params=["default", "web"], ids=["worker", "web"])
def pool(stores: list[UUID], request: pytest.FixtureRequest) -> Iterator[Any]:
    """Give an alias with a pool of one connection, as the worker role or the web role."""
    yield from pool_of_one(request.param, {"reset": reset_store})


@pytest.fixture
def pool_without_reset(stores: list[UUID]) -> Iterator[Any]:
    """Give one whose returned connections nobody resets."""
    yield from pool_of_one("default", {})


def pool_of_one(role: str, options: dict[str, Any]) -> Iterator[Any]:
    settings = copy.deepcopy(connections.settings[role])
    settings["OPTIONS"]["pool"] = {"min_size": 1, "max_size": 1, "timeout": 10, **options}
    settings.update(CONN_MAX_AGE=0, CONN_HEALTH_CHECKS=False)
    connections.settings[POOLED] = settings
    wrapper: Any = connections[POOLED]
    try:
        yield wrapper
    finally:
        wrapper.close()
        wrapper.close_pool()
        del connections[POOLED], connections.settings[POOLED]


@contextmanager
def every_set_fails() -> Generator[None]:
    """Make every set fail, really: the right to it is revoked in this database. Django needs it to connect."""
    change(f"REVOKE EXECUTE ON {SET_CONFIG} FROM PUBLIC")
    try:
        yield
    finally:
        change(f"GRANT EXECUTE ON {SET_CONFIG} TO PUBLIC")


def in_session(store: UUID, using: str = POOLED, **options: Any) -> TenantContext:
    return tenant_context(store, atomic=False, scope="session", using=using, **options)


def visible(using: str = POOLED) -> list[UUID]:
    """Return the stores that a statement outside a transaction sees."""
    return list(Store.objects.using(using).order_by("id").values_list("pk", flat=True))


def backend(using: str = POOLED) -> int:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def carried(using: str = POOLED) -> str:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT coalesce(current_setting('app.current_store_id', true), '')")
        return str(cursor.fetchone()[0])


def in_thread(work: Callable[[], None]) -> None:
    """Run in a new thread, which takes its own connection and gives it back."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


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


def fail_in_python() -> None:
    raise ZeroDivisionError


def fail_in_the_database() -> None:
    connections[POOLED].cursor().execute("SELECT nonsense")


def fail_in_a_transaction() -> None:
    with transaction.atomic(using=POOLED):
        connections[POOLED].cursor().execute("SELECT nonsense")


def break_a_transaction_by_hand() -> None:
    connections[POOLED].cursor().execute("BEGIN")
    connections[POOLED].cursor().execute("SELECT nonsense")


def lose_the_backend() -> None:
    change("SELECT pg_terminate_backend(%s, 10000)", backend())
    visible()


def lose_the_backend_in_a_transaction() -> None:
    with transaction.atomic(using=POOLED):
        lose_the_backend()


def close_in_a_transaction() -> None:
    with transaction.atomic(using=POOLED):
        visible()
        connections[POOLED].close()
        visible()


@pytest.mark.parametrize(
    ("happens", "error"),
    [
        (fail_in_python, ZeroDivisionError),
        (fail_in_the_database, DatabaseError),
        (fail_in_a_transaction, DatabaseError),
        (break_a_transaction_by_hand, DatabaseError),
        (lose_the_backend, OperationalError),
        (lose_the_backend_in_a_transaction, DatabaseError),
        (close_in_a_transaction, DatabaseError),
    ],
)
def test_whatever_happened_the_next_one_finds_it_clean(
    stores: list[UUID], pool: Any, happens: Callable[[], None], error: type[Exception]
) -> None:
    with pytest.raises(error), in_session(stores[0]):
        happens()
    assert (visible(), carried(), current_store_id()) == ([], "", None)
    pool.close()
    found: list[object] = []
    in_thread(lambda: found.extend((visible(), carried())))
    assert found == [[], ""]
    with in_session(stores[1]):
        assert visible() == [stores[1]]


@pytest.mark.parametrize("kind", ["literal", "autocommit"])
def test_a_transaction_that_is_left_open_is_rolled_back_loudly(stores: list[UUID], pool: Any, kind: str) -> None:
    context = in_session(stores[0])
    context.__enter__()
    first = backend()
    if kind == "literal":
        pool.cursor().execute("BEGIN")
    else:
        pool.set_autocommit(False)
    Store.objects.using(POOLED).update(name="never committed")
    with pytest.raises(TenantContextError, match="inside a transaction or without autocommit"):
        context.__exit__(None, None, None)
    assert (visible(), carried(), backend() == first) == ([], "", False)
    assert seen("SELECT count(*) FROM store WHERE name = 'never committed'") == [(0,)]


def test_a_backend_that_is_gone_at_the_end_is_no_error(stores: list[UUID], pool: Any) -> None:
    with in_session(stores[0]):
        first = backend()
        change("SELECT pg_terminate_backend(%s, 10000)", first)
    assert (visible(), carried(), backend() == first) == ([], "", False)


def test_a_connection_whose_reset_fails_in_the_block_is_discarded(
    stores: list[UUID], pool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    context = in_session(stores[0])
    context.__enter__()
    first = backend()
    with every_set_fails():
        context.__exit__(None, None, None)
        assert pool.connection is None
    assert (visible(), carried(), backend() == first) == ([], "", False)
    assert "connection_discarded database=pooled reason=permission denied for function set_config" in caplog.text


def test_a_connection_whose_reset_fails_in_the_pool_is_discarded(stores: list[UUID], pool: Any) -> None:
    with in_session(stores[0]):
        first = backend()
        with every_set_fails():
            pool.close()
            eventually(lambda: seen("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", first) == [(0,)])
    assert (visible(), carried(), backend() == first) == ([], "", False)


def test_a_store_that_can_not_be_put_on_is_an_error(stores: list[UUID], pool: Any) -> None:
    first = backend()
    with every_set_fails(), pytest.raises(DatabaseError, match="permission denied"):
        in_session(stores[0]).__enter__()
    assert (visible(), current_store_id(), backend() == first) == ([], None, False)
    pool.close()
    pool.settings_dict["AUTOCOMMIT"] = False
    with in_session(stores[0]):
        for _ in range(2):
            with pytest.raises(TenantContextError, match="without autocommit"):
                visible()


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
        TenantContextError, match=r"\['pooled'\]\['OPTIONS'\]\['pool'\]\['reset'\] = salon_jobs.reset_store"
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
        assert await sync_to_async(visible)() == []

    work()


@pytest.mark.parametrize("session", [True, False])
def test_a_context_that_a_generator_leaves_open_ends_with_the_request(stores: list[UUID], session: bool) -> None:
    def rows() -> Iterator[UUID]:
        with in_session(stores[1], using="default") if session else tenant_context(stores[1]):
            yield from visible("default")

    request_started.send(sender=None)
    left = rows()
    assert next(left) == stores[1]
    first = connection.connection.info.backend_pid
    request_finished.send(sender=None)
    assert (current_store_id(), visible("default"), carried("default")) == (None, [], "")
    assert backend("default") != first
    left.close()  # type: ignore[attr-defined]
    with tenant_context(stores[0]):
        assert visible("default") == [stores[0]]


def test_a_context_around_a_request_goes_on(stores: list[UUID]) -> None:
    with tenant_context(stores[0], atomic=False):
        request_started.send(sender=None)
        with tenant_context(stores[0]):
            assert visible("default") == [stores[0]]
        request_finished.send(sender=None)
        with transaction.atomic():
            assert visible("default") == [stores[0]]


def test_settings_can_import_the_reset_before_django_is_ready() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from salon_jobs import reset_store"],
        cwd=ROOT, env={"DJANGO_SETTINGS_MODULE": "no.such.settings"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
