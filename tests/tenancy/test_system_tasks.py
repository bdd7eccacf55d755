"""Runs system tasks that try to touch the stores' tables: the database lets them reach no row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import DatabaseError, connection, transaction
from psycopg import errors, sql

from salon_jobs.core.outcomes import Succeeded
from tests import tasks
from tests.settings import url_for
from tests.support import run_due, seen
from tests.tenancy import canaries
from tests.tenancy.matrix import MATRIX

# The business tables under the store's policy; what of jobs a worker reaches is its own trade.
_RIGHTS = {name: table.right("worker_runtime") for name, table in MATRIX.items()}
TABLES = [name for name, right in _RIGHTS.items() if right.scope == "own" and right.letters]


@pytest.fixture
def filled(stores: list[UUID]) -> Iterator[list[UUID]]:
    """Put rows of each store into those tables."""
    with psycopg.connect(url_for(None), autocommit=True) as superuser:
        canaries.fill(superuser, stores, TABLES)
        yield stores
        canaries.clear(superuser)


def total(table: str) -> int:
    """Count a table's rows as the superuser."""
    [(count,)] = seen(f"SELECT count(*) FROM {table}")
    return int(count)


def reached(statement: sql.Composable, *parameters: Any) -> int | str:
    """Run a statement on the task's own connection, in a savepoint; return the rows it reached, or its refusal."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return int(cursor.rowcount)
    except DatabaseError as error:
        if isinstance(error.__cause__, errors.InsufficientPrivilege):
            return "refused"
        raise


def copy_out(table: sql.Identifier) -> int:
    """Copy a table out and count the rows."""
    with connection.cursor() as cursor, cursor.cursor.copy(sql.SQL("COPY {} TO STDOUT").format(table)) as copy:
        return sum(1 for _ in copy.rows())


def copy_in(table: str, store: UUID) -> str:
    """Try COPY FROM, which row-level security rules out altogether."""
    row = canaries.make(table, store)
    columns = sql.SQL(", ").join(map(sql.Identifier, row))
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table), columns)
    try:
        with transaction.atomic(), connection.cursor() as cursor, cursor.cursor.copy(statement) as copy:
            copy.write_row(list(row.values()))
    except errors.FeatureNotSupported:
        return "refused"
    return "copied"


def attempts(table: str, store: UUID) -> dict[str, int | str]:
    """Try every command on one table."""
    name = sql.Identifier(table)
    column = sql.Identifier(str(MATRIX[table].store))
    insert, values = canaries.insert(table, canaries.make(table, store))
    return {
        "SELECT": reached(sql.SQL("SELECT * FROM {}").format(name)),
        "INSERT": reached(insert, *values),
        "UPDATE": reached(sql.SQL("UPDATE {} SET {} = %s").format(name, column), store),
        "DELETE": reached(sql.SQL("DELETE FROM {}").format(name)),
        "COPY TO": copy_out(name),
        "COPY FROM": copy_in(table, store),
        "TRUNCATE": reached(sql.SQL("TRUNCATE {} CASCADE").format(name)),
    }


NOTHING = {
    "SELECT": 0,
    "INSERT": "refused",
    "UPDATE": 0,
    "DELETE": 0,
    "COPY TO": 0,
    "COPY FROM": "refused",
    "TRUNCATE": "refused",
}


def test_there_are_such_tables() -> None:
    of_stores = {name for name, table in MATRIX.items() if table.store and not name.startswith("salon_jobs_")}
    assert set(TABLES) == of_stores - {"membership"}, "on which the worker has no right at all"


@pytest.mark.parametrize("table", TABLES)
def test_a_system_task_reaches_no_row_of_a_store(
    filled: list[UUID], process_id: int, hooks: tasks.Hooks, table: str
) -> None:
    before = total(table)
    assert before >= len(filled)
    found: list[object] = []

    def work(**_: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT session_user, nullif(current_setting('app.current_store_id', true), '')")
            found.append(cursor.fetchone())
        found.append(attempts(table, filled[0]))

    hooks.system = work
    tasks.system.enqueue()
    [outcome] = run_due(process_id)
    assert isinstance(outcome, Succeeded), outcome
    assert found == [("worker_runtime", None), NOTHING]
    assert total(table) == before


def test_nor_does_one_that_follows_a_stores_job_on_the_same_connection(
    filled: list[UUID], process_id: int, hooks: tasks.Hooks
) -> None:
    backends: list[int] = []

    def noting(work: Callable[[], object]) -> Callable[..., None]:
        def run(**_: object) -> None:
            backends.append(connection.connection.info.backend_pid)
            work()

        return run

    found: list[object] = []
    hooks.store = noting(lambda: found.append(reached(sql.SQL("SELECT * FROM customer"))))
    hooks.system = noting(lambda: found.append(attempts("customer", filled[0])))
    tasks.in_store.enqueue(store_id=filled[0])
    assert all(isinstance(outcome, Succeeded) for outcome in run_due(process_id))
    tasks.outside.enqueue(store_id=filled[0])
    run_due(process_id)
    tasks.system.enqueue()
    run_due(process_id)
    assert found == [1, 1, NOTHING]
    assert len(set(backends)) == 1
