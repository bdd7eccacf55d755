"""Works as the real roles on the demo's tables, full of three stores' rows: each store's own, and no other's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID, uuid4

import psycopg
import pytest
from django.db import DataError, ProgrammingError, connections, transaction

from project.salon.demo_data import load, make_demo_data
from project.salon.demo_instants import DemoInstants
from salon_jobs import tenant_context
from tests.settings import url_for
from tests.support import change, seen

STORE_OWNED = ["store", "customer", "customer_note", "reservation", "sale", "operator_invitation"]
ROLES = {"default": "worker_runtime", "web": "app"}


@pytest.fixture(scope="module")
def filled(migrated: None) -> Iterator[list[UUID]]:
    """Load three stores' rows as the superuser; return the stores."""
    data = make_demo_data(DemoInstants.at(datetime.now(UTC)), stores=3)
    with psycopg.connect(url_for(None)) as connection:
        load(connection, data)
    yield [record["id"] for record in data.records("store")]
    change("TRUNCATE store, operator CASCADE")


def counts(alias: str, table: str, column: str) -> dict[UUID, int]:
    """Count a table's rows by store, as one role."""
    with connections[alias].cursor() as cursor:
        cursor.execute(f"SELECT {column}, count(*) FROM {table} GROUP BY 1")
        return dict(cursor.fetchall())


@pytest.mark.parametrize("alias", ROLES)
@pytest.mark.parametrize("table", STORE_OWNED)
def test_a_role_sees_and_changes_the_rows_of_its_store_alone(filled: list[UUID], alias: str, table: str) -> None:
    column = "id" if table == "store" else "store_id"
    everything = counts("owner", table, column)
    assert set(everything) == set(filled), "the owner sees rows of every store"
    assert seen("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = %s", ROLES[alias]) == [(False,)]
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT current_user")
        assert cursor.fetchone() == (ROLES[alias],)
    assert counts(alias, table, column) == {}, "without a store: no rows"
    for store in filled:
        with tenant_context(store, using=alias), connections[alias].cursor() as cursor:
            assert counts(alias, table, column) == {store: everything[store]}
            cursor.execute(f"UPDATE {table} SET {column} = {column}")
            assert cursor.rowcount == everything[store]
            cursor.execute(f"UPDATE {table} SET {column} = {column} WHERE {column} <> %s", [store])
            assert cursor.rowcount == 0
            cursor.execute(f"DELETE FROM {table} WHERE {column} <> %s", [store])
            assert cursor.rowcount == 0
    with connections[alias].cursor() as cursor:
        cursor.execute(f"DELETE FROM {table}")
        assert cursor.rowcount == 0, "without a store: no writes"
    assert counts("owner", table, column) == everything


@pytest.mark.parametrize("alias", ROLES)
def test_a_row_can_neither_be_written_for_another_store_nor_moved_there(filled: list[UUID], alias: str) -> None:
    insert = "INSERT INTO customer (id, store_id, name, email) VALUES (%s, %s, 'x', '')"
    for statement, parameters in (
        (insert, [uuid4(), filled[1]]),
        ("UPDATE sale SET store_id = %s", [filled[1]]),
        ("UPDATE store SET id = %s", [uuid4()]),
        (f"{insert} ON CONFLICT (id) DO UPDATE SET name = 'taken'", [_a_customer_of(filled[1]), filled[0]]),
    ):
        with (
            pytest.raises(ProgrammingError, match="row-level security policy"),
            tenant_context(filled[0], using=alias),
            connections[alias].cursor() as cursor,
        ):
            cursor.execute(statement, parameters)
    with (
        pytest.raises(ProgrammingError, match="row-level security policy"),
        transaction.atomic(using=alias),
        connections[alias].cursor() as cursor,
    ):
        cursor.execute(insert, [uuid4(), filled[0]])
    assert seen("SELECT count(*) FROM customer WHERE name IN ('x', 'taken')") == [(0,)]


def _a_customer_of(store: UUID) -> UUID:
    [(customer,)] = seen("SELECT id FROM customer WHERE store_id = %s LIMIT 1", store)
    assert isinstance(customer, UUID)
    return customer


def test_a_setting_that_is_no_uuid_is_an_error_not_everything(filled: list[UUID]) -> None:
    with transaction.atomic(), connections["default"].cursor() as cursor:
        cursor.execute("SELECT set_config('app.current_store_id', 'all', true)")
        with pytest.raises(DataError, match="invalid input syntax for type uuid"), transaction.atomic():
            cursor.execute("SELECT * FROM customer")
