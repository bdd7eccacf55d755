"""Holds the one function by which the web role adds system jobs, and what it sees of the errors of its jobs."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.db import DataError, ProgrammingError, connections, transaction

from salon_jobs import tenant_context
from tests import tasks
from tests.support import run_due, seen


@pytest.mark.parametrize("name", ["salon_jobs_add_job", "salon_jobs_add_jobs"])
def test_it_is_exactly_as_declared(database: None, name: str) -> None:
    assert seen(
        "SELECT proowner::regrole::text, prosecdef, proconfig, proacl::text[] FROM pg_proc WHERE proname = %s", name
    ) == [
        (
            "migrator",
            True,
            ["search_path=pg_catalog, pg_temp"],
            ["migrator=X/migrator", "app=X/migrator", "worker_runtime=X/migrator"],
        )
    ]
    [(source,)] = seen("SELECT prosrc FROM pg_proc WHERE proname = %s", name)
    assert ("app.current_store_id" in source) == (name == "salon_jobs_add_job"), "the other takes no store"
    assert "__" not in source
    assert " salon_jobs_job" not in source, "every table is named with its schema"


@pytest.mark.parametrize("call", ["salon_jobs_add_job('ping')", "salon_jobs_add_jobs('ping', ARRAY['{}'])"])
def test_nobody_else_may_call_it(database: None, call: str) -> None:
    with (
        pytest.raises(ProgrammingError, match="permission denied"),
        transaction.atomic(using="operator"),
        connections["operator"].cursor() as cursor,
    ):
        cursor.execute(f"SELECT {call}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("'ping', job_key => 'k', job_key_mode => 'always'", "job_key_mode is unknown"),
        ("'ping', job_key => 'k', job_key_mode => NULL", "job_key_mode is unknown"),
        ("'ping', max_attempts => 0::smallint", "salon_jobs_job_attempts"),
    ],
)
def test_a_wrong_call_from_sql_is_refused(database: None, arguments: str, message: str) -> None:
    with (
        pytest.raises((DataError, ProgrammingError, Exception), match=message),
        transaction.atomic(using="web"),
        connections["web"].cursor() as cursor,
    ):
        cursor.execute(f"SELECT salon_jobs_add_job({arguments})")
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]


def test_the_web_role_reads_the_errors_of_its_stores_jobs_alone(
    stores: list[UUID], process_id: int, hooks: tasks.Hooks
) -> None:
    def fail(**_: object) -> None:
        raise ZeroDivisionError

    hooks.store = hooks.system = fail
    jobs = [tasks.in_store.enqueue(store_id=store) for store in stores]
    tasks.system.enqueue()
    run_due(process_id)
    assert seen("SELECT count(*) FROM salon_jobs_job_error") == [(4,)]
    with connections["web"].cursor() as cursor:
        cursor.execute("SELECT job_id FROM salon_jobs_job_error")
        assert cursor.fetchall() == []
        with tenant_context(stores[1], using="web"):
            cursor.execute("SELECT job_id FROM salon_jobs_job_error")
            assert cursor.fetchall() == [(jobs[1].id,)]
