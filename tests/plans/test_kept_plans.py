"""Plans that the server keeps, made for empty tables, serve full ones: each row is found by an index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from itertools import product
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from psycopg import ClientCursor

from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_key
from salon_jobs.db import statements
from tests.plans.explain import assert_no_full_scan, indexes, rows_read, scans
from tests.settings import url_for
from tests.support import change, plan_nodes, seen, store_id_sql

READ = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = %s"
CLAIM = "SELECT count(*) FROM salon_jobs_claim(%s, ARRAY['test-system'], 10, NULL, NULL, 0, 5, '{}')"
FINISH = "SELECT salon_jobs_finish(%s::text::bigint[], '{1,1,1}', 7, %s, 1.5, false, %s, %s)"


@pytest.fixture
def empty(database: None) -> Iterator[None]:
    """Empty the table to its last page, as autovacuum does in quiet hours."""
    change("TRUNCATE salon_jobs_job RESTART IDENTITY")
    change("VACUUM ANALYZE salon_jobs_job")
    yield
    change("TRUNCATE salon_jobs_job")


def own_value(statement: str, *parameters: float | str | None) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        row = cursor.fetchone() if cursor.description else None
        return row and row[0]


def reads(statement: str, *parameters: float | str | None, of: str = "salon_jobs_job") -> int:
    """Return how many rows of a table a statement reads; what it does is rolled back."""
    with transaction.atomic():
        before: int = own_value(READ, of)
        own_value(statement, *parameters)
        after: int = own_value(READ, of)
        transaction.set_rollback(True)
    return after - before


def test_end_of_run(empty: None) -> None:
    ways = [*product((False, True), (None, json.dumps({str(4_000 ^ 1): [{}, 60, 1.5]})), (False, True))]
    for way in ways * 8:  # five plans of their own, then the one that is kept
        own_value(FINISH, "{1}", *way)
    change(
        "INSERT INTO salon_jobs_job (task, state, leased_by, lease, started_at)"
        " SELECT 'test-system', 'running', 7, 1, now() FROM generate_series(1, 4000)"
    )
    for statistics in ("SELECT", "ANALYZE salon_jobs_job"):
        change(statistics)
        for ids, way in product(("{4000}", "{100,900,4000}"), ways):
            assert reads(FINISH, ids, *way) < 10, (ids, way, statistics)


def test_result_by_public_id(empty: None) -> None:
    read = "SELECT count(*) FROM salon_jobs_get_result(%s::uuid)"
    public_id = "00000000-0000-4000-8000-000000004000"
    for _ in range(8):
        own_value(read, public_id)
    change(
        "INSERT INTO salon_jobs_job (task, public_id)"
        " SELECT 'test-system', ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid"
        "   FROM generate_series(1, 4000) AS n"
    )
    assert own_value(read, public_id) == 1
    assert reads(read, public_id) < 10


def test_job_with_public_id_and_key(empty: None) -> None:
    add = (
        "SELECT count(*) FROM salon_jobs_add_jobs('test-system', ARRAY['{}'],"
        " options => jsonb_build_object('job_key', %s::text, 'public_id', gen_random_uuid()))"
    )
    for number in range(8):
        own_value(add, f"early-{number}")
    change("DELETE FROM salon_jobs_job")
    change(
        "INSERT INTO salon_jobs_job (task, job_key) SELECT 'test-system', 'k' || n FROM generate_series(1, 4000) AS n"
    )
    for key in ("k4000", "new"):
        assert reads(add, key) < 20


def test_end_of_job_with_follow_up(empty: None) -> None:
    add = (
        "SELECT salon_jobs_add_follow_up(%s::text::bigint[], 'x', '{}', NULL, jsonb_build_object('job_key', %s::text))"
    )
    one = "INSERT INTO salon_jobs_job (task, job_key) VALUES ('test-system', %s) RETURNING id"
    end = "DELETE FROM salon_jobs_job WHERE id = %s"
    for _ in range(8):
        job_id = own_value(one, "k")
        assert own_value(add, f"{{{job_id}}}", "k") == 1
        own_value(end, job_id)
        own_value("DELETE FROM salon_jobs_job WHERE job_key = 'k'")
    change(
        "INSERT INTO salon_jobs_job (task, job_key) SELECT 'x', 'k' || n FROM generate_series(1, 4000) AS n;"
        "INSERT INTO salon_jobs_follow_up (remaining, task, payload, options)"
        " SELECT 2, 'x', '{}', '{}' FROM generate_series(1, 4000)"
    )
    job_id = own_value(one, "k")
    for table in ("salon_jobs_job", "salon_jobs_follow_up"):
        assert reads(add, f"{{{job_id}}}", "k7", of=table) < 10
    own_value(add, f"{{{job_id}}}", "k7")
    for table in ("salon_jobs_job", "salon_jobs_follow_up"):
        assert reads(f"{end.replace('%s', str(job_id))}; SET CONSTRAINTS ALL IMMEDIATE", of=table) < 10
    change("TRUNCATE salon_jobs_follow_up")


@pytest.mark.parametrize(
    "function",
    [
        "salon_jobs_enqueue('test-system', '{}', NULL, jsonb_build_object('public_id', gen_random_uuid()))",
        (
            "salon_jobs_add_jobs('test-system', ARRAY['{}'],"
            " options => jsonb_build_object('job_key', 'k', 'public_id', gen_random_uuid()))"
        ),
    ],
    ids=["without a key", "with a key"],
)
def test_check_for_result_with_public_id(empty: None, function: str) -> None:
    add = f"SELECT count(*) FROM {function}"
    change("VACUUM ANALYZE salon_jobs_job_result")
    for _ in range(8):
        own_value(add)
        change("DELETE FROM salon_jobs_job")
    change(
        "INSERT INTO salon_jobs_job_result (job_id, public_id, task, queue, priority, payload, attempts, run_at,"
        " created_at, started_at, finished_at, worker_id, value, expires_at)"
        " SELECT n, gen_random_uuid(), 'test-system', 'default', 0, '{}', 1, now(), now(), now(), now(), 1, '1', now()"
        "   FROM generate_series(1, 4000) AS n"
    )
    assert reads(add, of="salon_jobs_job_result") < 10
    change("TRUNCATE salon_jobs_job_result")


def test_claim_of_a_few(empty: None, process_id: int) -> None:
    assert own_value(CLAIM, process_id) == 0
    change(
        "INSERT INTO salon_jobs_job (task, priority, run_at)"
        " SELECT 'test-system', n %% 3, now() - n * interval '1 s' FROM generate_series(1, 4000) AS n"
    )
    assert own_value(CLAIM, process_id) == 10
    assert reads(CLAIM, process_id) < 100


@pytest.mark.parametrize("jobs", [400, 4_000])
def test_claim_of_groups_reads_its_quotas(empty: None, process_id: int, jobs: int) -> None:
    """It reads from the low water on."""

    def claim(after: int) -> str:
        groups = "SELECT array_agg(store) AS stores, array_agg(claim_group) AS numbers, count(*)::int AS n FROM"
        return (
            "SELECT count(c.id) FROM"
            f" ({groups} (SELECT DISTINCT store_id AS store, claim_group FROM groups_of_test) each) AS g"
            " CROSS JOIN LATERAL salon_jobs_claim_groups("
            f" {process_id}, 10, 0, g.stores, g.numbers, array_fill(5, ARRAY[g.n]), array_fill(0::bigint, ARRAY[g.n]),"
            f" array_fill({after}::bigint, ARRAY[g.n]), array_fill(NULL::text, ARRAY[g.n]), g.stores,"
            " array_fill(5, ARRAY[g.n]), 5, '{}') AS c"
        )

    stores = store_id_sql("n %% 2")
    change(f"CREATE TABLE groups_of_test (store_id {store_key().sql}, claim_group bigint)")
    change("GRANT SELECT ON groups_of_test TO PUBLIC")
    try:
        for _ in range(8):
            assert own_value(claim(0)) == 0
        change(
            "INSERT INTO salon_jobs_job (task, store_id, run_at)"
            f" SELECT 'test-store', {stores}, to_timestamp(0) FROM generate_series(1, %s) AS n",
            jobs,
        )
        change("INSERT INTO groups_of_test SELECT DISTINCT store_id, claim_group FROM salon_jobs_job")
        change("ANALYZE salon_jobs_job")
        assert own_value(claim(0)) == 10
        assert reads(claim(jobs - 50)) < 50
        assert own_value("SELECT count(*) FROM salon_jobs_job WHERE state = 'running' AND id <= 10") == 10
    finally:
        change("DROP TABLE groups_of_test")


def test_functions_taking_arrays_are_not_compiled(database: None) -> None:
    """The planner overrates the cost of an array; compiling would take longer than the statement."""
    compiled = own_value(
        "SELECT string_agg(proname, ', ') FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
        " AND proname LIKE 'salon\\_jobs\\_%%' AND NOT 'jit=off' = ANY (coalesce(proconfig, '{}'))"
        " AND EXISTS (SELECT FROM unnest(proargtypes) AS argument JOIN pg_type ON pg_type.oid = argument"
        "              WHERE typcategory = 'A')"
    )
    assert compiled is None


MANY = 2_000
MODES = ["replace", "preserve_run_at", "unsafe_dedupe"]
TASK = "test-keyed"


class Explained:
    """Connection of the superuser that collects the plan of every statement, those in functions too."""

    def __init__(self) -> None:
        self._plans: list[Any] = []
        self._connection = psycopg.connect(url_for(None), autocommit=True, cursor_factory=ClientCursor[Any])
        self._connection.execute("LOAD 'auto_explain'")
        for setting in ("log_min_duration = 0", "log_analyze = on", "log_nested_statements = on", "log_format = json"):
            self._connection.execute(f"SET auto_explain.{setting}".encode())
        self._connection.execute("SET client_min_messages = log")
        self._connection.add_notice_handler(
            lambda notice: self._plans.append(json.loads((notice.message_primary or "").partition("plan:\n")[2]))
        )

    def nodes(self, statement: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
        """Return all nodes of the plans of a statement, which is rolled back."""
        self._plans.clear()
        with self._connection.transaction(force_rollback=True):
            self._connection.execute(statement.encode(), parameters)
        return [node for plan in self._plans for node in plan_nodes([plan])]

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def explained(migrated: None) -> Iterator[Explained]:
    """Give the connection, while the table is empty and holds a job of each of many stores afterwards."""
    change("TRUNCATE salon_jobs_job")
    change("VACUUM ANALYZE salon_jobs_job")
    change(f"INSERT INTO store (id, name) SELECT {store_id_sql()}, 'x' FROM generate_series(1, %s)", MANY)
    explained = Explained()
    yield explained
    explained.close()
    change("TRUNCATE salon_jobs_job, salon_jobs_fan_out, store RESTART IDENTITY CASCADE")


def added(store_ids: list[Any], mode: str) -> dict[str, Any]:
    """Return the parameters that add a job with the same key for each store."""
    unused = dict.fromkeys(("store_id", "concurrency_keys", "run_ats", "ticks"))
    return unused | {
        "task": TASK,
        "payloads": "\n".join("{}" for _ in store_ids),
        "store_ids": ",".join(map(str, store_ids)),
        "options": json.dumps({"job_key_mode": mode}),
        "job_keys": ["same"] * len(store_ids),
        "traces": [None],
    }


def assert_each_key_has_its_probe(plan: list[dict[str, Any]]) -> None:
    assert scans(plan)
    assert_no_full_scan(plan)
    assert "salon_jobs_job_live_key" in indexes(plan)
    assert max(node.get("Rows Removed by Filter", 0) for node in scans(plan)) < 2
    assert max(node.get("Rows Removed by Join Filter", 0) for node in plan) == 0
    assert max(node["Actual Rows"] * node["Actual Loops"] for node in plan) <= 2 * MANY


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.contrib
def test_keyed_jobs_look_up_each_key(explained: Explained, mode: str) -> None:
    stores = [row[0] for row in seen("SELECT id FROM store")]
    statement = statements.load("add_jobs")
    for _ in range(8):  # five plans of their own, then the one that is kept
        explained.nodes(statement, added(stores[:2], mode))
    # Of each store one with the key, and of one store many others.
    change("INSERT INTO salon_jobs_job (task, store_id, job_key) SELECT %s, id, 'same' FROM store", TASK)
    change(
        "INSERT INTO salon_jobs_job (task, store_id, job_key) SELECT %s, %s, 'k:' || n"
        " FROM generate_series(1, 5000) AS n",
        TASK,
        stores[0],
    )
    assert_each_key_has_its_probe(explained.nodes(statement, added(stores, mode)))
    assert_each_key_has_its_probe(explained.nodes(statement, added(stores[:1], mode)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.contrib
def test_fan_out_looks_up_each_store(explained: Explained, mode: str, again: bool) -> None:
    """It compares no store with all others."""
    if again:
        change("INSERT INTO salon_jobs_job (task, store_id, job_key) SELECT %s, id, 'same' FROM store", TASK)
    change("INSERT INTO salon_jobs_fan_out (id, task, digest) VALUES (1, %s, '')", TASK)
    keys = {"job_key": "same", "concurrency_key": None, "options": json.dumps({"job_key_mode": mode})}
    stores = {"marker": "#", "jitter": timedelta(0), "exclude": [], "fan_out_id": 1, "wants_ids": again}
    statement = statements.load("fan_out").replace("__function__", conf.fan_out_function)
    plan = explained.nodes(statement, {"task": TASK, "payload": "{}", **keys, **stores})
    assert_each_key_has_its_probe(plan)


KEYS = 3_000
# The deferred triggers run at the end of each statement, where their plans are seen, and not at the commit.
ADD = (
    "SET CONSTRAINTS ALL IMMEDIATE; SELECT count(*) FROM salon_jobs_add_jobs("
    "'test-ordered', ARRAY['{}'], NULL, '{\"ordered\": \"strict\"}', NULL, ARRAY[%(key)s])"
)
END = "SET CONSTRAINTS ALL IMMEDIATE; DELETE FROM salon_jobs_job WHERE id = %(id)s"
FILL = (
    "SELECT count(*) FROM salon_jobs_add_jobs('test-ordered', ARRAY['{}'], NULL, '{\"ordered\": \"strict\"}', NULL,"
    " (SELECT array_agg(CASE WHEN n %% 2 = 0 THEN 'one' ELSE n::text END) FROM generate_series(1, %s) AS n))"
)


@pytest.fixture
def emptied(explained: Explained) -> Iterator[Explained]:
    """Leave no rows of the keys behind."""
    yield explained
    change("TRUNCATE salon_jobs_ordered_key, salon_jobs_ordered_job")


@pytest.mark.contrib
def test_turn_is_found_by_indexes(emptied: Explained) -> None:
    for _ in range(8):  # five plans of their own, then the one that is kept
        emptied.nodes(f"{ADD}; {ADD}; {END.replace('= %(id)s', '> 0')}", {"key": "one"})
    change(FILL, 2 * KEYS)
    [(turn,)] = seen("SELECT min(id) FROM salon_jobs_job WHERE concurrency_key = 'one'")
    assert seen("SELECT count(*) FROM salon_jobs_ordered_job") == [(KEYS - 1,)]
    for statement in (ADD, END):
        plan = emptied.nodes(statement, {"key": "one", "id": turn})
        for table in ("salon_jobs_job", "salon_jobs_ordered_key", "salon_jobs_ordered_job"):
            nodes = scans(plan, table)
            assert nodes, (statement, table)
            assert "Seq Scan" not in {node["Node Type"] for node in nodes}
            assert [node for node in nodes if rows_read(node) > 3] == [], statement
