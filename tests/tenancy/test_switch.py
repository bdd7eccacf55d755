"""Switches from one store to another inside a context, and looks what comes back at every kind of end."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Literal
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.db.utils import DatabaseError, ProgrammingError

from project.salon.models import Store
from salon_jobs import current_store_id, tenant_context
from salon_jobs.core.errors import TenantContextError
from tests.support import seen

End = Literal["success", "error", "broken"]


def visible() -> list[UUID]:
    """Return the stores this connection sees."""
    return list(Store.objects.order_by("id").values_list("pk", flat=True))


def end(how: End) -> None:
    """End the block that calls this, in one of three ways."""
    if how == "error":
        raise ZeroDivisionError
    if how == "broken":
        with connection.cursor() as cursor:
            cursor.execute("SELECT nonsense")


@pytest.mark.parametrize("how", ["success", "error", "broken"])
@pytest.mark.parametrize("inner_atomic", [True, False])
@pytest.mark.parametrize("outer_atomic", [True, False])
def test_the_outer_store_comes_back(stores: list[UUID], outer_atomic: bool, inner_atomic: bool, how: End) -> None:
    assert seen("SELECT count(*) FROM store") == [(3,)]
    with tenant_context(stores[0], atomic=outer_atomic):
        try:
            with tenant_context(stores[1], atomic=inner_atomic, switch=True):
                assert current_store_id() == stores[1]
                with transaction.atomic():
                    assert visible() == [stores[1]]
                    with tenant_context(stores[2], switch=True):
                        assert visible() == [stores[2]]
                        end(how)
                    assert visible() == [stores[1]]
                end(how)
        except (ZeroDivisionError, ProgrammingError):
            assert how != "success"
        assert current_store_id() == stores[0]
        with transaction.atomic():
            assert visible() == [stores[0]]
    assert visible() == []


def test_another_store_is_refused_without_it(stores: list[UUID]) -> None:
    with tenant_context(stores[0]), pytest.raises(TenantContextError, match="switch=True"), tenant_context(stores[1]):
        pass


def test_a_rollback_to_a_savepoint_inside_keeps_the_store(stores: list[UUID]) -> None:
    with tenant_context(stores[0]), tenant_context(stores[1], switch=True):
        inside = transaction.savepoint()
        Store.objects.update(name="undone")
        transaction.savepoint_rollback(inside)
        assert visible() == [stores[1]]


@pytest.mark.parametrize("older_has_store", [True, False])
def test_a_rollback_to_an_older_savepoint_does_not_bring_what_it_remembers(
    stores: list[UUID], older_has_store: bool
) -> None:
    @transaction.atomic
    def roll_back() -> None:
        with tenant_context(stores[0]) if older_has_store else nullcontext():
            older = transaction.savepoint()
            with tenant_context(stores[1], switch=True):
                transaction.savepoint_rollback(older)
                assert visible() == [stores[1]]

    with pytest.raises(DatabaseError, match="savepoint"):  # Django finds that of the block gone
        roll_back()
    assert visible() == []


def test_nor_does_one_written_by_hand(stores: list[UUID]) -> None:
    @transaction.atomic
    def roll_back() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SAVEPOINT by_hand")
            with tenant_context(stores[1]):
                cursor.execute("\n  rollback to by_hand")
                assert visible() == [stores[1]]

    with pytest.raises(DatabaseError, match="savepoint"):
        roll_back()


def test_what_each_store_wrote_stays_with_it(stores: list[UUID]) -> None:
    with tenant_context(stores[0]):
        Store.objects.update(name="first")
        with tenant_context(stores[1], switch=True):
            Store.objects.update(name="second")
            with suppress(ZeroDivisionError), tenant_context(stores[2], switch=True):
                Store.objects.update(name="undone")
                raise ZeroDivisionError
    names = seen("SELECT name FROM store ORDER BY id")
    assert names == [("first",), ("second",), ("Salon 2",)]


def test_callbacks_run_as_the_store_they_were_registered_in(stores: list[UUID]) -> None:
    found: list[object] = []

    def look() -> None:
        found.append((current_store_id(), visible()))

    with tenant_context(stores[0], atomic=False):
        with tenant_context(stores[1], switch=True):
            transaction.on_commit(look)
        assert found == [(stores[1], [stores[1]])], "its transaction committed while the outer block was open"
    with tenant_context(stores[0]):
        transaction.on_commit(look)
        with tenant_context(stores[2], switch=True):
            transaction.on_commit(look)
    assert found[1:] == [(stores[0], [stores[0]]), (stores[2], [stores[2]])]
