"""Shows that a plan the server keeps, made for an empty table, serves a full one: each row is found by an index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from django.db import connection, transaction

from salon_jobs.conf.store_key import store_key
from tests.support import change, store_id_sql

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


def rows_read(statement: str, *parameters: float | str | None, of: str = "salon_jobs_job") -> int:
    """Return how many rows of a table a statement reads; what it does is rolled back."""
    with transaction.atomic():
        before: int = own_value(READ, of)
        own_value(statement, *parameters)
        after: int = own_value(READ, of)
        transaction.set_rollback(True)
    return after - before


def test_end_of_run(empty: None) -> None:
    ways = [*product((False, True), (None, json.dumps({str(20_000 ^ 1): [{}, 60, 1.5]})), (False, True))]
    for way in ways * 8:  # five plans of their own, then the one that is kept
        own_value(FINISH, "{1}", *way)
    change(
        "INSERT INTO salon_jobs_job (task, state, leased_by, lease, started_at)"
        " SELECT 'test-system', 'running', 7, 1, now() FROM generate_series(1, 20000)"
    )
    for statistics in ("SELECT", "ANALYZE salon_jobs_job"):
        change(statistics)
        for ids, way in product(("{20000}", "{100,9000,20000}"), ways):
            assert rows_read(FINISH, ids, *way) < 10, (ids, way, statistics)


def test_result_by_public_id(empty: None) -> None:
    read = "SELECT count(*) FROM salon_jobs_get_result(%s::uuid)"
    public_id = "00000000-0000-4000-8000-000000020000"
    for _ in range(8):
        own_value(read, public_id)
    change(
        "INSERT INTO salon_jobs_job (task, public_id)"
        " SELECT 'test-system', ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid"
        "   FROM generate_series(1, 20000) AS n"
    )
    assert own_value(read, public_id) == 1
    assert rows_read(read, public_id) < 10


def test_job_with_public_id_and_key(empty: None) -> None:
    add = (
        "SELECT count(*) FROM salon_jobs_add_jobs('test-system', ARRAY['{}'],"
        " options => jsonb_build_object('job_key', %s::text, 'public_id', gen_random_uuid()))"
    )
    for number in range(8):
        own_value(add, f"early-{number}")
    change("DELETE FROM salon_jobs_job")
    change(
        "INSERT INTO salon_jobs_job (task, job_key) SELECT 'test-system', 'k' || n FROM generate_series(1, 20000) AS n"
    )
    for key in ("k20000", "new"):
        assert rows_read(add, key) < 20


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
        "INSERT INTO salon_jobs_job (task, job_key) SELECT 'x', 'k' || n FROM generate_series(1, 20000) AS n;"
        "INSERT INTO salon_jobs_follow_up (remaining, task, payload, options)"
        " SELECT 2, 'x', '{}', '{}' FROM generate_series(1, 20000)"
    )
    job_id = own_value(one, "k")
    for table in ("salon_jobs_job", "salon_jobs_follow_up"):
        assert rows_read(add, f"{{{job_id}}}", "k7", of=table) < 10
    own_value(add, f"{{{job_id}}}", "k7")
    for table in ("salon_jobs_job", "salon_jobs_follow_up"):
        assert rows_read(f"{end.replace('%s', str(job_id))}; SET CONSTRAINTS ALL IMMEDIATE", of=table) < 10
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
        "   FROM generate_series(1, 20000) AS n"
    )
    assert rows_read(add, of="salon_jobs_job_result") < 10
    change("TRUNCATE salon_jobs_job_result")


def test_claim_of_a_few(empty: None, process_id: int) -> None:
    assert own_value(CLAIM, process_id) == 0
    change(
        "INSERT INTO salon_jobs_job (task, priority, run_at)"
        " SELECT 'test-system', n %% 3, now() - n * interval '1 s' FROM generate_series(1, 20000) AS n"
    )
    assert own_value(CLAIM, process_id) == 10
    assert rows_read(CLAIM, process_id) < 100


@pytest.mark.parametrize("jobs", [400, 20_000])
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
        assert rows_read(claim(jobs - 50)) < 50
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
