"""Counts what a store on the connection costs on the wire, beside the same work in plain transactions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from uuid import UUID

import pytest
from django.db import connection, transaction

from salon_jobs import tenant_context
from salon_jobs.core.outcomes import Succeeded
from salon_jobs.models import Limit
from tests import tasks
from tests.support import claim, run
from tests.tenancy.round_trips import round_trips

ActiveContext = Callable[[UUID], AbstractContextManager[object]]


def plain(_store: UUID) -> AbstractContextManager[object]:
    """Open a transaction, or a savepoint in one."""
    return transaction.atomic()


def context(store: UUID) -> AbstractContextManager[object]:
    """Open a context with its transaction, or a savepoint in one."""
    return tenant_context(store)


def outside(store: UUID) -> AbstractContextManager[object]:
    """Open a context that holds no transaction."""
    return tenant_context(store, atomic=False)


def look(**_: object) -> None:
    """Make one query."""
    Limit.objects.exists()


def trips(store: UUID, *blocks: ActiveContext) -> int:
    """Count the round trips of one query inside blocks, one in the other."""
    with round_trips(connection) as counted, ExitStack() as stack:
        for block in blocks:
            stack.enter_context(block(store))
        look()
    return counted[0]


@pytest.mark.parametrize(
    ("ours", "theirs", "more"),
    [
        pytest.param([context], [plain], 0, id="rides with BEGIN"),
        pytest.param([context, plain], [plain, plain], 0, id="a savepoint inside"),
        pytest.param([context, context], [plain, plain], 0, id="nested"),
        pytest.param([outside, plain], [plain], 0, id="rides with the BEGIN of each transaction"),
        pytest.param([outside, context], [plain], 0, id="a context in one without a transaction"),
        # There is no BEGIN left to ride with, and what goes on outside must not have the store.
        pytest.param([plain, context], [plain, plain], 2, id="set and taken off inside a transaction"),
    ],
)
def test_what_a_context_costs_beside_plain_transactions(
    stores: list[UUID], ours: list[ActiveContext], theirs: list[ActiveContext], more: int
) -> None:
    assert trips(stores[0], *ours) - trips(stores[0], *theirs) == more


def test_a_job_of_a_store_takes_fewer_than_one_without(stores: list[UUID], process_id: int, hooks: tasks.Hooks) -> None:
    """BEGIN with the store, the query, the end with COMMIT; a system task finishes after its own transaction."""

    def in_transaction(**_: object) -> None:
        with transaction.atomic():
            look()

    def run_next() -> int:
        [job] = claim(process_id)
        with round_trips(connection) as counted:
            assert isinstance(run(job, process_id), Succeeded)
        return counted[0]

    hooks.store, hooks.system = look, in_transaction
    tasks.in_store.enqueue(store_id=stores[0])
    assert run_next() == 3
    tasks.system.enqueue()
    assert run_next() == 4
