"""Shows who may do what with the job tables and the store list, as the real roles, on tables that are not empty."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from django.db import ProgrammingError, connections, transaction
from django.test import override_settings

from salon_jobs import fan_out, tenant_context
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import EnqueueRefused
from salon_jobs.core.records import ActionResult
from salon_jobs.jobs import JobHandle, control
from salon_jobs.jobs import queries as store
from tests import tasks
from tests.support import claim, seen


@pytest.fixture
def jobs(stores: list[UUID]) -> list[JobHandle]:
    """Add a job per store and one of no store; the owner sees all four."""
    handles = [tasks.in_store.enqueue(store_id=store) for store in stores]
    handles.append(tasks.system.enqueue())
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(4,)]
    return handles


@pytest.fixture
def as_web() -> object:
    """Make the web role's connection the one that jobs are enqueued on."""
    from django.conf import settings

    with override_settings(SALON_JOBS={**settings.SALON_JOBS, "DATABASE": "web"}) as override:
        assert conf.database == "web"
        yield override


def ask(alias: str, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement, parameters)
        return [tuple(row) for row in cursor.fetchall()]


def refused(alias: str, statement: str, *parameters: Any) -> str:
    with pytest.raises(ProgrammingError) as caught, transaction.atomic(using=alias):
        ask(alias, statement, *parameters)
    assert isinstance(caught.value.__cause__, psycopg.errors.InsufficientPrivilege), caught.value
    return str(caught.value)


def test_the_web_role_sees_the_jobs_of_its_current_store_alone(jobs: list[JobHandle], stores: list[UUID]) -> None:
    assert ask("web", "SELECT id FROM salon_jobs_job") == []
    with tenant_context(stores[0], using="web"):
        assert ask("web", "SELECT id FROM salon_jobs_job") == [(jobs[0].id,)]
        assert ask("web", "UPDATE salon_jobs_job SET priority = 3 RETURNING id") == [(jobs[0].id,)]
    assert seen("SELECT count(*) FROM salon_jobs_job WHERE priority = 3") == [(1,)]


@pytest.mark.parametrize("column", ["store_id", "task", "lease", "leased_by", "rescues", "id"])
def test_the_web_role_can_not_touch_what_keys_and_cancelling_do_not_need(
    jobs: list[JobHandle], stores: list[UUID], column: str
) -> None:
    with tenant_context(stores[0], using="web"):
        refused("web", f"UPDATE salon_jobs_job SET {column} = {column}")
        refused("web", "DELETE FROM salon_jobs_job")
        for table in ("process", "cron_tick", "cron_entry"):
            refused("web", f"SELECT * FROM salon_jobs_{table}")


@pytest.mark.parametrize(
    "column",
    ["id", "state", "lease", "leased_by", "rescues", "attempts", "reason", "created_at", "started_at", "finished_at"],
)
def test_the_web_role_can_not_insert_what_the_workers_trust(stores: list[UUID], column: str) -> None:
    value = {"state": "'running'", "reason": "''"}.get(column, "now()" if column.endswith("_at") else "1")
    with tenant_context(stores[0], using="web"):
        refused("web", f"INSERT INTO salon_jobs_job (task, store_id, {column}) VALUES ('ping', %s, {value})", stores[0])
        ask("web", "INSERT INTO salon_jobs_job (task, store_id) VALUES ('ping', %s) RETURNING id", stores[0])


def test_the_web_role_moves_jobs_as_cancelling_and_retrying_do_and_never_a_running_one(
    jobs: list[JobHandle], stores: list[UUID], process_id: int
) -> None:
    job_id = jobs[0].id
    with tenant_context(stores[0], using="web"):
        for state in ("running", "succeeded", "failed"):
            with pytest.raises(ProgrammingError, match=r"row-level security|Cannot update"), transaction.atomic("web"):
                ask("web", "UPDATE salon_jobs_job SET state = %s RETURNING id", state)
        assert control.cancel_jobs([job_id], using="web") == [ActionResult(job_id, True)]
        assert control.retry_jobs([job_id], using="web") == [ActionResult(job_id, True)]
    [running] = [job for job in claim(process_id) if job.id == job_id]
    with tenant_context(stores[0], using="web"):
        assert ask("web", "SELECT state FROM salon_jobs_job") == [("running",)]
        assert ask("web", "SELECT id FROM salon_jobs_job FOR UPDATE") == [], "it cannot even hold up its finish"
        assert ask("web", "UPDATE salon_jobs_job SET attempts = 0 RETURNING id") == []
        refused("web", "UPDATE salon_jobs_job SET lease = 1")
    assert store.finish(running, process_id)


def test_the_web_role_enqueues_for_its_current_store_and_no_other(as_web: object, stores: list[UUID]) -> None:
    with tenant_context(stores[0]):
        for _ in range(2):
            tasks.keyed.enqueue(store_id=stores[0], number=1)
        tasks.keyed.using(job_key_mode="unsafe_dedupe").enqueue(store_id=stores[0], number=1)
        tasks.in_store.enqueue_many([tasks.in_store.call(store_id=stores[0])])
    for enqueue in (
        lambda: tasks.in_store.enqueue(store_id=stores[1]),
        lambda: tasks.keyed.enqueue(store_id=stores[1], number=1),
        lambda: tasks.keyed.using(job_key_mode="unsafe_dedupe").enqueue(store_id=stores[1], number=1),
        lambda: tasks.in_store.enqueue_many([tasks.in_store.call(store_id=stores[1])]),
    ):
        with pytest.raises(EnqueueRefused, match="row-level security") as caught, tenant_context(stores[0]):
            enqueue()
        assert caught.value.code == "JOB.ENQUEUE_REFUSED"
        with pytest.raises(EnqueueRefused):
            enqueue()
    assert seen("SELECT DISTINCT store_id FROM salon_jobs_job") == [(stores[0],)]
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(2,)]


def test_the_web_role_adds_system_jobs_through_the_function_and_does_not_see_them(
    as_web: object, stores: list[UUID]
) -> None:
    handle = tasks.system.enqueue(note="from the web")
    assert seen("SELECT id, payload->>'note' FROM salon_jobs_job") == [(handle.id, "from the web")]
    assert ask("web", "SELECT count(*) FROM salon_jobs_job") == [(0,)]
    refused("web", "INSERT INTO salon_jobs_job (task) VALUES ('ping') RETURNING id")
    with tenant_context(stores[0], using="web"):
        refused("web", "INSERT INTO salon_jobs_job (task) VALUES ('ping') RETURNING id")
        [(job_id, result)] = ask("web", "SELECT * FROM salon_jobs_add_job('test-store', '{}', %s)", stores[0])
        assert result == "inserted"
        assert "is not the current store" in refused(
            "web", "SELECT * FROM salon_jobs_add_job('test-store', '{}', %s)", stores[1]
        )
    assert "is not the current store" in refused("web", "SELECT * FROM salon_jobs_add_job('x', '{}', %s)", uuid4())
    assert seen("SELECT store_id FROM salon_jobs_job WHERE id = %s", job_id) == [(stores[0],)]


def test_the_worker_sees_all_jobs_and_no_business_row(jobs: list[JobHandle], stores: list[UUID]) -> None:
    assert ask("default", "SELECT current_user, count(*) FROM salon_jobs_job") == [("worker_runtime", 4)]
    assert ask("default", "SELECT count(*) FROM store") == [(0,)]
    assert ask("default", "SELECT store_id FROM public.list_store_ids_for_fan_out()") == [(s,) for s in stores]
    with tenant_context(stores[0]):
        assert ask("default", "SELECT id FROM store") == [(stores[0],)]


def test_the_operator_sees_and_changes_all_jobs_and_no_business_table(jobs: list[JobHandle]) -> None:
    assert ask("operator", "SELECT current_user, count(*) FROM salon_jobs_job") == [("jobs_operator", 4)]
    assert len(ask("operator", "UPDATE salon_jobs_job SET priority = 1 RETURNING id")) == 4
    tables = [
        row[0]
        for row in seen("SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace")
    ]
    business = [name for name in tables if not name.startswith(("salon_jobs_", "django_migrations"))]
    assert "store" in business
    assert "customer" in business
    for name in business:
        refused("operator", f'SELECT * FROM "{name}"')


def test_nobody_but_the_worker_lists_the_stores(stores: list[UUID], as_web: object) -> None:
    for alias in ("web", "operator"):
        refused(alias, "SELECT * FROM public.list_store_ids_for_fan_out()")
    with pytest.raises(EnqueueRefused, match="salon_jobs_fan_out; a fan-out runs as the worker role"):
        fan_out(tasks.in_store)


def test_the_fan_out_function_is_exactly_as_specified(stores: list[UUID]) -> None:
    assert seen(
        "SELECT p.proowner::regrole::text, p.prosecdef, p.provolatile, l.lanname, p.proconfig, p.pronargs,"
        "       pg_get_function_result(p.oid), p.proacl::text[]"
        "  FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang WHERE p.proname = 'list_store_ids_for_fan_out'"
    ) == [
        (
            "worker_fanout_owner",
            True,
            "s",
            "sql",
            ["search_path=pg_catalog"],
            0,
            "TABLE(store_id uuid)",
            ["worker_fanout_owner=X/worker_fanout_owner", "worker_runtime=X/worker_fanout_owner"],
        )
    ]
    [(source,)] = seen("SELECT prosrc FROM pg_proc WHERE proname = 'list_store_ids_for_fan_out'")
    assert '"public"."store"' in source
    assert "ORDER BY" in source
    owner = "worker_fanout_owner"
    assert seen("SELECT rolcanlogin, rolbypassrls, rolsuper FROM pg_roles WHERE rolname = %s", owner) == [
        (False, True, False)
    ]
    assert (
        seen(
            "SELECT pg_has_role(r, %s, 'MEMBER') FROM unnest(ARRAY['app','worker_runtime','jobs_operator']) AS r", owner
        )
        == [(False,)] * 3
    )
    assert seen("SELECT has_table_privilege(%s, 'store', 'SELECT')", owner) == [(False,)]
    assert seen("SELECT has_column_privilege(%s, 'store', 'id', 'SELECT')", owner) == [(True,)]
    assert seen("SELECT has_schema_privilege(%s, 'public', 'CREATE')", owner) == [(False,)]


def test_every_store_owned_and_job_table_has_forced_row_level_security(database: None) -> None:
    bare = seen(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = 'public' AND c.relkind = 'r' AND NOT (c.relrowsecurity AND c.relforcerowsecurity)"
        "   AND (c.relname LIKE 'salon_jobs_%%' OR c.relname = 'store' OR EXISTS (SELECT FROM pg_attribute a"
        "        WHERE a.attrelid = c.oid AND a.attname = 'store_id' AND NOT a.attisdropped))"
    )
    assert bare == []


def test_runtimes_read_the_migration_history_and_can_not_rewrite_it(database: None) -> None:
    for alias in ("default", "web", "operator"):
        assert ask(alias, "SELECT count(*) > 0 FROM django_migrations") == [(True,)]
        refused(alias, "DELETE FROM django_migrations RETURNING 1")


def test_the_guards_refuse_mistakes_even_the_owners(jobs: list[JobHandle], stores: list[UUID]) -> None:
    for change, why in (
        ("store_id = gen_random_uuid()", "identity_never_changes"),
        ("task = 'ping'", "identity_never_changes"),
        ("state = 'succeeded'", "legal_moves_only"),
        ("state = 'failed'", "legal_moves_only"),
    ):
        with pytest.raises(Exception, match=why), connections["owner"].cursor() as cursor:
            cursor.execute(f"UPDATE salon_jobs_job SET {change}")
    for legal in ("running", "failed", "queued", "cancelled", "queued", "running", "succeeded"):
        assert len(ask("owner", "UPDATE salon_jobs_job SET state = %s RETURNING id", legal)) == 4
    with pytest.raises(Exception, match="legal_moves_only"):
        ask("owner", "UPDATE salon_jobs_job SET state = 'queued' RETURNING id")
