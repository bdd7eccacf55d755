"""Holds how much is read behind a transaction that pins xmin, where dead rows pile up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from django.db import connections, transaction

from salon_jobs.db.statements import run_raw
from salon_jobs.jobs import registry
from salon_jobs.worker.group_scanner import ClaimFilter, ScanRange, list_groups
from tests.settings import url_for
from tests.support import change


@contextmanager
def reading(index: str, read: list[int]) -> Iterator[None]:
    """Append how many entries of an index the statements inside read; those of other sessions are not counted."""
    count = "SELECT pg_stat_get_xact_tuples_returned(%s::regclass)"
    with transaction.atomic(), connections["default"].cursor() as cursor:
        before = cursor.execute(count, [index]).fetchone()[0]
        yield
        read.append(cursor.execute(count, [index]).fetchone()[0] - before)


@pytest.fixture(autouse=True)
def no_dead_rows(database: None) -> None:
    """Begin with indexes that hold no entries of other tests' rows."""
    change("TRUNCATE salon_jobs_job")


def test_scan_reads_dead_rows_once(process_id: int) -> None:
    """The row that a search ended at begins the next one inside it."""
    dead = 2_000
    with psycopg.connect(url_for(None)) as pin:
        pin.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        pin.execute("SELECT count(*) FROM salon_jobs_job")
        change(f"INSERT INTO salon_jobs_job (task) SELECT 'test-store' FROM generate_series(1, {dead})")
        change("ANALYZE salon_jobs_job")  # or it depends on whether autovacuum came by just now
        change("DELETE FROM salon_jobs_job")
        change("INSERT INTO salon_jobs_job (task) VALUES ('test-store')")
        read: list[int] = []
        with reading("salon_jobs_job_claim_group", read):
            page = list_groups(ScanRange(None), ClaimFilter(tasks=registry.task_names()), using="default")
            assert len(page.groups) == 1
        assert dead < read[0] < 1.5 * dead


def test_orphans_are_found_without_live_leases(process_id: int) -> None:
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
    read: list[int] = []
    with reading("salon_jobs_job_leased", read):
        [(_, _, found)] = run_raw("silent_processes", {"silent_after": timedelta(seconds=15)}, using="default")
    assert sorted(found) == [process_id + 1, process_id + 2, process_id + 11]
    assert read[0] < 10
