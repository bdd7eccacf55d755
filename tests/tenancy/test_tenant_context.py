"""Puts stores on a real connection, as the worker role, and looks what is left of them."""

from __future__ import annotations

import gc
import threading
from contextvars import copy_context
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import DatabaseError, connection, connections, transaction
from django.db.utils import OperationalError, ProgrammingError
from psycopg import IsolationLevel

from project.salon.models import Store
from salon_jobs import current_store_id, tenant_context
from salon_jobs.core.errors import TenantContextError
from salon_jobs.tenancy import active, guc
from tests import tasks
from tests.e2e.worker_process import eventually
from tests.support import seen
from tests.tenancy.round_trips import round_trips


def on_connection() -> str | None:
    """Return what the connection carries now; '' and NULL both mean no store."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT nullif(current_setting('app.current_store_id', true), '')")
        value: str | None = cursor.fetchone()[0]
        return value


def execute(statement: str) -> None:
    """Run a statement that Django knows nothing of."""
    with connection.cursor() as cursor:
        cursor.execute(statement)


def visible() -> list[UUID]:
    """Return the stores this connection sees."""
    return list(Store.objects.order_by("id").values_list("pk", flat=True))


def test_inside_one_store_is_seen_and_outside_none(stores: list[UUID]) -> None:
    assert visible() == []
    with tenant_context(stores[0]):
        assert visible() == [stores[0]]
        assert current_store_id() == stores[0]
    assert visible() == []
    assert current_store_id() is None
    assert on_connection() is None


def test_a_connection_that_was_lost_meanwhile_shows_as_djangos_error_and_is_replaced(stores: list[UUID]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [pid] = cursor.fetchone()
    seen("SELECT pg_terminate_backend(%s, 5000)", pid)
    with pytest.raises(OperationalError), tenant_context(stores[0]):
        pass
    connection.close_if_unusable_or_obsolete()
    with tenant_context(stores[0]):
        assert visible() == [stores[0]]


def test_two_stores_one_after_the_other_on_the_same_physical_connection(stores: list[UUID]) -> None:
    pids = set()
    for store in stores:
        with tenant_context(store), connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.add(cursor.fetchone()[0])
            assert visible() == [store]
    assert len(pids) == 1


def test_nested_same_store_is_fine_and_another_is_refused(stores: list[UUID]) -> None:
    with tenant_context(stores[0]):
        with tenant_context(str(stores[0])):
            assert visible() == [stores[0]]
        assert visible() == [stores[0]]
        with pytest.raises(TenantContextError, match=str(stores[1])), tenant_context(stores[1]):
            pass
        assert visible() == [stores[0]]


@pytest.mark.parametrize("bad", ["", "x'; DROP TABLE store; --", 5, None, "7"])
def test_what_is_no_uuid_is_refused_before_the_database_hears_of_it(stores: list[UUID], bad: object) -> None:
    with pytest.raises(TenantContextError, match="must be a uuid"), tenant_context(bad):  # type: ignore[arg-type]
        pass


def test_an_inner_rollback_keeps_the_outer_store(stores: list[UUID]) -> None:
    with tenant_context(stores[0]):
        with pytest.raises(ZeroDivisionError), transaction.atomic(), tenant_context(stores[0]):
            raise ZeroDivisionError
        assert visible() == [stores[0]]
        with pytest.raises(ProgrammingError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT nonsense")
        assert visible() == [stores[0]]


@pytest.mark.parametrize("fails", [False, True])
def test_a_surrounding_transaction_goes_on_without_the_store(stores: list[UUID], fails: bool) -> None:
    with transaction.atomic():
        try:
            with tenant_context(stores[0]):
                assert visible() == [stores[0]]
                if fails:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        assert visible() == []
        with tenant_context(stores[1]):
            assert visible() == [stores[1]]
        assert on_connection() is None


def test_a_database_error_inside_leaves_the_surrounding_transaction_usable_and_bare(stores: list[UUID]) -> None:
    with transaction.atomic():
        with pytest.raises(ProgrammingError), tenant_context(stores[0]), connection.cursor() as cursor:
            cursor.execute("SELECT nonsense")
        assert visible() == []


def test_without_a_transaction_the_store_is_set_at_every_begin_and_not_between(stores: list[UUID]) -> None:
    with tenant_context(stores[0], atomic=False):
        assert visible() == []
        for _ in range(2):
            with transaction.atomic():
                assert visible() == [stores[0]]
            assert visible() == []
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            raise ZeroDivisionError
        with transaction.atomic():
            assert visible() == [stores[0]]
        with tenant_context(stores[0]):
            assert visible() == [stores[0]]
    with transaction.atomic():
        assert visible() == []


def test_a_store_that_the_server_does_not_keep_is_an_error(stores: list[UUID]) -> None:
    """As where somebody switched autocommit on behind Django's back: every statement is a transaction then."""
    with transaction.atomic():
        raw: Any = connection.connection
        raw.autocommit, raw.isolation_level = True, IsolationLevel.SERIALIZABLE
        with pytest.raises(TenantContextError, match=r"does not carry the store.*outside a transaction"):
            guc.set_local(connections["default"], stores[0])
        assert visible() == []
    connection.close()


def test_setting_a_store_outside_a_transaction_is_an_error_not_a_silent_nothing(stores: list[UUID]) -> None:
    with pytest.raises(TenantContextError, match="inside a transaction"):
        guc.set_local(connection, stores[0])


def test_callbacks_after_the_commit_carry_the_store(stores: list[UUID]) -> None:
    seen: list[object] = []

    def look() -> None:
        seen.append((current_store_id(), visible()))

    with transaction.atomic():
        transaction.on_commit(lambda: seen.append(("outside", visible())))
        with tenant_context(stores[0]):
            transaction.on_commit(look)
        with tenant_context(stores[1]):
            transaction.on_commit(look)
        assert seen == []
    assert seen == [("outside", []), (stores[0], [stores[0]]), (stores[1], [stores[1]])]
    assert on_connection() is None
    with tenant_context(stores[2]):
        transaction.on_commit(look)
    assert seen[-1] == (stores[2], [stores[2]])


def test_a_thread_starts_without_the_store(stores: list[UUID]) -> None:
    seen: list[object] = []

    def look() -> None:
        seen.extend((current_store_id(), visible()))
        connections.close_all()

    with tenant_context(stores[0]):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen == [None, []]


def test_a_store_that_does_not_exist_shows_nothing_and_nothing_can_be_written_for_another(stores: list[UUID]) -> None:
    with tenant_context(uuid4()):
        assert visible() == []
    with pytest.raises(DatabaseError, match="row-level security"), tenant_context(stores[0]):
        Store.objects.create(name="another's")


@pytest.mark.parametrize("atomic", [True, False])
def test_the_store_rides_with_begin(stores: list[UUID], atomic: bool) -> None:
    with round_trips(connection) as plain, transaction.atomic():
        visible()
    with round_trips(connection) as ours, tenant_context(stores[0], atomic=atomic), transaction.atomic():
        assert visible() == [stores[0]]
    assert plain == [3]
    assert ours == ([5] if atomic else [3]), "BEGIN with the store, the query, COMMIT; and a savepoint, where it is one"


def test_a_context_may_end_in_another_copy_of_the_context_than_it_began(stores: list[UUID]) -> None:
    """As in async code, where each synchronous part runs in a copy of its own, and what it sets is copied back."""
    context = tenant_context(stores[0])
    began, ended = copy_context(), copy_context()
    began.run(context.__enter__)
    ended.run(active.surround_with, began.run(active.surrounding))
    ended.run(context.__exit__, None, None, None)
    assert (ended.run(current_store_id), began.run(current_store_id), visible()) == (None, None, [])


def test_two_databases_carry_the_store_each(stores: list[UUID]) -> None:
    def web() -> list[UUID]:
        return list(Store.objects.using("web").values_list("pk", flat=True))

    with tenant_context(stores[0]), tenant_context(stores[0], using="web"):
        assert web() == [stores[0]]
        with pytest.raises(TenantContextError), tenant_context(stores[1], using="operator"):
            pass
    assert web() == []


def test_a_callback_of_a_callback_carries_the_store_too(stores: list[UUID]) -> None:
    seen: list[object] = []
    with tenant_context(stores[0]):
        transaction.on_commit(lambda: transaction.on_commit(lambda: seen.append(visible())))
    assert seen == [[stores[0]]]


# A block of Django's own would end the literal transaction.
@pytest.mark.parametrize(("literal", "atomic"), [(True, False), (False, False), (False, True)])
def test_in_a_transaction_that_no_atomic_block_began_stores_follow_each_other_unmixed(
    stores: list[UUID], literal: bool, atomic: bool
) -> None:
    if literal:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
    else:
        transaction.set_autocommit(False)
    try:
        for store in (stores[0], stores[1], stores[0]):
            with tenant_context(store, atomic=atomic):
                assert visible() == [store]
            assert (visible(), on_connection()) == ([], None)
    finally:
        if literal:
            connection.close()
        else:
            transaction.rollback()
            transaction.set_autocommit(True)


@pytest.mark.parametrize("atomic", [True, False])
def test_a_savepoint_made_inside_can_not_bring_the_store_back_outside(stores: list[UUID], atomic: bool) -> None:
    with transaction.atomic():
        with tenant_context(stores[0], atomic=atomic):
            execute("SAVEPOINT made_inside")
        with pytest.raises(DatabaseError, match="savepoint"), transaction.atomic():
            execute("ROLLBACK TO SAVEPOINT made_inside")
        assert (visible(), on_connection()) == ([], None)


def test_two_that_are_entered_in_two_contexts_of_python_never_share_a_transaction(stores: list[UUID]) -> None:
    """As when two tasks of asyncio enter them on the one thread that they share."""
    outside = copy_context()
    with tenant_context(stores[0]):
        for atomic in (True, False):
            with pytest.raises(TenantContextError, match=f"another context, of store {stores[0]}"):
                outside.run(tenant_context(stores[1], atomic=atomic).__enter__)
        with pytest.raises(TenantContextError, match=f"another context, of store {stores[0]}"):
            outside.run(visible)
        with pytest.raises(TenantContextError, match=f"another context, of store {stores[0]}"):
            outside.run(tasks.typed.enqueue, date.min, datetime.now(UTC), Decimal(1), [])
        assert visible() == [stores[0]]
    with tenant_context(stores[1]):
        assert visible() == [stores[1]]


def test_two_without_a_transaction_take_turns_on_one_connection(stores: list[UUID]) -> None:
    def in_transaction() -> list[UUID]:
        with transaction.atomic():
            return visible()

    outside = copy_context()
    with tenant_context(stores[0], atomic=False):
        other = tenant_context(stores[1], atomic=False)
        outside.run(other.__enter__)
        assert (in_transaction(), visible()) == ([stores[0]], [])
        assert (outside.run(in_transaction), outside.run(visible)) == ([stores[1]], [])
        assert in_transaction() == [stores[0]]
        outside.run(other.__exit__, None, None, None)
        assert (in_transaction(), outside.run(in_transaction)) == ([stores[0]], [])


def test_a_connection_that_nobody_closed_goes_with_its_thread(stores: list[UUID]) -> None:
    backends: list[int] = []

    def work() -> None:
        with tenant_context(stores[0]):
            backends.append(connection.connection.info.backend_pid)

    def run() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        gc.collect()

    with pytest.warns(ResourceWarning, match="deleted while still open"):
        run()
    eventually(lambda: seen("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s)", backends) == [(0,)])
