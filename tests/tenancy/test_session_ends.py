"""Ends contexts on a session in every bad way, and looks that the next to use the connection finds it clean."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from django.db import connections, transaction
from django.db.utils import DatabaseError, OperationalError

from project.salon.models import Store
from salon_jobs import current_store_id
from salon_jobs.core.errors import TenantContextError
from tests.e2e.worker_process import eventually
from tests.support import change, seen
from tests.tenancy.pooled import POOLED, backend, carried, in_session, in_thread, visible

SET_CONFIG = "FUNCTION pg_catalog.set_config(text, text, boolean)"


@contextmanager
def every_set_fails() -> Generator[None]:
    """Make every set fail, really: the right to it is revoked in this database. Django needs it to connect."""
    change(f"REVOKE EXECUTE ON {SET_CONFIG} FROM PUBLIC")
    try:
        yield
    finally:
        change(f"GRANT EXECUTE ON {SET_CONFIG} TO PUBLIC")


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
