"""Strict mode: a statement on a store's table outside a store raises an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.conf import settings as django_settings
from django.core import mail
from django.db import DatabaseError, connection, connections, models, transaction
from psycopg import sql

from project.salon.models import Customer, Membership, Store
from salon_jobs import tenant_context
from salon_jobs.checks.isolation import check_isolation
from salon_jobs.core.errors import TenantContextError
from salon_jobs.tenancy import expect_no_rows
from tests.support import change, row


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
        lambda: connection.cursor().execute(sql.SQL("SELECT 1 FROM {}").format(sql.Identifier("customer"))),
        lambda: connection.cursor().executemany("DELETE FROM ONLY customer WHERE id = %s", [(uuid4(),)]),
        lambda: list(Customer.objects.filter(models.Exists(Store.objects.filter(id=models.OuterRef("store_id"))))),
    ],
)
def test_statement_outside_store_is_error(customer: UUID, query: Any) -> None:
    with pytest.raises(TenantContextError, match=r"no row of (customer|store|membership): run it in tenant_"):
        query()
    with tenant_context(customer):
        assert names() == ["Aiko"]
    with pytest.raises(TenantContextError):
        query()


NAMED = [
    "select 1 from CUSTOMER c",
    'SELECT 1 FROM "customer"',
    'SELECT 1 FROM public.customer, "public"."store"',
    'SELECT 1 FROM "public" . "customer"',
    "SELECT 1 FROM ONLY customer",
    "SELECT 1 FROM ONLY (customer)",
    "SELECT 1 FROM customer * AS c",
    "SELECT 1 FROM/**/customer",
    # Comments
    "-- name: all_customers\nSELECT 1 FROM customer",
    "/* named /* and nested */ from nothing */ SELECT 1 FROM customer",
    "SELECT 1 FROM -- the table\n customer",
    "SELECT 1 FROM /* the table */ customer",
    "SELECT 1 --\rFROM customer",
    # Lists and joins
    "SELECT 1 FROM django_migrations, customer",
    "SELECT 1 FROM django_migrations AS m (a, b), LATERAL (SELECT 1) l, customer",
    "SELECT 1 FROM django_migrations CROSS JOIN customer",
    "SELECT 1 FROM django_migrations m NATURAL LEFT OUTER JOIN customer",
    "SELECT 1 FROM (customer CROSS JOIN django_migrations)",
    "SELECT 1 FROM ((django_migrations m CROSS JOIN customer))",
    "SELECT 1 FROM a JOIN (b JOIN customer USING (id)) ON true",
    "SELECT 1 FROM a JOIN b ON CASE WHEN a.x THEN b.y END, customer",
    "SELECT 1 FROM a JOIN b ON a.from = b.x, customer",
    "SELECT 1 FROM a JOIN b USING (id), customer",
    "SELECT 1 FROM generate_series(1, 2) WITH ORDINALITY AS g (x, y), customer",
    "SELECT 1 FROM ROWS FROM (generate_series(1, 2), generate_series(3, 4)) AS r, customer",
    "SELECT 1 FROM a TABLESAMPLE SYSTEM (10), customer",
    # Queries in queries
    "SELECT (SELECT 1 FROM customer)",
    "SELECT 1 WHERE EXISTS (SELECT FROM customer)",
    "SELECT extract(year FROM (SELECT max(x) FROM customer))",
    "SELECT ARRAY(TABLE customer)",
    "SELECT 1 UNION ALL SELECT 1 FROM customer",
    "((SELECT 1) UNION (SELECT 1 FROM customer))",
    "SELECT 1 FROM (SELECT 1 FROM customer) AS c",
    "VALUES (1, (SELECT count(*) FROM customer))",
    "WITH c AS (SELECT 1 FROM customer) SELECT 1 FROM c",
    "WITH c AS NOT MATERIALIZED (TABLE customer), d AS (SELECT 1) TABLE d",
    "WITH a AS (SELECT 1), b (x, y) AS (SELECT 1 FROM a) SELECT 1 FROM b, customer",
    "WITH RECURSIVE a AS (SELECT 1 UNION SELECT 1 FROM a, customer) TABLE a",
    "WITH customer AS (SELECT 1 FROM customer) TABLE customer",
    "WITH customer AS (SELECT 1) SELECT 1 FROM public.customer",
    "WITH c AS (DELETE FROM customer RETURNING id) SELECT 1 FROM c",
    "SELECT 1 FROM (WITH customer AS (SELECT 1) TABLE customer) c, customer",
    # Other statements
    "TABLE customer",
    "TABLE ONLY customer",
    "SELECT 1 EXCEPT TABLE customer",
    "INSERT INTO customer (id) VALUES (1)",
    "INSERT INTO customer(id) VALUES (1)",
    "INSERT INTO other SELECT 1 FROM customer",
    "INSERT INTO other TABLE customer",
    "WITH c AS (SELECT 1) INSERT INTO customer TABLE c",
    "INSERT INTO other (a) VALUES (1) ON CONFLICT DO UPDATE SET a = (SELECT 1 FROM customer)",
    "UPDATE customer SET name = 'x'",
    "UPDATE ONLY public.customer AS c SET name = 'x'",
    "UPDATE other SET a = b FROM customer WHERE true",
    "UPDATE other SET a = b IS DISTINCT FROM c FROM other2, customer",
    "DELETE FROM customer",
    "DELETE FROM other USING customer WHERE true",
    "DELETE FROM other AS o USING (a CROSS JOIN b), customer",
    "MERGE INTO customer USING other ON true WHEN MATCHED THEN DELETE",
    "MERGE INTO other USING customer AS c ON true WHEN MATCHED THEN DO NOTHING",
    "MERGE INTO other USING (SELECT 1 FROM customer) c ON true WHEN MATCHED THEN DELETE",
    "COPY customer TO STDOUT",
    "COPY public.customer (id, name) FROM STDIN",
    "COPY (SELECT 1 FROM customer) TO STDOUT",
    "DECLARE c NO SCROLL CURSOR WITH HOLD FOR SELECT 1 FROM customer",
    "CREATE TEMP TABLE c AS SELECT 1 FROM customer",
    "CREATE TABLE IF NOT EXISTS c (x) WITH (fillfactor = 70) AS (TABLE customer)",
    "EXPLAIN (ANALYZE, COSTS off) UPDATE customer SET name = 'x'",
    "SET search_path = public; SELECT 1 FROM customer",
    "SELECT 'it''s', E'it\\'s', $$'$$, $a$ $$ ' $a$, U&'d\\0061' FROM customer",
]
OTHERS = [
    "SELECT 1 AS customer",
    "SELECT customer FROM django_migrations GROUP BY a, customer ORDER BY b, customer",
    "SELECT customer.id, 1 FROM django_migrations AS customer",
    'SELECT 1 FROM django_migrations m, customers, customer_, my.customer_of, "Customer"',
    "SELECT 'from customer_of', 'x FROM customer' FROM django_migrations",
    "SELECT E'\\' FROM customer', $$ FROM customer $$, $a$ $$ FROM customer $a$, 'a'' FROM customer'",
    "SELECT 1 -- FROM customer",
    "SELECT 1 /* FROM /* customer */ JOIN customer */",
    'SELECT 1 AS " FROM customer "',
    "SELECT extract(year FROM customer), trim(both FROM customer), substring(a FROM customer)",
    "SELECT a IS DISTINCT FROM customer, b IS NOT DISTINCT FROM customer",
    "SELECT 1 FROM customer(1)",
    "SELECT 1 FROM a JOIN b USING (id, customer)",
    "SELECT 1 FROM ROWS FROM (f(customer), customer(1)) r",
    "SELECT 1 FROM a AS b (c, customer)",
    "SELECT 1 FROM a FOR UPDATE OF b, a",
    "SELECT f(1, customer) FROM a JOIN b ON f(a, customer)",
    "SELECT 1 FROM a WINDOW w AS (PARTITION BY b, customer)",
    "UPDATE django_migrations SET a = 1, customer = 2 RETURNING b, customer",
    "DELETE FROM django_migrations WHERE customer RETURNING a, customer",
    "INSERT INTO django_migrations (a, customer) VALUES (1, 2) RETURNING a, customer",
    "INSERT INTO other (a) VALUES (1) ON CONFLICT (customer) DO UPDATE SET a = 1, customer = 2",
    "MERGE INTO other USING a ON true WHEN MATCHED THEN UPDATE SET b = 1, customer = 2",
    "WITH customer AS (SELECT 1) SELECT 1 FROM customer, a JOIN customer ON true",
    "WITH a AS (SELECT 1), customer (x) AS (TABLE a) TABLE customer",
    "WITH RECURSIVE customer (x) AS (SELECT 1 UNION ALL SELECT 1 FROM customer) TABLE customer",
    "INSERT INTO other WITH customer AS (SELECT 1) SELECT 1 FROM customer",
    "WITH customer AS (SELECT 1) SELECT 1 WHERE EXISTS (SELECT FROM customer)",
    "COPY other (customer) FROM STDIN",
    "CREATE VIEW everybody AS SELECT * FROM customer",
    "CREATE TABLE c (LIKE customer)",
    "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 1 FROM customer; END",
    "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS $$ SELECT 1 FROM customer $$",
    "EXPLAIN SELECT 1 FROM customer",
    "SELECT 1 /* FROM customer",
    "SELECT 'FROM customer",
    "",
]


@pytest.fixture
def sent(customer: UUID) -> Callable[[str], bool]:
    """Return whether strict mode lets a statement pass, which is not run then."""

    def is_sent(statement: str) -> bool:
        passed: list[str] = []

        def stop(execute: Any, statement: str, parameters: Any, many: bool, context: Any) -> None:
            passed.append(statement)

        with connection.execute_wrapper(stop), connection.cursor() as cursor:
            try:
                cursor.execute(statement)
            except TenantContextError:
                assert passed == []
        return bool(passed)

    return is_sent


def test_every_way_to_name_table(sent: Callable[[str], bool]) -> None:
    assert [statement for statement in NAMED if sent(statement)] == []


def test_names_of_other_things(sent: Callable[[str], bool]) -> None:
    assert [statement for statement in OTHERS if not sent(statement)] == []


def test_definition_is_left_to_server(customer: UUID) -> None:
    with connection.cursor() as cursor, pytest.raises(DatabaseError, match="permission denied"):
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


class ReadsElsewhere:
    """Router of a project that reads from a replica: another login of the database, as which no store is set."""

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str:
        return "web"


@pytest.fixture
def replica(customer: UUID, settings: Any) -> Iterator[UUID]:
    settings.DATABASE_ROUTERS = [ReadsElsewhere()]
    connections["web"].close()  # one from before strict mode
    yield customer
    connections["web"].close()


def test_reads_through_replica_are_refused(replica: UUID) -> None:
    with tenant_context(replica):
        assert list(Customer.objects.using("default").values_list("name", flat=True)) == ["Aiko"]
        with pytest.raises(TenantContextError, match=r"no store is set on the database 'web'.* using='web'\).*ROUTERS"):
            names()
        with tenant_context(replica, using="web"):
            assert names() == ["Aiko"]
        with expect_no_rows():
            assert names() == []


def test_alias_that_shows_all_stores_is_open(replica: UUID) -> None:
    """As the operator's, where StoreIsolation opens the stores' names to it, and that of a superuser."""
    change("CREATE POLICY names ON store FOR SELECT TO jobs_operator USING (true)")
    change("GRANT SELECT ON store TO jobs_operator")
    try:
        with connections["operator"].cursor() as cursor:
            for _ in range(2):
                cursor.execute("SELECT count(*) FROM store")
                assert cursor.fetchone() == (3,)
    finally:
        change("REVOKE SELECT ON store FROM jobs_operator")
        change("DROP POLICY names ON store")
    assert Customer.objects.using("owner").count() == 1
    with pytest.raises(DatabaseError, match="RunForEachStore"):
        Customer.objects.using("migrator").count()


def test_check_names_router_of_reads(settings: Any) -> None:
    assert [found for found in check_isolation() if found.id == "salon_jobs.W016"] == []
    settings.DATABASE_ROUTERS = [ReadsElsewhere()]
    [found] = [found for found in check_isolation() if found.id == "salon_jobs.W016"]
    assert "such as salon." in found.msg
    assert "'web'" in found.msg
    assert "'default'" in str(found.hint)
    assert "using='web'" in str(found.hint)
