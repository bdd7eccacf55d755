"""The plans of business statements under the store policy, as the web role: 300 stores, 100 sales each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from salon_jobs.access.policies import Parent, store_access
from salon_jobs.conf import settings as conf
from salon_jobs.core.rights import ALL_ROWS
from tests.plans.explain import as_store
from tests.support import change, plan_nodes, seen, store_id_sql

STORES = 300
SALES = 100
RESERVATIONS = 20
REMARKS = 5


class Case(NamedTuple):
    """A statement that names no store, the indexes that may find its rows, and how many it may read of a table."""

    statement: str
    indexes: frozenset[str]
    most: int
    table: str = "sale"


_JOIN = "SELECT r.starts_at, c.name FROM reservation r JOIN customer c ON c.id = r.customer_id"
_EXISTS = "SELECT * FROM customer c WHERE EXISTS (SELECT 1 FROM reservation r WHERE r.customer_id = c.id)"
BY_TIME = frozenset({"sale_sold_at"})
BY_STORE = BY_TIME | {"sale_store_id"}
CUSTOMERS = frozenset({"customer_pkey", "customer_store_id"})
REMARKS_OF = frozenset({"remark_customer_id_idx", "remark_pkey"})
FIRST_DAY = "sold_at < '2026-01-02'"
CASES = {
    "a range of an index": Case(f"SELECT * FROM sale WHERE {FIRST_DAY}", BY_TIME, SALES // 2),
    "ordered and limited": Case("SELECT * FROM sale ORDER BY sold_at DESC LIMIT 10", BY_TIME, 10),
    "all of a store": Case("SELECT * FROM sale", BY_STORE, SALES),
    "an aggregate": Case("SELECT count(*), sum(amount) FROM sale", BY_STORE, SALES),
    "an aggregate by group": Case("SELECT sold_at::date, sum(amount) FROM sale GROUP BY 1 ORDER BY 1", BY_STORE, SALES),
    "a key": Case(
        "SELECT * FROM sale WHERE id = '00000000-0000-4000-8000-000000000007'",
        frozenset({"sale_pkey", "sale_store_id"}),
        1,
    ),
    # LIKE is not leakproof: it sees no row before the policy has passed it, and no index is walked by it.
    "a condition that is not leakproof": Case(
        "SELECT * FROM customer WHERE name LIKE 'Hanako 1%'", frozenset({"customer_store_id"}), RESERVATIONS, "customer"
    ),
    "an update": Case(f"UPDATE sale SET amount = amount + 1 WHERE {FIRST_DAY}", BY_TIME, SALES // 2),
    "a delete": Case(f"DELETE FROM sale WHERE {FIRST_DAY}", BY_TIME, SALES // 2),
    "a join, its first table": Case(
        _JOIN, frozenset({"reservation_customer", "reservation_store_id"}), RESERVATIONS, "reservation"
    ),
    "a join, its second table": Case(_JOIN, CUSTOMERS, RESERVATIONS, "customer"),
    "a lookup of other rows": Case(_EXISTS, CUSTOMERS, RESERVATIONS, "customer"),
    "a child by its key": Case("SELECT * FROM remark WHERE id = 7", REMARKS_OF, 1, "remark"),
    "all children": Case("SELECT * FROM remark", REMARKS_OF, RESERVATIONS * REMARKS, "remark"),
    "an aggregate of children": Case("SELECT count(*) FROM remark", REMARKS_OF, RESERVATIONS * REMARKS, "remark"),
    "children and their parents": Case(
        "SELECT c.name, r.id FROM remark r JOIN customer c ON c.id = r.customer_id",
        REMARKS_OF,
        RESERVATIONS * REMARKS,
        "remark",
    ),
    "the parents of children": Case("SELECT * FROM remark", CUSTOMERS, RESERVATIONS, "customer"),
    "an update of children": Case("UPDATE remark SET id = id", REMARKS_OF, RESERVATIONS * REMARKS, "remark"),
    "children of two parents": Case(
        "SELECT * FROM visit", frozenset({"visit_customer_id_idx", "visit_reservation_id_idx"}), RESERVATIONS, "visit"
    ),
}
_CURSOR = "by a server-side cursor"  # it only reads
WAYS = ("as it is", "by a kept plan", _CURSOR)


@pytest.fixture(scope="module")
def stores(migrated: None) -> Iterator[list[str]]:
    """Fill the tables of the demo: the same days and names in every store."""
    change("SET session_replication_role = replica")  # no foreign key is checked
    change(f"INSERT INTO store (id, name) SELECT {store_id_sql()}, 'Salon' FROM generate_series(1, %s)", STORES)
    change(
        "INSERT INTO sale (id, store_id, sold_at, amount)"
        " SELECT gen_random_uuid(), s.id, timestamptz '2026-01-01' + n * interval '1 hour', n"
        "   FROM generate_series(1, %s) AS n, store AS s",
        SALES,
    )
    change(
        "INSERT INTO customer (id, store_id, name, email)"
        " SELECT gen_random_uuid(), s.id, 'Hanako ' || n, '' FROM generate_series(1, %s) AS n, store AS s",
        RESERVATIONS,
    )
    change(
        "INSERT INTO reservation (id, store_id, customer_id, status, starts_at)"
        " SELECT gen_random_uuid(), c.store_id, c.id, 'confirmed', now() FROM customer AS c"
    )
    change("RESET session_replication_role")
    change(
        "CREATE TABLE remark AS SELECT row_number() OVER () AS id, id AS customer_id"
        "  FROM customer, generate_series(1, %s)",
        REMARKS,
    )
    change("CREATE TABLE visit AS SELECT id AS reservation_id, customer_id FROM reservation")
    change("ALTER TABLE remark ADD PRIMARY KEY (id); CREATE INDEX ON remark (customer_id)")
    change("CREATE INDEX ON visit (customer_id); CREATE INDEX ON visit (reservation_id)")
    customer, reservation = Parent("customer_id", "customer", "id"), Parent("reservation_id", "reservation", "id")
    roles, may = conf.roles, dict.fromkeys(ALL_ROWS, ())
    for table, through in (("remark", [customer]), ("visit", [customer, reservation])):
        for statement in store_access(table, "", through, roles=roles, web=may, worker=may).install(roles.runtime):
            change(statement)
    change("VACUUM (ANALYZE) store, sale, customer, reservation, remark, visit")
    yield [str(row[0]) for row in seen("SELECT id FROM store ORDER BY id LIMIT 2")]
    change("TRUNCATE store CASCADE; DROP TABLE remark, visit")


def explained(cursor: Any, statement: str) -> list[dict[str, Any]]:
    cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}")
    return plan_nodes(cursor.fetchone()[0])


@pytest.mark.parametrize(
    ("name", "way"),
    [(n, way) for n in CASES for way in WAYS if CASES[n].statement.startswith("SELECT") or way != _CURSOR],
)
def test_statement_reads_own_rows_by_index(stores: list[str], name: str, way: str) -> None:
    """No plan reads other stores' rows, or reads the setting more than once in each place."""
    case = CASES[name]
    with as_store(stores[0]) as cursor:
        if way == "by a kept plan":  # as functions and prepared statements have them, made before any store is known
            cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            cursor.execute(f"PREPARE kept AS {case.statement}")
            explained(cursor, "EXECUTE kept")
            cursor.execute("SELECT set_config('app.current_store_id', %s, true)", [stores[1]])
            plan = explained(cursor, "EXECUTE kept")
            cursor.execute("DEALLOCATE kept")
        else:
            walk = "DECLARE walk NO SCROLL CURSOR FOR " if way == _CURSOR else ""
            plan = explained(cursor, walk + case.statement)
    scans = [node for node in plan if node.get("Relation Name") == case.table and node["Node Type"] != "ModifyTable"]
    bitmaps = [node for node in plan if node["Node Type"] == "Bitmap Index Scan"]
    used = {node["Index Name"] for node in scans + bitmaps if "Index Name" in node}
    assert used & case.indexes, used
    assert not any("Seq Scan" in node["Node Type"] for node in scans)
    read = sum((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in scans)
    assert read <= case.most
    settings = [node for node in plan if node.get("Parent Relationship") == "InitPlan"]
    assert settings, "the setting is read before the rows, not for each of them"
    assert all(node["Actual Loops"] <= 1 for node in settings)
    assert not any("current_setting" in str(node.get(where)) for node in plan for where in ("Filter", "Index Cond"))
