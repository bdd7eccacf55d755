"""System tasks, which belong to no store: they open no tenant context, and reach no row of a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction

from project.salon.models import Customer, Store
from salon_jobs import current_store_id, tenant_context
from salon_jobs.core.errors import TenantContextError
from salon_jobs.core.outcomes import Errored, Succeeded
from salon_jobs.testing import perform_job
from tests import tasks
from tests.settings import url_for
from tests.support import run_due, seen
from tests.tenancy import canaries
from tests.tenancy.matrix import COMMANDS, MATRIX, Command
from tests.tenancy.probe import ask, backend, carried
from tests.tenancy.test_matrix import NOT_UNDER_RLS, REFUSED, Attempts, Outcome, Scene

# The business tables under the store's policy; what of jobs a worker reaches is its own trade.
_RIGHTS = {name: table.right("worker_runtime") for name, table in MATRIX.items()}
TABLES = [name for name, right in _RIGHTS.items() if right.scope == "own" and right.letters]
NOTHING = {
    "SELECT": 0,
    "INSERT": REFUSED,
    "UPDATE": 0,
    "DELETE": 0,
    "COPY TO": 0,
    "COPY FROM": NOT_UNDER_RLS,
    "TRUNCATE": REFUSED,
}


def test_it_sees_and_changes_no_row_and_opens_no_context(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int
) -> None:
    notes: list[object] = []

    def body(**_: object) -> None:
        with transaction.atomic():
            notes.append((current_store_id(), Store.objects.count(), Store.objects.update(name="changed")))
        for options in ({}, {"atomic": False}, {"switch": True}):
            arguments: dict[str, Any] = options
            with pytest.raises(TenantContextError, match="'test-system' is a system task"):
                tenant_context(stores[0], **arguments).__enter__()
        with tenant_context(stores[0]):
            Customer.objects.all().delete()

    hooks.system = body
    tasks.system.enqueue()
    [outcome] = run_due(process_id)
    assert isinstance(outcome, Errored)
    assert isinstance(outcome.error, TenantContextError)
    assert notes == [(None, 0, 0)]
    with tenant_context(stores[0]):
        assert Store.objects.count() == 1, "what comes after it is free again"
    with pytest.raises(TenantContextError, match="is a system task"):
        perform_job(tasks.system)


def test_an_async_one_opens_none_either(stores: list[UUID], hooks: tasks.Hooks, process_id: int) -> None:
    async def body(**_: object) -> None:
        for opened in (tenant_context(stores[0]), tenant_context(stores[0], atomic=False)):
            for enter in (
                opened.__aenter__,
                sync_to_async(opened.__enter__),
                lambda opened=opened: asyncio.create_task(opened.__aenter__()),
            ):
                with pytest.raises(TenantContextError, match="is a system task"):
                    await enter()

    hooks.coroutine = body
    tasks.async_system.enqueue()
    assert run_due(process_id) == [Succeeded(finished=False)]


@pytest.fixture
def filled(stores: list[UUID]) -> Iterator[list[UUID]]:
    """Put rows of each store into the tables."""
    with psycopg.connect(url_for(None), autocommit=True) as superuser:
        canaries.fill(superuser, stores, TABLES)
        yield stores
        canaries.clear(superuser)


def outcomes(table: str, store: UUID) -> dict[Command, Outcome]:
    """Try every command on one table, on the task's own connection."""
    attempts = Attempts(connection.connection, table, MATRIX[table], Scene(store, store, {}))
    return {command: attempts.outcome("never set", command) for command in COMMANDS}


def test_the_tables_are_those_of_stores() -> None:
    of_stores = {name for name, table in MATRIX.items() if table.store and not name.startswith("salon_jobs_")}
    assert set(TABLES) == of_stores - {"membership"}, "on which the worker has no right at all"


def counted() -> dict[str, int]:
    return {table: seen(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES}


def test_a_system_task_reaches_no_row_of_a_store(filled: list[UUID], process_id: int, hooks: tasks.Hooks) -> None:
    before = counted()
    assert min(before.values()) >= len(filled)
    notes: list[object] = []

    def try_everything(**_: object) -> None:
        notes.extend((ask("SELECT session_user"), carried()))
        notes.append({table: outcomes(table, filled[0]) for table in TABLES})

    hooks.system = try_everything
    tasks.system.enqueue()
    [outcome] = run_due(process_id)
    assert isinstance(outcome, Succeeded), outcome
    assert notes == ["worker_runtime", "", dict.fromkeys(TABLES, NOTHING)]
    assert counted() == before


def test_nor_does_one_that_follows_a_stores_job_on_the_same_connection(
    filled: list[UUID], process_id: int, hooks: tasks.Hooks
) -> None:
    notes: list[object] = []
    backends: set[int] = set()

    def noting(work: Callable[[], object]) -> Callable[..., None]:
        def run(**_: object) -> None:
            backends.add(backend())
            notes.append(work())

        return run

    hooks.store = noting(transaction.atomic(Customer.objects.count))
    hooks.system = noting(lambda: outcomes("customer", filled[0]))
    store = {"store_id": filled[0]}
    enqueued: list[tuple[Any, dict[str, UUID]]] = [(tasks.in_store, store), (tasks.outside, store), (tasks.system, {})]
    for task, arguments in enqueued:
        task.enqueue(**arguments)
        run_due(process_id)
    assert (notes, len(backends)) == ([1, 1, NOTHING], 1)
