"""Strict mode: a statement on a store's table outside a store raises an error that says what to do."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.conf import settings as django_settings
from django.core import mail
from django.db import DatabaseError, connection, connections, models, transaction
from psycopg import sql

from project.salon.models import Customer, Membership, Store
from salon_jobs import tenant_context
from salon_jobs.core.errors import TenantContextError
from salon_jobs.tenancy import expect_no_rows
from tests.support import row


@pytest.fixture
def customer(stores: list[UUID], web_role: None, settings: Any) -> UUID:
    """Write a customer of the first store, and be the web role, in strict mode."""
    settings.SALON_JOBS = {**settings.SALON_JOBS, "STRICT": True}
    row("customer", store_id=stores[0], name="Aiko", email="")
    return stores[0]


def names() -> list[str]:
    return list(Customer.objects.values_list("name", flat=True))


@pytest.mark.parametrize(
    "query",
    [
        names,
        Customer.objects.exists,
        Store.objects.count,
        Membership.objects.count,
        lambda: Customer.objects.update(name="x"),
        lambda: Customer.objects.all().delete(),
        lambda: Customer(id=uuid4(), store_id=uuid4(), name="x", email="").save(force_insert=True),
        lambda: connection.cursor().execute("select 1 from CUSTOMER c"),
        lambda: connection.cursor().execute("SELECT 1 FROM public.customer"),
        lambda: connection.cursor().execute(sql.SQL("SELECT 1 FROM {}").format(sql.Identifier("customer"))),
        lambda: connection.cursor().executemany("DELETE FROM ONLY customer WHERE id = %s", [(uuid4(),)]),
        lambda: list(Customer.objects.filter(models.Exists(Store.objects.filter(id=models.OuterRef("store_id"))))),
    ],
)
def test_statement_outside_store_is_error(customer: UUID, query: Any) -> None:
    with pytest.raises(TenantContextError, match=r"no row of (customer|store|membership|CUSTOMER): run it in tenant_"):
        query()
    with tenant_context(customer):
        assert names() == ["Aiko"]
    with pytest.raises(TenantContextError):
        query()


def test_statement_without_tables_of_stores(customer: UUID) -> None:
    with connection.cursor() as cursor:
        for statement in ("SELECT 1 AS customer", "SELECT 'from customer_of', 'x' FROM django_migrations"):
            cursor.execute(statement)
        with pytest.raises(DatabaseError, match="permission denied"):
            cursor.execute("CREATE VIEW everybody AS SELECT * FROM customer")


def test_between_transactions_there_is_no_store(customer: UUID) -> None:
    with tenant_context(customer, atomic=False):
        with pytest.raises(TenantContextError, match="no store is set"):
            names()
        with transaction.atomic():
            assert names() == ["Aiko"]
    with tenant_context(customer, atomic=False, scope="session"):
        assert names() == ["Aiko"]


def test_transaction_goes_on_after_error(customer: UUID, django_assert_num_queries: Any) -> None:
    with transaction.atomic(), django_assert_num_queries(2):
        with pytest.raises(TenantContextError):
            names()
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")


def test_expect_no_rows(customer: UUID) -> None:
    with expect_no_rows():
        assert names() == []
    with pytest.raises(TenantContextError):
        names()


def test_superuser_is_not_refused(customer: UUID) -> None:
    connections["default"].close()
    connections["default"].settings_dict = connections.settings["owner"]
    assert names() == ["Aiko"]
    with connection.cursor() as cursor:
        cursor.execute(f"SET ROLE {django_settings.SALON_JOBS['ROLES']['web']}")
    with pytest.raises(TenantContextError):
        names()


@pytest.mark.parametrize(
    ("debug", "is_test", "strict", "refused"),
    [
        (True, False, None, True),
        (False, True, None, True),
        (False, False, None, False),
        (False, False, True, True),
        (True, True, False, False),
    ],
)
def test_strict_by_default_in_debug_and_tests(
    customer: UUID,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    debug: bool,
    is_test: bool,
    strict: Any,
    refused: bool,
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "STRICT": strict}
    settings.DEBUG = debug
    if not is_test:
        monkeypatch.delattr(mail, "outbox")
    if not refused:
        assert names() == []
        return
    with pytest.raises(TenantContextError):
        names()
