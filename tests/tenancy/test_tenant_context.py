"""Tenant contexts on a real connection, as the worker role: nested, switched, in every transaction and at every end."""

from __future__ import annotations

import gc
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from contextvars import copy_context
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, OperationalError, ProgrammingError, connection, connections, transaction
from psycopg import IsolationLevel, sql
from psycopg.adapt import Dumper

from project.salon.models import Store
from salon_jobs import current_job, current_store_id, tenant_context
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.errors import TenantContextError, TransactionBroken
from salon_jobs.core.outcomes import Succeeded
from salon_jobs.models import Limit
from salon_jobs.tenancy import active, guc
from salon_jobs.tenancy.context import StoreJobContext
from tests import tasks
from tests.support import change, claim, run, run_due, seen
from tests.tenancy.probe import (
    backend,
    carried,
    execute,
    fail,
    fail_in_database,
    round_trips,
    visible,
    visible_in_transaction,
)
from tests.waiting import eventually


def test_stores_follow_each_other_on_one_connection(stores: list[UUID]) -> None:
    backends = {backend()}
    for store in stores:
        assert (visible(), current_store_id(), carried()) == ([], None, "")
        with tenant_context(store):
            backends.add(backend())
            assert (visible(), current_store_id()) == ([store], store)
            with tenant_context(str(store)):
                assert visible() == [store]
            assert visible() == [store]
            other = next(each for each in stores if each != store)
            with pytest.raises(TenantContextError, match=f"{other} without switch=True"), tenant_context(other):
                pass
            assert visible() == [store]
    assert (visible(), current_store_id(), carried(), len(backends)) == ([], None, "", 1)


def test_lost_connection_is_replaced(stores: list[UUID]) -> None:
    change("SELECT pg_terminate_backend(%s, 60000)", backend())
    with pytest.raises(OperationalError), tenant_context(stores[0]):
        pass
    connection.close_if_unusable_or_obsolete()
    with tenant_context(stores[0]):
        assert visible() == [stores[0]]


@pytest.mark.parametrize("bad", ["", "x'; DROP TABLE store; --", 5.0, None, "0 7", b"7"])
def test_wrong_key_is_refused(stores: list[UUID], bad: Any) -> None:
    with pytest.raises(TenantContextError, match=f"must be {re.escape(store_key().description)}"), tenant_context(bad):
        pass


@pytest.mark.parametrize("inner_context", [True, False])
def test_inner_rollback_keeps_outer_store(stores: list[UUID], inner_context: bool) -> None:
    with tenant_context(stores[0]):
        for end, error in ((fail, ZeroDivisionError), (fail_in_database, ProgrammingError)):
            inner = tenant_context(stores[0]) if inner_context else nullcontext()
            with pytest.raises(error), transaction.atomic(), inner:
                end()
            assert visible() == [stores[0]]


@pytest.mark.parametrize("end", [lambda: None, fail, fail_in_database])
def test_surrounding_transaction_goes_on_without_store(stores: list[UUID], end: Callable[[], None]) -> None:
    with transaction.atomic():
        with suppress(ZeroDivisionError, ProgrammingError), tenant_context(stores[0]):
            assert visible() == [stores[0]]
            end()
        assert (visible(), carried()) == ([], "")
        with tenant_context(stores[1]):
            assert visible() == [stores[1]]
        assert carried() == ""


def test_store_is_set_at_every_begin(stores: list[UUID]) -> None:
    """In a context without a transaction there is none between its transactions."""
    with tenant_context(stores[0], atomic=False):
        assert visible() == []
        for _ in range(2):
            assert (visible_in_transaction(), visible()) == ([stores[0]], [])
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            raise ZeroDivisionError
        assert visible_in_transaction() == [stores[0]]
        with tenant_context(stores[0]):
            assert visible() == [stores[0]]
    assert visible_in_transaction() == []


def test_store_cannot_be_set_outside_transaction(stores: list[UUID]) -> None:
    """It is an error, also where somebody switched autocommit on behind Django's back."""
    with pytest.raises(TenantContextError, match="inside a transaction"):
        guc.set_local(connection, stores[0])
    with transaction.atomic():
        raw: Any = connection.connection
        raw.autocommit, raw.isolation_level = True, IsolationLevel.SERIALIZABLE
        with pytest.raises(TenantContextError, match=r"does not carry the store.*outside a transaction"):
            guc.set_local(connections["default"], stores[0])
        assert visible() == []
    connection.close()


def test_each_database_has_its_context(stores: list[UUID]) -> None:
    with tenant_context(stores[0]), tenant_context(stores[0], using="web"):
        assert visible("web") == [stores[0]]
        with pytest.raises(TenantContextError), tenant_context(stores[1], using="operator"):
            pass
    assert visible("web") == []


def test_transaction_that_begins_with_finish(stores: list[UUID], process_id: int, hooks: tasks.Hooks) -> None:
    def finish_then_write(**_: object) -> None:
        with transaction.atomic():
            current_job().finish()
            Store.objects.update(name="written")

    hooks.store = finish_then_write
    tasks.outside.enqueue(store_id=stores[0])
    run_due(process_id)
    assert seen("SELECT id FROM store WHERE name = 'written'") == [(stores[0],)]


# A block of Django's own would end the literal transaction.
@pytest.mark.parametrize(("literal", "atomic"), [(True, False), (False, False), (False, True)])
def test_stores_in_transaction_without_atomic(stores: list[UUID], literal: bool, atomic: bool) -> None:
    """Stores follow each other unmixed, though Django does not know of the transaction."""
    if literal:
        execute("BEGIN")
    else:
        transaction.set_autocommit(False)
    try:
        for store in (stores[0], stores[1], stores[0]):
            with tenant_context(store, atomic=atomic):
                assert visible() == [store]
            assert (visible(), carried()) == ([], "")
    finally:
        if literal:
            connection.close()
        else:
            transaction.rollback()
            transaction.set_autocommit(True)


@pytest.mark.parametrize("atomic", [True, False])
def test_savepoint_made_inside_does_not_restore_store(stores: list[UUID], atomic: bool) -> None:
    with transaction.atomic():
        with tenant_context(stores[0], atomic=atomic):
            execute("SAVEPOINT made_inside")
        with pytest.raises(DatabaseError, match="savepoint"), transaction.atomic():
            execute("ROLLBACK TO SAVEPOINT made_inside")
        assert (visible(), carried()) == ([], "")


# Switches


@pytest.mark.parametrize("end", [lambda: None, fail, fail_in_database])
@pytest.mark.parametrize("inner_atomic", [True, False])
@pytest.mark.parametrize("outer_atomic", [True, False])
def test_outer_store_returns_after_switch(
    stores: list[UUID], outer_atomic: bool, inner_atomic: bool, end: Callable[[], None]
) -> None:
    with tenant_context(stores[0], atomic=outer_atomic):
        inner = tenant_context(stores[1], atomic=inner_atomic, switch=True)
        with suppress(ZeroDivisionError, ProgrammingError), inner:
            assert current_store_id() == stores[1]
            with transaction.atomic():
                assert visible() == [stores[1]]
                with tenant_context(stores[2], switch=True):
                    assert visible() == [stores[2]]
                    end()
                assert visible() == [stores[1]]
            end()
        assert (current_store_id(), visible_in_transaction()) == (stores[0], [stores[0]])
    assert visible() == []


def test_rollback_to_savepoint_inside_switch(stores: list[UUID]) -> None:
    with tenant_context(stores[0]), tenant_context(stores[1], switch=True):
        inside = str(connection.savepoint())
        Store.objects.update(name="undone")
        transaction.savepoint_rollback(inside)
        assert visible() == [stores[1]]


@pytest.mark.parametrize("older_has_store", [True, False])
@pytest.mark.parametrize(
    "by_hand",
    [
        None,
        "\n  rollback to by_hand",
        "/* of\n a request */ -- and its view\nROLLBACK TO by_hand",
        sql.SQL("ROLLBACK TO {}").format(sql.Identifier("by_hand")),
        b"ROLLBACK TO by_hand",
    ],
    ids=["django", "text", "comments", "composed", "bytes"],
)
def test_rollback_to_older_savepoint(stores: list[UUID], older_has_store: bool, by_hand: Any) -> None:
    """It does not bring back the store that the savepoint remembers."""

    @transaction.atomic
    def roll_back() -> None:
        with tenant_context(stores[0]) if older_has_store else nullcontext():
            older = "by_hand" if by_hand else str(connection.savepoint())
            if by_hand:
                execute("SAVEPOINT by_hand")
            with tenant_context(stores[1], switch=True):
                if by_hand:
                    execute(by_hand)
                else:
                    transaction.savepoint_rollback(older)
                assert visible() == [stores[1]]

    with pytest.raises(DatabaseError, match="savepoint"):  # Django finds that of the block gone
        roll_back()
    assert visible() == []


class _Grams:
    """A value that one connection alone knows how to write."""


class _GramsDumper(Dumper):
    def dump(self, obj: object) -> bytes:
        return b"500"


def test_composed_statement_with_value_of_connection(stores: list[UUID]) -> None:
    """Looking for a rollback writes no values: that takes the connection's own adapters."""
    with tenant_context(stores[0]):
        connection.connection.adapters.register_dumper(_Grams, _GramsDumper)
        execute(sql.SQL("SELECT {}").format(sql.Literal(_Grams())))


@pytest.mark.parametrize("atomic", [True, False])
def test_generator_leaves_store_to_caller(stores: list[UUID], atomic: bool) -> None:
    """What a page warns of: a block knows its generator from its caller no more than Python's own contexts do."""

    def steps(store: UUID) -> Iterator[list[UUID]]:
        with tenant_context(store, atomic=atomic, switch=True):
            for _ in range(2):
                yield visible_in_transaction()

    first = steps(stores[0])
    assert next(first) == visible_in_transaction() == [stores[0]]
    second = steps(stores[1])
    assert next(second) == next(first) == [stores[1]]
    for each in (second, first):
        each.close()  # type: ignore[attr-defined]
    assert (visible(), current_store_id(), carried()) == ([], None, "")


def test_writes_of_switched_stores(stores: list[UUID]) -> None:
    with tenant_context(stores[0]):
        Store.objects.update(name="first")
        with tenant_context(stores[1], switch=True):
            Store.objects.update(name="second")
            with suppress(ZeroDivisionError), tenant_context(stores[2], switch=True):
                Store.objects.update(name="undone")
                raise ZeroDivisionError
    assert seen("SELECT name FROM store ORDER BY id") == [("first",), ("second",), ("Salon 2",)]


# Callbacks


def test_callbacks_have_store_of_registration(stores: list[UUID]) -> None:
    calls: list[object] = []
    in_store = [(store, [store]) for store in stores]

    def note() -> None:
        calls.append((current_store_id(), visible()))

    with transaction.atomic():
        transaction.on_commit(note)
        for store in stores[:2]:
            with tenant_context(store):
                transaction.on_commit(note)
        with suppress(ZeroDivisionError), tenant_context(stores[2]):
            transaction.on_commit(note)
            raise ZeroDivisionError  # its savepoint is rolled back
        assert calls == []
    assert calls == [(None, []), *in_store[:2]]
    assert carried() == ""
    with tenant_context(stores[0]):
        transaction.on_commit(lambda: transaction.on_commit(note))
        with tenant_context(stores[2], switch=True):
            transaction.on_commit(note)
    assert calls[3:] == [in_store[0], in_store[2]], "a callback of a callback has it too"


def test_callbacks_inside_context_without_transaction(stores: list[UUID]) -> None:
    calls: list[object] = []

    def note() -> None:
        calls.append((current_store_id(), visible()))

    with tenant_context(stores[0], atomic=False):
        with tenant_context(stores[0]):
            transaction.on_commit(note)
        assert calls.pop() == (stores[0], [stores[0]])
        with transaction.atomic(), tenant_context(stores[0]):
            transaction.on_commit(note)
        assert calls.pop() == (stores[0], [stores[0]])
        with transaction.atomic():
            transaction.on_commit(note)
        assert calls.pop() == (stores[0], []), "it runs between transactions, as documented"
        with tenant_context(stores[1], switch=True):
            transaction.on_commit(note)
        assert calls.pop() == (stores[1], [stores[1]]), "its transaction committed while the outer block was open"


def test_robust_callback_is_logged_by_name(stores: list[UUID], caplog: pytest.LogCaptureFixture) -> None:
    with transaction.atomic(), tenant_context(stores[0]), tenant_context(stores[0]):
        transaction.on_commit(fail, robust=True)
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "fail" in record.getMessage()


# Copies of the context variables, as asyncio tasks have on the one thread that they share


def test_context_ends_in_another_copy(stores: list[UUID]) -> None:
    """As in async code, where each synchronous part runs in a copy of its own, and what it sets is copied back."""
    context = tenant_context(stores[0])
    began, ended = copy_context(), copy_context()
    began.run(context.__enter__)
    ended.run(active.surround_with, began.run(active.surrounding))
    ended.run(context.__exit__, None, None, None)
    assert (ended.run(current_store_id), began.run(current_store_id), visible()) == (None, None, [])


def test_contexts_in_two_copies_never_share_transaction(stores: list[UUID]) -> None:
    outside = copy_context()
    with tenant_context(stores[0]):
        calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = [
            (tenant_context(stores[1]).__enter__, ()),
            (tenant_context(stores[1], atomic=False).__enter__, ()),
            (visible, ()),
            (tasks.typed.enqueue, (date.min, datetime.now(UTC), Decimal(1), [])),
        ]
        for refused, arguments in calls:
            with pytest.raises(TenantContextError, match=f"another context, of store {stores[0]}"):
                outside.run(refused, *arguments)
        assert visible() == [stores[0]]
    with tenant_context(stores[1]):
        assert visible() == [stores[1]]


def test_contexts_without_transaction_take_turns(stores: list[UUID]) -> None:
    outside = copy_context()
    with tenant_context(stores[0], atomic=False):
        other = tenant_context(stores[1], atomic=False)
        outside.run(other.__enter__)
        assert (visible_in_transaction(), visible()) == ([stores[0]], [])
        assert (outside.run(visible_in_transaction), outside.run(visible)) == ([stores[1]], [])
        assert visible_in_transaction() == [stores[0]]
        outside.run(other.__exit__, None, None, None)
        assert (visible_in_transaction(), outside.run(visible_in_transaction)) == ([stores[0]], [])


def test_context_object_is_one_block_at_a_time(stores: list[UUID]) -> None:
    context = tenant_context(stores[0])
    with context, pytest.raises(TenantContextError, match="already open"), context:
        pass
    with context:
        left_over = copy_context()
    with context:
        assert visible() == [stores[0]]
        assert left_over.run(current_store_id) is None
        with pytest.raises(TenantContextError, match="another context"):
            left_over.run(visible)


def test_unclosed_connection_goes_with_its_thread(stores: list[UUID]) -> None:
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
    eventually(lambda: seen("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s)", backends), [(0,)])


# Round trips, next to the same work in plain transactions

Block = Callable[[UUID], AbstractContextManager[object]]


def plain(_store: UUID) -> AbstractContextManager[object]:
    return transaction.atomic()


def outside(store: UUID) -> AbstractContextManager[object]:
    return tenant_context(store, atomic=False)


def query(**_: object) -> None:
    Limit.objects.exists()


def trips(store: UUID, blocks: list[Block]) -> int:
    """Count the round trips of one query inside nested blocks."""
    with round_trips(connection) as counted, ExitStack() as stack:
        for block in blocks:
            stack.enter_context(block(store))
        query()
    return counted[0]


@pytest.mark.parametrize(
    ("ours", "theirs", "more"),
    [
        pytest.param([tenant_context], [plain], 0, id="sent with BEGIN"),
        pytest.param([tenant_context, plain], [plain, plain], 0, id="a savepoint inside"),
        pytest.param([tenant_context, tenant_context], [plain, plain], 0, id="nested"),
        pytest.param([outside, plain], [plain], 0, id="sent with the BEGIN of each transaction"),
        pytest.param([outside, tenant_context], [plain], 0, id="a context in one without a transaction"),
        # There is no BEGIN left to go with, and what continues outside must not have the store.
        pytest.param([plain, tenant_context], [plain, plain], 2, id="set and cleared inside a transaction"),
    ],
)
def test_round_trips_of_context(stores: list[UUID], ours: list[Block], theirs: list[Block], more: int) -> None:
    assert trips(stores[0], theirs) == 1 + 2 * len(theirs)
    assert trips(stores[0], ours) - trips(stores[0], theirs) == more


def test_round_trips_of_job(stores: list[UUID], process_id: int, hooks: tasks.Hooks) -> None:
    """BEGIN with the store, the query, the end with COMMIT; a system task finishes after its own transaction."""
    hooks.store, hooks.system = query, transaction.atomic(query)
    tasks.in_store.enqueue(store_id=stores[0])
    tasks.system.enqueue()
    counts = []
    for job in sorted(claim(process_id), key=lambda job: job.id):
        with round_trips(connection) as counted:
            assert isinstance(run(job, process_id), Succeeded)
        counts += counted
    assert counts == [3, 4]


@pytest.mark.parametrize("nested", [False, True])
def test_aborted_transaction_is_error(stores: list[UUID], nested: bool) -> None:
    """Django would send COMMIT, which the server answers with ROLLBACK, and no error."""

    def swallow() -> None:
        with tenant_context(stores[0]):
            Store.objects.update(name="renamed")
            with suppress(DatabaseError):
                fail_in_database()

    with tenant_context(stores[0]) if nested else nullcontext():
        with pytest.raises(TransactionBroken):
            swallow()
        if nested:
            assert visible() == [stores[0]], "only the inner savepoint is rolled back"
    assert seen("SELECT count(*) FROM store WHERE name = 'renamed'") == [(0,)]


def test_worker_takes_two_round_trips_on_idle_connection(stores: list[UUID]) -> None:
    assert StoreJobContext.fits(connection)
    with transaction.atomic():
        assert not StoreJobContext.fits(connection)
    with tenant_context(stores[0], atomic=False):
        assert not StoreJobContext.fits(connection), "a context is open on it"
        assert not StoreJobContext.fits(connections["web"]), "the code has a store elsewhere"
    context = copy_context()
    open_elsewhere = tenant_context(stores[0], atomic=False)
    context.run(open_elsewhere.__enter__)
    assert not StoreJobContext.fits(connection), "other code's context is open on it"
    context.run(open_elsewhere.__exit__, None, None, None)
    transaction.set_autocommit(False)
    assert not StoreJobContext.fits(connection)
    transaction.rollback()
    transaction.set_autocommit(True)
    assert StoreJobContext.fits(connection)
