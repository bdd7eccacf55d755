"""Migrates real databases by the commands, as their roles: empty, twice, backwards, in the wrong order, without roles."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from project.local.postgres import EmbeddedPostgres
from tests.conftest import manage
from tests.settings import PASSWORD, url_for

URLS = {
    "DATABASE_URL_MIGRATOR": "migrator",
    "DATABASE_URL": "app",
    "WORKER_DATABASE_URL": "worker_runtime",
    "OPERATOR_DATABASE_URL": "jobs_operator",
}
JOB_TABLES = {
    "message",
    "blocked_aggregate",
    "partition",
    "destination",
    "inbox",
    "replay",
    "job",
    "job_error",
    "job_result",
    "process",
    "cron_entry",
    "cron_tick",
    "superseded",
    "limit",
    "fan_out",
    "task_minute",
    "queue_minute",
}


@pytest.fixture
def fresh() -> Iterator[str]:
    """Name a database that does not exist yet; it is dropped afterwards."""
    name = f"salon_fresh_{secrets.token_hex(4)}"
    yield name
    with psycopg.connect(os.environ["DATABASE_URL_BOOTSTRAP"], autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def environment(name: str) -> dict[str, str]:
    """Return the URLs of every role for one database."""
    return {variable: url_for(role, name) for variable, role in URLS.items()}


def rows(name: str, statement: str) -> list[tuple[object, ...]]:
    """Query as the superuser."""
    with psycopg.connect(url_for(None, name)) as connection:
        return connection.execute(statement.encode()).fetchall()


def job_tables(name: str) -> set[str]:
    """Return which job tables there are, without their prefix."""
    tables = rows(name, "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'salon_jobs_%'")
    return {str(row[0]).removeprefix("salon_jobs_") for row in tables}


CATALOGUE = """
SELECT 'table', c.relname, c.relacl::text, c.relrowsecurity::text, c.relforcerowsecurity::text FROM pg_class c
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND c.relname <> 'django_migrations'
UNION ALL SELECT 'policy', tablename || '.' || policyname, roles::text, qual, with_check FROM pg_policies
UNION ALL SELECT 'function', proname, proacl::text, proowner::regrole::text, prosrc FROM pg_proc
 WHERE pronamespace = 'public'::regnamespace
UNION ALL SELECT 'storage', relname, array_to_string(reloptions, ','), '', '' FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
UNION ALL SELECT 'index', indexname, indexdef, '', '' FROM pg_indexes WHERE schemaname = 'public'
ORDER BY 1, 2"""


@pytest.mark.slow
def test_gwt_04_an_empty_database_gets_the_job_tables_and_twice_changes_nothing(fresh: str) -> None:
    urls = environment(fresh)
    assert manage("bootstrap_roles", "--share-roles", "--database", fresh, **urls).returncode == 0
    assert job_tables(fresh) == set()
    done = manage("migrate", **urls)
    assert done.returncode == 0, done.stderr
    assert job_tables(fresh) == JOB_TABLES
    before = rows(fresh, CATALOGUE)
    assert len(before) > 50
    for command in (("bootstrap_roles", "--share-roles", "--database", fresh), ("migrate",)):
        done = manage(*command, **urls)
        assert done.returncode == 0, done.stderr
    assert "No migrations to apply" in done.stdout
    assert "salon_jobs.W020" not in done.stderr
    assert rows(fresh, CATALOGUE) == before
    done = manage("makemigrations", "--check", "--dry-run", **urls)
    assert done.returncode == 0, done.stdout

    for app in ("salon_jobs", "salon"):
        done = manage("migrate", app, "zero", **urls)
        assert done.returncode == 0, done.stderr
    assert job_tables(fresh) == set()
    functions = rows(fresh, "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace")
    assert [name for (name,) in functions if "pgtrigger" not in str(name)] == [], "pgtrigger leaves its own behind"
    done = manage("migrate", **urls)
    assert done.returncode == 0, done.stderr
    assert rows(fresh, CATALOGUE) == before, "backwards and forwards again ends where it began"
    done = manage("salon_jobs", "doctor", "--superuser", "--fail", **urls)
    assert done.returncode == 0, done.stdout


def test_a_worker_waits_for_pending_migrations_and_a_burst_says_so(fresh: str) -> None:
    urls = environment(fresh)
    assert manage("bootstrap_roles", "--share-roles", "--database", fresh, **urls).returncode == 0
    done = manage("runworker", "--burst", "--health-addr", "127.0.0.1:0", **urls)
    assert done.returncode == 1
    assert "WORKER.SCHEMA_MISSING" in done.stderr
    assert "manage.py migrate" in done.stderr


def test_without_bootstrap_migrate_says_what_to_run() -> None:
    with EmbeddedPostgres(fsync=False) as server:
        parts = urlsplit(server.url)
        as_superuser = server.url
        as_migrator = f"postgresql://migrator:secret@{parts.hostname}:{parts.port}/postgres"
        for url in (as_migrator, as_superuser):
            done = manage("migrate", DATABASE_URL_MIGRATOR=url)
            assert done.returncode != 0
            assert "CommandError: ROLES.BOOTSTRAP_MISSING: " in done.stderr
            assert "Traceback" not in done.stderr
            assert "before migrate, run python manage.py bootstrap_roles" in done.stderr
            assert "Traceback" not in done.stderr


@pytest.fixture
def owned(fresh: str) -> Iterator[Callable[[str], dict[str, str]]]:
    """Give a database owned by one ordinary user, and the environment of a process with those settings."""
    name = sql.Identifier(fresh)
    with psycopg.connect(os.environ["DATABASE_URL_BOOTSTRAP"], autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(name, sql.Literal(PASSWORD)))
        connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(name, name))
        yield lambda settings: {"DJANGO_SETTINGS_MODULE": settings, "ONE_USER_URL": url_for(fresh, fresh)}
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
        connection.execute(sql.SQL("DROP ROLE {}").format(name))


ENQUEUE_AND_COUNT = (
    "from salon_jobs import enqueue_job; from salon_jobs.models import Job; "
    "enqueue_job('ping', {}); print('queued', Job.objects.count())"
)


def test_without_a_store_model_it_is_a_plain_queue(fresh: str, owned: Callable[[str], dict[str, str]]) -> None:
    plain = owned("tests.migrations.plain_settings")
    done = manage("migrate", "--verbosity", "0", **plain)
    assert done.returncode == 0, done.stderr
    functions = rows(fresh, "SELECT proname FROM pg_proc WHERE proname LIKE 'list_store%'")
    assert functions == []
    assert rows(fresh, "SELECT count(*) FROM pg_policies") == [(0,)]
    done = manage("shell", "-c", ENQUEUE_AND_COUNT, **plain)
    assert "queued 1" in done.stdout, done.stderr
    done = manage("runworker", "--burst", "--health-addr", "127.0.0.1:0", **plain)
    assert done.returncode == 0, done.stderr
    assert "job_succeeded" in done.stdout
    assert "role_noticed" in done.stdout, "one user owns the tables"
    done = manage("salon_jobs", "doctor", "--fail", **plain)
    assert done.returncode == 0, done.stdout
    done = manage("migrate", "salon_jobs", "zero", "--verbosity", "0", **plain)
    assert done.returncode == 0, done.stderr


def test_one_database_user_has_stores_and_forced_policies(fresh: str, owned: Callable[[str], dict[str, str]]) -> None:
    one_user = owned("tests.migrations.one_user_settings")
    done = manage("migrate", "--verbosity", "0", **one_user)
    assert done.returncode == 0, done.stderr
    stores = (
        "import uuid; from project.salon.models import Customer, Store; from salon_jobs import *; "
        "ids = [uuid.uuid4() for _ in range(3)]; [Store.objects.create(id=i, name='s') for i in ids]\n"
        "for i in ids:\n"
        "  with tenant_context(i): Customer.objects.create(store_id=i, name='c', email='')\n"
        "with tenant_context(ids[0]): print('seen', Customer.objects.count())\n"
        "print('outside', Customer.objects.count())\n"
        "from project.salon.tasks.reservation import *\n"
        "print(fan_out(expire_tentative_for_store))"
    )
    done = manage("shell", "-c", stores, **one_user)
    assert "seen 1" in done.stdout, done.stderr
    assert "outside 0" in done.stdout
    assert "inserted=3" in done.stdout
    assert rows(fresh, "SELECT count(*) FROM customer") == [(3,)]
    assert rows(fresh, "SELECT DISTINCT roles::text FROM pg_policies") == [("{public}",)]
    done = manage("runworker", "--burst", "--health-addr", "127.0.0.1:0", **one_user)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("job_succeeded") == 3


@pytest.mark.slow
def test_the_sql_of_every_migration_can_be_shown_and_a_plain_project_lacks_none(fresh: str) -> None:
    urls = environment(fresh)
    assert manage("bootstrap_roles", "--share-roles", "--database", fresh, **urls).returncode == 0
    for name in ("0002_protect", "0003_fan_out"):
        done = manage("sqlmigrate", "salon_jobs", name, **urls)
        assert done.returncode == 0, done.stderr
        assert "GRANT" in done.stdout
    assert job_tables(fresh) == set()
    plain = {"DJANGO_SETTINGS_MODULE": "tests.migrations.plain_settings", "ONE_USER_URL": url_for("migrator", fresh)}
    done = manage("makemigrations", "--check", "--dry-run", **plain)
    assert done.returncode == 0, done.stdout
