"""Holds how much is read behind a transaction that pins xmin, where dead rows pile up."""

from __future__ import annotations

import psycopg
from django.db import connections

from salon_jobs.jobs import registry
from salon_jobs.jobs.lanes import Runnable, list_lanes
from tests.settings import url_for
from tests.support import change


def _entries_read() -> int:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'salon_jobs_job_lane'")
        count: int = cursor.fetchone()[0]
        return count


def test_a_list_of_lanes_reads_the_dead_rows_before_a_lane_once(process_id: int) -> None:
    """The row that a search ended at begins the next one inside it."""
    dead = 2_000
    with psycopg.connect(url_for(None)) as pin:
        pin.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        pin.execute("SELECT count(*) FROM salon_jobs_job")
        change(f"INSERT INTO salon_jobs_job (task) SELECT 'test-store' FROM generate_series(1, {dead})")
        change("DELETE FROM salon_jobs_job")
        change("INSERT INTO salon_jobs_job (task) VALUES ('test-store')")
        before = _entries_read()
        assert len(list_lanes(None, Runnable(tasks=registry.task_names())).lanes) == 1
        assert dead < _entries_read() - before < 1.5 * dead
