"""Enqueues from SQL and from triggers: for the current store, and for no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import DataError, ProgrammingError, connections, transaction
from psycopg import errors

from salon_jobs import tenant_context
from tests.support import change, seen
from tests.tenancy.canaries import NOW

ADD = "SELECT job_id FROM salon_jobs_add_job('test-store', '{}', %s, job_key => 'k')"
SALE = "INSERT INTO sale (id, store_id, sold_at, amount) VALUES (%s, %s, %s, 1)"
both = pytest.mark.parametrize("alias", ["web", "default"])


def execute(alias: str, statement: str, *parameters: Any, store: UUID | None = None) -> list[tuple[object, ...]]:
    """Run a statement as a role, in a transaction, as a store or as none."""
    with ExitStack() as stack:
        stack.enter_context(tenant_context(store, using=alias) if store else transaction.atomic(using=alias))
        cursor = stack.enter_context(connections[alias].cursor())
        cursor.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


def refused(alias: str, statement: str, *parameters: Any, store: UUID | None = None) -> str:
    """Require that the database refuses it for want of a right."""
    with pytest.raises(ProgrammingError) as caught:
        execute(alias, statement, *parameters, store=store)
    assert isinstance(caught.value.__cause__, errors.InsufficientPrivilege)
    return str(caught.value)


def jobs() -> list[tuple[object, ...]]:
    """Return the stores of all jobs, as the superuser sees them."""
    return seen("SELECT store_id FROM salon_jobs_job ORDER BY id")


@both
def test_a_job_is_added_for_the_current_store_alone(stores: list[UUID], alias: str) -> None:
    own, other, _ = stores
    assert len(execute(alias, ADD, own, store=own)) == 1
    for store, current in ((other, own), (own, None), (uuid4(), own)):
        assert "store_id is not the current store" in refused(alias, ADD, store, store=current)
    assert jobs() == [(own,)]


@both
def test_a_key_of_one_store_meets_no_job_of_another(stores: list[UUID], alias: str) -> None:
    [first], [second] = (execute(alias, ADD, store, store=store) for store in stores[:2])
    assert first != second
    assert execute(alias, ADD, stores[0], store=stores[0]) == [first]
    assert jobs() == [(stores[0],), (stores[1],)]


@both
def test_a_setting_that_is_no_uuid_adds_nothing(stores: list[UUID], alias: str) -> None:
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute("SELECT set_config('app.current_store_id', 'all', true)")
        with pytest.raises(DataError, match="invalid input syntax for type uuid"), transaction.atomic(using=alias):
            cursor.execute(ADD, [stores[0]])
    assert jobs() == []


def test_the_operator_and_the_web_without_the_function_add_none(stores: list[UUID]) -> None:
    refused("operator", ADD, stores[0])
    refused("operator", "INSERT INTO salon_jobs_job (task, store_id) VALUES ('test-store', %s)", stores[0])
    direct = "INSERT INTO salon_jobs_job (task, store_id) VALUES ('test-store', %s)"
    assert "row-level security" in refused("web", direct, stores[1], store=stores[0])
    assert "row-level security" in refused("web", direct, None, store=stores[0])
    assert jobs() == []


def test_system_jobs_are_everybodys_to_add_and_to_replace_by_key(stores: list[UUID]) -> None:
    """Known and written down: it is how the web enqueues them, whatever store is current."""
    add = "SELECT job_id, result FROM salon_jobs_add_job('test-keyed-system', %s, job_key => 'k:x')"
    [(job_id, result)] = execute("web", add, '{"note": "x"}', store=stores[0])
    assert result == "inserted"
    assert execute("web", add, '{"note": "y"}', store=stores[1]) == [(job_id, "replaced")]
    assert execute("web", "SELECT * FROM salon_jobs_job", store=stores[0]) == [], "and nobody's to see"


@pytest.fixture
def trigger(stores: list[UUID]) -> Iterator[None]:
    """Add a job with every sale, for the store in the sale's row or, where the amount says so, for the second store."""
    change(
        "CREATE FUNCTION public.job_per_sale() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM public.salon_jobs_add_job('test-store', jsonb_build_object('number', NEW.amount),"
        "  CASE NEW.amount WHEN 2 THEN (SELECT current_setting('test.other')::uuid) ELSE NEW.store_id END);"
        " RETURN NULL; END $$"
    )
    change("GRANT EXECUTE ON FUNCTION public.job_per_sale() TO app, worker_runtime")
    change("CREATE TRIGGER job_per_sale AFTER INSERT OR UPDATE ON sale FOR EACH ROW EXECUTE FUNCTION job_per_sale()")
    yield
    change("DROP TRIGGER job_per_sale ON sale")
    change("DROP FUNCTION public.job_per_sale")


@both
def test_a_trigger_adds_a_job_of_the_rows_store(stores: list[UUID], trigger: None, alias: str) -> None:
    own, other, _ = stores
    execute(alias, SALE, uuid4(), own, NOW, store=own)
    assert jobs() == [(own,)]
    assert "row-level security" in refused(alias, SALE, uuid4(), other, NOW, store=own)
    execute(alias, "UPDATE sale SET amount = 1", store=other)
    assert jobs() == [(own,)], "another store's update reaches no row, so it fires nothing"
    with tenant_context(own, using=alias):
        execute(alias, SALE, uuid4(), own, NOW)
        transaction.set_rollback(True, using=alias)
    assert jobs() == [(own,)], "rolled back with the sale"


@both
def test_a_trigger_that_names_another_store_fails_and_takes_its_statement_along(
    stores: list[UUID], trigger: None, alias: str
) -> None:
    own, other, _ = stores
    execute(alias, SALE, uuid4(), own, NOW, store=own)
    sneak = "WITH setting AS (SELECT set_config('test.other', %s, true)) UPDATE sale SET amount = 2 FROM setting"
    assert "store_id is not the current store" in refused(alias, sneak, str(other), store=own)
    assert jobs() == [(own,)]
    assert seen("SELECT amount FROM sale") == [(1,)]
