"""Holds the plans of the hot statements on a table of 60,000 jobs: each is served by its index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from salon_jobs.jobs import registry
from salon_jobs.jobs.leases import END_DEFAULTS
from salon_jobs.jobs.pruning import prune_old
from salon_jobs.jobs.statistics import STORED_OUTCOMES
from salon_jobs.worker.group_scanner import ClaimFilter, ScanRange, list_parameters
from tests.plans.explain import Node, as_store, assert_no_full_scan, indexes, nodes, nodes_of, rows_read, scans
from tests.support import change, in_state, new_store_id, seen, selected, store_id_sql

ROWS = 60_000


@pytest.fixture(scope="module")
def crowded(migrated: None) -> Iterator[int]:
    """Fill the table: most jobs due later, some due, some running, some failed; yields a live process."""
    change("TRUNCATE salon_jobs_job, salon_jobs_process RESTART IDENTITY")  # the tests name rows by their numbers
    row = in_state(
        "CASE WHEN n %% 100 = 0 THEN 'running' WHEN n %% 10 = 0 THEN 'failed' ELSE 'queued' END",
        task="'test-store'",
        store_id=store_id_sql(),
        priority="n %% 3",
        run_at="now() + CASE WHEN n %% 2 = 0 THEN interval '1 day' ELSE interval '-1 hour' END",
        job_key="'k:' || n",
        leased_by="CASE WHEN n %% 100 = 0 THEN 1 + n %% 7 END",
    )
    change(f"INSERT INTO salon_jobs_job {selected(row)} FROM generate_series(1, %s) AS n", ROWS)
    change("INSERT INTO salon_jobs_process (id, kind, hostname, pid) VALUES (1, 'worker', 'test', 1)")
    change("ANALYZE salon_jobs_job, salon_jobs_process")
    yield 1
    change("TRUNCATE salon_jobs_job, salon_jobs_process RESTART IDENTITY")


BATCH = [100 * number for number in range(1, 500)]
FENCES = [row ^ 1 for row in BATCH]


def finish_many(*, keep: bool, has_results: bool) -> list[Node]:
    results = json.dumps({str(fence): ["1", 60.0, 0.1] for fence in FENCES}) if has_results else None
    parameters = {"ids": BATCH, "fences": FENCES, "process_id": 3, "ran_s": BATCH, "keep": keep}
    return nodes("finish_many", {**parameters, "results": results, "has_results": has_results})


@pytest.mark.parametrize("has_results", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_successes_are_found_by_id(crowded: int, keep: bool, has_results: bool) -> None:
    plan = finish_many(keep=keep, has_results=has_results)
    assert_no_full_scan(plan)
    assert indexes(plan) == {"salon_jobs_job_pkey"}, "that by process holds each job it ran since the last vacuum"
    assert [node["Node Type"] for node in scans(plan)].count("Tid Scan") == 1 + has_results


def test_plain_successes_are_found_by_id(crowded: int) -> None:
    """The time limit of their locks is set before the first row is read."""
    plan = nodes("finish_plain", {"ids": BATCH, "fences": FENCES, "process_id": 3})
    assert_no_full_scan(plan)
    assert indexes(plan) == {"salon_jobs_job_pkey"}
    assert [node["Node Type"] for node in plan if "One-Time Filter" in node] == ["Result"]
    assert not {node["Node Type"] for node in plan} & {"Nested Loop", "Hash Join", "Merge Join"}


@pytest.mark.parametrize("keep", [False, True])
def test_leases_of_batch_are_compared_by_hash(crowded: int, keep: bool) -> None:
    """Also where few rows are expected."""
    expected = "UPDATE pg_class SET reltuples = %s WHERE relname = 'salon_jobs_job'"
    [(tuples,)] = seen("SELECT reltuples FROM pg_class WHERE relname = 'salon_jobs_job'")
    change(expected, 100)
    try:
        plan = finish_many(keep=keep, has_results=False)
    finally:
        change(expected, tuples)
    assert not {node["Node Type"] for node in plan} & {"Nested Loop", "Hash Join", "Merge Join"}


@pytest.mark.parametrize(
    ("statement", "parameters", "index"),
    [
        ("owned", {"ids": BATCH, "fences": FENCES, "process_id": 3}, "salon_jobs_job_pkey"),
        ("cancel_requests", {"process_id": 2}, "salon_jobs_job_cancelling"),
        ("other_leases", {"process_id": 2, "fences": [100 ^ 1]}, "salon_jobs_job_leased"),
    ],
)
def test_process_finds_jobs_by_index(crowded: int, statement: str, parameters: dict[str, Any], index: str) -> None:
    plan = nodes(statement, parameters)
    assert_no_full_scan(plan)
    assert indexes(plan) == {index}


def test_job_is_read_by_either_id(crowded: int) -> None:
    for parameters in ({"id": 7, "public_id": None}, {"id": None, "public_id": uuid4()}):
        plan = nodes("job_record", parameters)
        assert_no_full_scan(plan)
        assert max(map(rows_read, scans(plan, "salon_jobs_job"))) <= 1


def test_claim_walks_index_of_due_jobs(crowded: int) -> None:
    parameters = {"process_id": crowded, "tasks": registry.task_names(), "room": 100, "token": 5, "left_out": []}
    plan = nodes("claim_due", {**parameters, "now": None, "queues": None, "clock": 0.0})
    assert_no_full_scan(plan)
    assert "salon_jobs_job_due" in indexes(plan)
    assert "Sort" not in {node["Node Type"] for node in plan}
    read = [node["Actual Rows"] * node["Actual Loops"] for node in scans(plan)]
    assert max(read) == 100, "it stops at the limit"


def test_groups_are_listed_by_steps(crowded: int) -> None:
    """One step per store and claim group: 64 stores, of which each has one job in one group."""
    plan = nodes("list_groups", list_parameters(ScanRange(None), ClaimFilter(tasks=registry.task_names())))
    assert_no_full_scan(plan)
    assert indexes(plan) == {"salon_jobs_job_claim_group"}
    assert "Sort" not in {node["Node Type"] for node in plan}
    read = sum(node["Actual Rows"] * node["Actual Loops"] for node in scans(plan))
    assert read <= 3 * 65


@pytest.mark.parametrize(
    "scan_range", [ScanRange(None), ScanRange(None, prefix=-(2**30), key=2**30)], ids=["first", "inside"]
)
def test_listing_of_many_keys_is_bounded(crowded: int, scan_range: ScanRange) -> None:
    """Of 40 queues with 60 keys each, it reads 32 keys of 32 queues, and one more of each at most."""
    [(last,)] = seen("SELECT max(id) FROM salon_jobs_job")
    change(
        "INSERT INTO salon_jobs_job (task, queue, concurrency_key)"
        " SELECT 'test-system', 'q' || q, 'k' || k FROM generate_series(1, 40) AS q, generate_series(1, 60) AS k"
    )
    try:
        plan = nodes("list_groups", list_parameters(scan_range, ClaimFilter(tasks=registry.task_names())))
    finally:
        change("DELETE FROM salon_jobs_job WHERE id > %s", last)
    assert_no_full_scan(plan)
    read = sum(node["Actual Rows"] * node["Actual Loops"] for node in scans(plan))
    assert 32 < read <= 3 * 65 + 33 * 33


def test_due_groups_are_listed_by_index(crowded: int) -> None:
    """However many jobs are due later or in other priorities."""
    parameters = {"jobs": 256, **ClaimFilter(tasks=registry.task_names())._asdict()}
    plan = nodes("list_due_groups", parameters)
    assert_no_full_scan(plan)
    assert indexes(plan) == {"salon_jobs_job_due"}
    assert max(map(rows_read, scans(plan, "salon_jobs_job"))) <= 256


@pytest.mark.parametrize("how", ["retry", "fail", "cancel", "expire", "requeue", "rescue"])
@pytest.mark.parametrize("ids", [[100], [100, 800]], ids=["one", "several"])
def test_end_of_run_finds_rows_by_id(crowded: int, how: str, ids: list[int]) -> None:
    fences = {"ids": ids, "fences": [job_id ^ 1 for job_id in ids], "process_id": 2}
    plan = nodes("end", {**END_DEFAULTS, **fences, "how": how})
    assert_no_full_scan(plan)
    assert indexes(plan) <= {"salon_jobs_job_pkey", "salon_jobs_job_live_key", "salon_jobs_superseded_pkey"}


def test_statements_about_runs_use_ids(crowded: int) -> None:
    fence = {"id": 100, "process_id": 2, "lease": 1}
    assert_no_full_scan(nodes("begin_once", fence))
    assert_no_full_scan(nodes("begun_once", {"process_id": 2}))
    assert "salon_jobs_job_pkey" in indexes(nodes("lease_state", fence))
    plan = nodes("silent_processes", {"silent_after": timedelta(seconds=15)})
    assert_no_full_scan(plan)
    assert "salon_jobs_job_leased" in indexes(plan)
    operated = {"ids": [10, 20, 30], "running": True, "reason": "cancelled", "at": None, "priority": 1, "queue": None}
    for statement in ("operator_retry", "operator_cancel", "operator_change"):
        assert_no_full_scan(nodes(statement, operated))
    assert_no_full_scan(nodes("holders_of_keys", {"ids": [10]}))


def test_jobs_before_held_ones_are_found_by_index(crowded: int) -> None:
    """For a page of jobs, among thousands that wait for others."""
    change(
        "INSERT INTO salon_jobs_ordered_key (id, job_id)"
        " SELECT md5(n::text)::uuid, n FROM generate_series(1, 30000) AS n"
    )
    change(
        "INSERT INTO salon_jobs_ordered_job (job_id, key_id, run_at)"
        " SELECT n + 30000, md5(n::text)::uuid, now() FROM generate_series(1, 30000) AS n"
    )
    change(
        "INSERT INTO salon_jobs_flow_member (job_id, flow_id, task, condition, after, run_at)"
        " SELECT n, 1, 'x', 'ended', '[]', now() FROM generate_series(60001, 120000) AS n"
    )
    change(
        "INSERT INTO salon_jobs_flow_edge (job_id, after_id)"
        " SELECT n + 30000, n FROM generate_series(60001, 90000) AS n"
    )
    tables = "salon_jobs_ordered_key, salon_jobs_ordered_job, salon_jobs_flow_member, salon_jobs_flow_edge"
    change(f"ANALYZE {tables}")
    plan = nodes("held_behind", {"ids": [*range(30001, 30051), *range(90001, 90051)]})
    change(f"TRUNCATE {tables} RESTART IDENTITY")
    found = [node for node in plan if "Relation Name" in node]
    assert "Seq Scan" not in {node["Node Type"] for node in found}
    assert sum(map(rows_read, found)) == 200, "of each table, those of 50 jobs"


def test_fan_out_progress_uses_index(crowded: int) -> None:
    change("INSERT INTO salon_jobs_fan_out (task, digest) VALUES ('test-keyed', 'x')")
    plan = nodes("fan_out_progress", {"id": 1})
    change("TRUNCATE salon_jobs_fan_out RESTART IDENTITY")
    assert_no_full_scan(plan)
    assert "salon_jobs_job_fan_out" in indexes(plan)


def test_unfinished_jobs_of_cron_use_indexes(crowded: int) -> None:
    plan = nodes("cron_unfinished", {"entry": "nightly", "task": "test-system"})
    assert_no_full_scan(plan)
    assert {"salon_jobs_job_leased", "salon_jobs_job_queued_task"} <= indexes(plan)


def test_look_at_front_is_bounded(crowded: int) -> None:
    plan = nodes("queue_front", {"tasks": registry.task_names()})
    assert_no_full_scan(plan)
    assert max(node["Actual Rows"] * node["Actual Loops"] for node in scans(plan)) <= 10_000


def test_web_role_finds_jobs_by_index(crowded: int) -> None:
    with as_store(str(new_store_id())) as cursor:
        cursor.execute("EXPLAIN (FORMAT JSON) SELECT * FROM salon_jobs_job ORDER BY id DESC LIMIT 50")
        text = json.dumps(cursor.fetchone()[0])
    assert "salon_jobs_job_store" in text
    assert "Seq Scan" not in text


@pytest.fixture(scope="module")
def history(crowded: int) -> Iterator[None]:
    """Add what a pruner walks through: 60,000 failed jobs that are kept, 20,000 old ones, their errors, old ticks."""
    row = in_state(
        "CASE WHEN n <= 60000 THEN 'failed' ELSE 'succeeded' END",
        task="'ping'",
        finished_at="now() - CASE WHEN n <= 60000 THEN interval '30 days' ELSE interval '2 days' END",
    )
    change(f"INSERT INTO salon_jobs_job {selected(row)} FROM generate_series(1, 80000) AS n")
    change(
        "INSERT INTO salon_jobs_job_error (job_id, attempt, error_class, occurred_at)"
        " SELECT n, 1, 'X', now() - interval '2 days' FROM generate_series(1, 62000) AS n"
    )
    change(
        "INSERT INTO salon_jobs_cron_tick (entry, tick_at, fired_at)"
        " SELECT 'entry-' || n %% 5, t, t FROM generate_series(1, 20000) AS n,"
        "        LATERAL (SELECT now() - n * interval '3 minutes' AS t) AS at"
    )
    change(
        "INSERT INTO salon_jobs_cron_entry (name, last_tick_at)"
        " SELECT 'entry-' || n, now() FROM generate_series(0, 4) AS n"
    )
    change("ANALYZE salon_jobs_job, salon_jobs_job_error, salon_jobs_cron_tick")
    yield
    change("DELETE FROM salon_jobs_job WHERE task = 'ping'")
    change("TRUNCATE salon_jobs_job_error, salon_jobs_cron_tick, salon_jobs_cron_entry RESTART IDENTITY")


@pytest.mark.parametrize(("state", "days", "deleted"), [("succeeded", 1, 1000), ("failed", 90, 0), ("cancelled", 7, 0)])
def test_pruning_reads_what_it_deletes(history: None, state: str, days: int, deleted: int) -> None:
    plan = nodes("prune_jobs", {"state": state, "age": timedelta(days=days)})
    assert_no_full_scan(plan)
    assert "salon_jobs_job_ended" in indexes(plan)
    assert max(map(rows_read, scans(plan, "salon_jobs_job"))) == deleted
    plan = nodes("count_prunable", {"state": state, "age": timedelta(days=days)})
    assert indexes(plan) == {"salon_jobs_job_ended"}


def test_pruning_errors_reads_one_page(history: None) -> None:
    plan = nodes_of(prune_old("errors", "prune_orphans"), {"after": 10_000, "age": timedelta(days=1)})
    assert_no_full_scan(plan)
    assert max(map(rows_read, scans(plan, "salon_jobs_job_error"))) == 10_000
    assert max(map(rows_read, scans(plan, "salon_jobs_job"))) <= 20_001


def test_steps_are_found_by_job(history: None) -> None:
    """They are pruned by pages."""
    change(
        "INSERT INTO salon_jobs_job_step (job_id, name, attempt, value, ended, started_at, committed_at)"
        " SELECT job, 'step ' || step, 1, '1', true, now() - interval '9 days', now() - interval '9 days'"
        " FROM generate_series(1, 12500) AS job, generate_series(1, 2) AS step; ANALYZE salon_jobs_job_step"
    )
    try:
        fence = {"id": 7, "process_id": 1, "lease": 1}
        step = {"name": "a", "attempt": 1, "value": "1", "position": None, "ended": True, "took_s": 0.0}
        for name, parameters in (("load_steps", fence), ("save_step", fence | step)):
            assert_no_full_scan(nodes(name, parameters))
        plan = nodes_of(prune_old("steps", "prune_orphans"), {"after": 10_000, "age": timedelta(days=1)})
        assert_no_full_scan(plan)
        assert max(map(rows_read, scans(plan, "salon_jobs_job_step"))) <= 10_000
    finally:
        change("TRUNCATE salon_jobs_job_step")


@pytest.mark.parametrize(("days", "most"), [(30, 1150), (60, 0)])
def test_pruning_ticks_reads_one_entry(history: None, days: int, most: int) -> None:
    plan = nodes("prune_ticks", {"age": timedelta(days=days)})
    assert "salon_jobs_cron_tick_once" in indexes(plan)
    assert max(map(rows_read, scans(plan, "salon_jobs_cron_tick"))) <= most


@pytest.fixture(scope="module")
def busy_fortnight(migrated: None) -> Iterator[None]:
    """Fill the statistics: three tasks, every minute of fifteen days."""
    change(
        "INSERT INTO salon_jobs_task_minute"
        " SELECT now() - n * interval '1 minute', 'task-' || task, 'default', 1, 0, 0, 0, 0, 0, 0, 1, '{1}', 1, '{1}'"
        "   FROM generate_series(1, 21600) AS n, generate_series(1, 3) AS task"
    )
    change("ANALYZE salon_jobs_task_minute")
    yield
    change("TRUNCATE salon_jobs_task_minute")


def test_statistics_use_primary_key(busy_fortnight: None) -> None:
    for age, read in ((timedelta(days=14), 1000), (timedelta(days=16), 1)):
        plan = nodes_of(prune_old("statistics"), {"age": age})
        assert indexes(plan) == {"salon_jobs_task_minute_pkey"}
        assert max(map(rows_read, scans(plan, "salon_jobs_task_minute"))) <= read
    plan = nodes("task_totals", {"last": timedelta(hours=1), "task": None, "queue": None})
    assert indexes(plan) == {"salon_jobs_task_minute_pkey"}
    assert max(map(rows_read, scans(plan, "salon_jobs_task_minute"))) <= 183
    times = {"duration_s": 1, "durations": [1], "wait_s": 1, "waits": [1]}
    row = {"task": "task-1", "queue": "default", **dict.fromkeys(STORED_OUTCOMES, 1), **times}
    plan = nodes("add_statistics", {"rows": json.dumps([row])})
    assert "Seq Scan" not in {node["Node Type"] for node in plan}


def test_pruning_fan_outs_reads_what_it_deletes(migrated: None) -> None:
    change(
        "INSERT INTO salon_jobs_fan_out (task, digest, created_at)"
        " SELECT 'test-store', n, now() - n * interval '3 minutes' FROM generate_series(1, 20000) AS n"
    )
    change("ANALYZE salon_jobs_fan_out")
    try:
        for days, read in ((30, 1000), (60, 1)):
            plan = nodes_of(prune_old("fan_outs"), {"age": timedelta(days=days)})
            assert "salon_jobs_fan_out_created" in indexes(plan)
            assert max(map(rows_read, scans(plan, "salon_jobs_fan_out"))) <= read
    finally:
        change("TRUNCATE salon_jobs_fan_out")
