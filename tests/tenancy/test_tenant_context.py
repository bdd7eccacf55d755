"""Tenant contexts on a real connection, as the worker role: nested, switched, in every transaction and at every end."""

from __future__ import annotations

import gc
import logging
import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from contextvars import copy_context
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, connection, connections, transaction
from django.db.utils import OperationalError, ProgrammingError
from psycopg import IsolationLevel

from project.salon.models import Store
from salon_jobs import current_job, current_store_id, tenant_context
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.errors import TenantContextError, TransactionBroken
from salon_jobs.core.outcomes import Succeeded
from salon_jobs.models import Limit
from salon_jobs.tenancy import active, guc
from salon_jobs.tenancy.context import StoreJobContext
from tests import tasks
from tests.support import change, claim, new_store_id, run, run_due, seen
from tests.tenancy.probe import backend, carried, execute, round_trips, visible, visible_in_transaction
from tests.waiting import eventually


def fail() -> None:
    raise ZeroDivisionError


def fail_in_the_database() -> None:
    execute("SELECT nonsense")


def test_inside_one_store_is_seen_and_outside_none(stores: list[UUID]) -> None:
    assert visible() == []
    with tenant_context(stores[0]):
        assert (visible(), current_store_id()) == ([stores[0]], stores[0])
    assert (visible(), current_store_id(), carried()) == ([], None, "")


def test_a_lost_connection_raises_djangos_error_and_is_replaced(stores: list[UUID]) -> None:
    change("SELECT pg_terminate_backend(%s, 5000)", backend())
    with pytest.raises(OperationalError), tenant_context(stores[0]):
        pass
    connection.close_if_unusable_or_obsolete()
    with tenant_context(stores[0]):
        assert visible() == [stores[0]]


def test_two_stores_one_after_the_other_on_the_same_physical_connection(stores: list[UUID]) -> None:
    backends = set()
    for store in stores:
        with tenant_context(store):
            backends.add(backend())
            assert visible() == [store]
    assert len(backends) == 1


def test_nested_same_store_is_fine_and_another_is_refused(stores: list[UUID]) -> None:
    with tenant_context(stores[0]):
        with tenant_context(str(stores[0])):
            assert visible() == [stores[0]]
        assert visible() == [stores[0]]
        with pytest.raises(TenantContextError, match=f"{stores[1]} without switch=True"), tenant_context(stores[1]):
            pass
        assert visible() == [stores[0]]


@pytest.mark.parametrize("bad", ["", "x'; DROP TABLE store; --", 5.0, None, "0 7", b"7"])
def test_what_is_no_key_is_refused_before_any_statement(stores: list[UUID], bad: Any) -> None:
    with pytest.raises(TenantContextError, match=f"must be {re.escape(store_key().description)}"), tenant_context(bad):
        pass


@pytest.mark.parametrize("inner_context", [True, False])
def test_an_inner_rollback_keeps_the_outer_store(stores: list[UUID], inner_context: bool) -> None:
    with tenant_context(stores[0]):
        for end, error in ((fail, ZeroDivisionError), (fail_in_the_database, ProgrammingError)):
            inner = tenant_context(stores[0]) if inner_context else nullcontext()
            with pytest.raises(error), transaction.atomic(), inner:
                end()
            assert visible() == [stores[0]]


@pytest.mark.parametrize("end", [lambda: None, fail, fail_in_the_database])
def test_a_surrounding_transaction_goes_on_without_the_store(stores: list[UUID], end: Callable[[], None]) -> None:
    with transaction.atomic():
        with suppress(ZeroDivisionError, ProgrammingError), tenant_context(stores[0]):
            assert visible() == [stores[0]]
            end()
        assert (visible(), carried()) == ([], "")
        with tenant_context(stores[1]):
            assert visible() == [stores[1]]
        assert carried() == ""


def test_without_a_transaction_the_store_is_set_at_every_begin_and_not_between(stores: list[UUID]) -> None:
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


def test_a_store_that_does_not_exist_shows_nothing_and_nothing_can_be_written_for_another(stores: list[UUID]) -> None:
    with tenant_context(new_store_id()):
        assert visible() == []
    with pytest.raises(DatabaseError, match="row-level security"), tenant_context(stores[0]):
        Store.objects.create(name="another's")


def test_two_databases_carry_the_store_each(stores: list[UUID]) -> None:
    with tenant_context(stores[0]), tenant_context(stores[0], using="web"):
        assert visible("web") == [stores[0]]
        with pytest.raises(TenantContextError), tenant_context(stores[1], using="operator"):
            pass
    assert visible("web") == []


def test_a_transaction_that_begins_by_finishing_the_job_has_the_store_too(
    stores: list[UUID], process_id: int, hooks: tasks.Hooks
) -> None:
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
def test_in_a_transaction_that_no_atomic_block_began_stores_follow_each_other_unmixed(
    stores: list[UUID], literal: bool, atomic: bool
) -> None:
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
def test_a_savepoint_made_inside_can_not_bring_the_store_back_outside(stores: list[UUID], atomic: bool) -> None:
    with transaction.atomic():
        with tenant_context(stores[0], atomic=atomic):
            execute("SAVEPOINT made_inside")
        with pytest.raises(DatabaseError, match="savepoint"), transaction.atomic():
            execute("ROLLBACK TO SAVEPOINT made_inside")
        assert (visible(), carried()) == ([], "")


# Switches


@pytest.mark.parametrize("end", [lambda: None, fail, fail_in_the_database])
@pytest.mark.parametrize("inner_atomic", [True, False])
@pytest.mark.parametrize("outer_atomic", [True, False])
def test_after_a_switch_the_outer_store_comes_back(
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


def test_a_rollback_to_a_savepoint_inside_keeps_the_store(stores: list[UUID]) -> None:
    with tenant_context(stores[0]), tenant_context(stores[1], switch=True):
        inside = str(connection.savepoint())
        Store.objects.update(name="undone")
        transaction.savepoint_rollback(inside)
        assert visible() == [stores[1]]


@pytest.mark.parametrize("older_has_store", [True, False])
@pytest.mark.parametrize("by_hand", [True, False])
def test_a_rollback_to_an_older_savepoint_does_not_bring_back_the_store_it_remembers(
    stores: list[UUID], older_has_store: bool, by_hand: bool
) -> None:
    @transaction.atomic
    def roll_back() -> None:
        with tenant_context(stores[0]) if older_has_store else nullcontext():
            older = "by_hand" if by_hand else str(connection.savepoint())
            if by_hand:
                execute("SAVEPOINT by_hand")
            with tenant_context(stores[1], switch=True):
                if by_hand:
                    execute("\n  rollback to by_hand")
                else:
                    transaction.savepoint_rollback(older)
                assert visible() == [stores[1]]

    with pytest.raises(DatabaseError, match="savepoint"):  # Django finds that of the block gone
        roll_back()
    assert visible() == []


def test_what_each_store_wrote_stays_with_it(stores: list[UUID]) -> None:
    with tenant_context(stores[0]):
        Store.objects.update(name="first")
        with tenant_context(stores[1], switch=True):
            Store.objects.update(name="second")
            with suppress(ZeroDivisionError), tenant_context(stores[2], switch=True):
                Store.objects.update(name="undone")
                raise ZeroDivisionError
    assert seen("SELECT name FROM store ORDER BY id") == [("first",), ("second",), ("Salon 2",)]


# Callbacks


class Calls(list[object]):
    """Notes of callbacks: their store, and what they see."""

    def note(self) -> None:
        self.append((current_store_id(), visible()))


@pytest.fixture
def calls() -> Calls:
    return Calls()


def test_callbacks_after_the_commit_carry_the_store(stores: list[UUID], calls: Calls) -> None:
    with transaction.atomic():
        transaction.on_commit(calls.note)
        for store in stores[:2]:
            with tenant_context(store):
                transaction.on_commit(calls.note)
        assert calls == []
    assert calls == [(None, []), (stores[0], [stores[0]]), (stores[1], [stores[1]])]
    assert carried() == ""
    with tenant_context(stores[2]):
        transaction.on_commit(lambda: transaction.on_commit(calls.note))
    assert calls[3:] == [(stores[2], [stores[2]])], "a callback of a callback too"


def test_callbacks_inside_a_block_without_a_transaction_carry_the_store(stores: list[UUID], calls: Calls) -> None:
    in_store = (stores[0], [stores[0]])
    with tenant_context(stores[0], atomic=False):
        with tenant_context(stores[0]):
            transaction.on_commit(calls.note)
        assert calls == [in_store]
        with transaction.atomic(), tenant_context(stores[0]):
            transaction.on_commit(calls.note)
        assert calls == [in_store, in_store]
        with transaction.atomic():
            transaction.on_commit(calls.note)
        assert calls[2:] == [(stores[0], [])], "it runs between transactions, as documented"


def test_callbacks_run_as_the_store_they_were_registered_in(stores: list[UUID], calls: Calls) -> None:
    with tenant_context(stores[0], atomic=False):
        with tenant_context(stores[1], switch=True):
            transaction.on_commit(calls.note)
        assert calls == [(stores[1], [stores[1]])], "its transaction committed while the outer block was open"
    with tenant_context(stores[0]):
        transaction.on_commit(calls.note)
        with tenant_context(stores[2], switch=True):
            transaction.on_commit(calls.note)
    assert calls[1:] == [(stores[0], [stores[0]]), (stores[2], [stores[2]])]


def test_a_callback_is_wrapped_once_and_keeps_its_name(stores: list[UUID], caplog: pytest.LogCaptureFixture) -> None:
    with transaction.atomic():
        with tenant_context(stores[0]), tenant_context(stores[0]):
            transaction.on_commit(fail, robust=True)
        hooks: list[Any] = connection.run_on_commit
        [(_, hook, _)] = hooks
        assert hook._function is fail
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "fail" in record.getMessage()


def test_a_callback_of_a_savepoint_that_rolls_back_does_not_run(stores: list[UUID], calls: Calls) -> None:
    with transaction.atomic():
        with suppress(ZeroDivisionError), tenant_context(stores[0]):
            transaction.on_commit(calls.note)
            raise ZeroDivisionError
        transaction.on_commit(calls.note)
    assert calls == [(None, [])]


# Copies of the context variables, as asyncio tasks have on the one thread that they share


def test_a_context_may_end_in_another_copy_of_the_context_than_it_began(stores: list[UUID]) -> None:
    """As in async code, where each synchronous part runs in a copy of its own, and what it sets is copied back."""
    context = tenant_context(stores[0])
    began, ended = copy_context(), copy_context()
    began.run(context.__enter__)
    ended.run(active.surround_with, began.run(active.surrounding))
    ended.run(context.__exit__, None, None, None)
    assert (ended.run(current_store_id), began.run(current_store_id), visible()) == (None, None, [])


def test_two_contexts_in_two_copies_never_share_a_transaction(stores: list[UUID]) -> None:
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


def test_two_without_a_transaction_take_turns_on_one_connection(stores: list[UUID]) -> None:
    outside = copy_context()
    with tenant_context(stores[0], atomic=False):
        other = tenant_context(stores[1], atomic=False)
        outside.run(other.__enter__)
        assert (visible_in_transaction(), visible()) == ([stores[0]], [])
        assert (outside.run(visible_in_transaction), outside.run(visible)) == ([stores[1]], [])
        assert visible_in_transaction() == [stores[0]]
        outside.run(other.__exit__, None, None, None)
        assert (visible_in_transaction(), outside.run(visible_in_transaction)) == ([stores[0]], [])


def test_one_object_is_one_block_at_a_time(stores: list[UUID]) -> None:
    context = tenant_context(stores[0])
    with context, pytest.raises(TenantContextError, match="already open"), context:
        pass
    with context:
        assert visible() == [stores[0]]


def test_a_copy_left_over_from_an_earlier_entry_is_outside_the_next(stores: list[UUID]) -> None:
    context = tenant_context(stores[0])
    with context:
        left_over = copy_context()
    with context:
        assert left_over.run(current_store_id) is None
        with pytest.raises(TenantContextError, match="another context"):
            left_over.run(visible)


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
def test_the_round_trips_of_a_context(stores: list[UUID], ours: list[Block], theirs: list[Block], more: int) -> None:
    assert trips(stores[0], theirs) == 1 + 2 * len(theirs)
    assert trips(stores[0], ours) - trips(stores[0], theirs) == more


def test_a_job_of_a_store_takes_fewer_than_one_without(stores: list[UUID], process_id: int, hooks: tasks.Hooks) -> None:
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
def test_what_can_not_be_committed_is_an_error(stores: list[UUID], nested: bool) -> None:
    """Django would send COMMIT, which the server answers with ROLLBACK, and no error."""

    def swallow() -> None:
        with tenant_context(stores[0]):
            Store.objects.update(name="renamed")
            with suppress(DatabaseError):
                fail_in_the_database()

    with tenant_context(stores[0]) if nested else nullcontext():
        with pytest.raises(TransactionBroken):
            swallow()
        if nested:
            assert visible() == [stores[0]], "only the inner savepoint is rolled back"
    assert seen("SELECT count(*) FROM store WHERE name = 'renamed'") == [(0,)]


def test_a_worker_takes_its_two_round_trips_on_an_idle_connection_only(stores: list[UUID]) -> None:
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
