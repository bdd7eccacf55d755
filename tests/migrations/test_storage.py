"""Compares storage parameters with the live catalogue, and sets them while others write."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from django.db import connections, transaction
from django.db.migrations.state import ProjectState

from salon_jobs.access.job_tables import own_tables
from salon_jobs.access.operations.access import InstallDeclared
from salon_jobs.core.rights import Access
from tests.settings import url_for
from tests.support import seen

OPTIONS = "SELECT array_to_string(reloptions, ' ') FROM pg_class WHERE oid = %s::regclass"


def test_hot_tables_are_vacuumed_often(database: None) -> None:
    vacuum = "autovacuum_vacuum_scale_factor=0 autovacuum_vacuum_threshold=5000 autovacuum_vacuum_cost_delay=0"
    analyze = "autovacuum_analyze_scale_factor=0 autovacuum_analyze_threshold=5000"
    assert seen(OPTIONS, "salon_jobs_job") == [(f"{vacuum} {analyze} fillfactor=50",)]
    toast = "SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 'salon_jobs_job'::regclass"
    assert seen(OPTIONS, seen(toast)[0][0]) == [(vacuum,)]
    assert seen(OPTIONS, "salon_jobs_task_minute") == [("fillfactor=70",)]


def test_storage_is_set_beside_writers(database: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reversible."""
    settings.SALON_JOBS = {**settings.SALON_JOBS, "ROLES": None}  # grants and policies would wait
    storage = {"fillfactor": 90, "toast.autovacuum_vacuum_threshold": 7}
    declared = {**own_tables(), "salon_jobs_job_error": Access(storage=storage)}
    monkeypatch.setattr("salon_jobs.access.operations.access.own_tables", lambda: declared)
    operation = InstallDeclared(tables=("salon_jobs_job_error",), functions=())
    owner, state = connections["owner"], ProjectState()
    with psycopg.connect(url_for("worker_runtime")) as writer:
        writer.execute("INSERT INTO salon_jobs_job_error (job_id, attempt, error_class) VALUES (1, 1, 'X')")
        with transaction.atomic(using="owner"), owner.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '2s'")
            with owner.schema_editor(atomic=False) as editor:
                operation.database_forwards("salon_jobs", editor, state, state)
                # The other way round: who writes does not wait for it either.
                writer.execute("SET lock_timeout = '2s'")
                writer.execute("INSERT INTO salon_jobs_job_error (job_id, attempt, error_class) VALUES (1, 2, 'X')")
        writer.rollback()
    assert seen(OPTIONS, "salon_jobs_job_error") == [("fillfactor=90",)]
    with owner.schema_editor() as editor:
        operation.database_backwards("salon_jobs", editor, state, state)
    assert seen(OPTIONS, "salon_jobs_job_error") == [(None,)]
