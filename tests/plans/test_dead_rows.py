"""Holds how much is read behind a transaction that pins xmin, where dead rows pile up."""

from __future__ import annotations

from datetime import timedelta

import psycopg
from django.db import connections

from salon_jobs.db.statements import hot
from salon_jobs.jobs import registry
from salon_jobs.worker.group_scanner import ClaimFilter, list_groups
from tests.settings import url_for
from tests.support import change


def _entries_read(index: str) -> int:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = %s", [index])
        count: int = cursor.fetchone()[0]
        return count


def test_a_scan_reads_the_dead_rows_before_a_group_once(process_id: int) -> None:
    """The row that a search ended at begins the next one inside it."""
    dead = 2_000
    with psycopg.connect(url_for(None)) as pin:
        pin.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        pin.execute("SELECT count(*) FROM salon_jobs_job")
        change(f"INSERT INTO salon_jobs_job (task) SELECT 'test-store' FROM generate_series(1, {dead})")
        change("DELETE FROM salon_jobs_job")
        change("INSERT INTO salon_jobs_job (task) VALUES ('test-store')")
        before = _entries_read("salon_jobs_job_claim_group")
        assert len(list_groups(None, ClaimFilter(tasks=registry.task_names()), using="default").groups) == 1
        assert dead < _entries_read("salon_jobs_job_claim_group") - before < 1.5 * dead


def test_orphans_are_found_without_reading_the_leases_of_the_living(process_id: int) -> None:
    change("INSERT INTO salon_jobs_process (id, kind, hostname, pid) VALUES (%s, 'worker', 'test', 2)", process_id + 10)
    change(
        "INSERT INTO salon_jobs_job (task, state, lease, leased_by, started_at)"
        " SELECT 'test-store', 'running', 1, %s + n, now() FROM unnest(ARRAY[1, 2, 11]) n",
        process_id,
    )
    change(
        "INSERT INTO salon_jobs_job (task, state, lease, leased_by, started_at)"
        " SELECT 'test-store', 'running', 1, %s, now() FROM generate_series(1, 2000)",
        process_id,
    )
    change("ANALYZE salon_jobs_job")
    before = _entries_read("salon_jobs_job_leased")
    [(_, _, found)] = hot("silent_processes", {"silent_after": timedelta(seconds=15)}, using="default")
    assert sorted(found) == [process_id + 1, process_id + 2, process_id + 11]
    assert _entries_read("salon_jobs_job_leased") - before < 10
