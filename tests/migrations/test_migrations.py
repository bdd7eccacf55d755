"""Migrates real databases by the commands, as their roles: empty, twice, backwards, in the wrong order, without roles."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import psycopg
import pytest

from project.local.postgres import EmbeddedPostgres
from tests.databases import rows
from tests.interpreter import manage, succeed
from tests.migrations.catalogue import CATALOGUE, ENQUEUE_AND_COUNT, FUNCTIONS, JOB_TABLES, job_tables
from tests.migrations.operations import succeed_together
from tests.settings import url_for


def test_migrate_is_idempotent_and_reversible(fresh: str, bootstrapped: dict[str, str]) -> None:
    urls = bootstrapped
    assert job_tables(fresh) == set()
    succeed("migrate", **urls)
    assert job_tables(fresh) == JOB_TABLES
    before = rows(fresh, CATALOGUE)
    assert len(before) > 50
    for command in (("bootstrap_roles", "--share-roles", "--database", fresh), ("migrate",)):
        done = manage(*command, **urls)
    assert done.returncode == 0, done.stderr
    assert "No migrations to apply" in done.stdout
    assert "salon_jobs.W020" not in done.stderr
    assert rows(fresh, CATALOGUE) == before
    succeed("makemigrations", "--check", "--dry-run", **urls)

    for app in ("salon_jobs", "salon"):
        succeed("migrate", app, "zero", **urls)
    assert job_tables(fresh) == set()
    assert rows(fresh, FUNCTIONS) == [], "nor what pgtrigger would leave behind"
    succeed("migrate", **urls)
    assert rows(fresh, CATALOGUE) == before, "backwards and forwards again ends where it began"
    succeed("salon_jobs", "doctor", "--superuser", "--fail", **urls)


def test_migrate_asks_for_bootstrap() -> None:
    with EmbeddedPostgres(fsync=False) as server:
        parts = urlsplit(server.url)
        as_superuser = server.url
        as_migrator = f"postgresql://migrator:secret@{parts.hostname}:{parts.port}/postgres"
        for url in (as_migrator, as_superuser):
            done = manage("migrate", DATABASE_URL_MIGRATOR=url)
            assert done.returncode != 0
            assert "CommandError: ROLES.BOOTSTRAP_MISSING: " in done.stderr
            assert "before migrate, run python manage.py bootstrap_roles" in done.stderr
            assert "Traceback" not in done.stderr


def test_plain_queue_without_stores(fresh: str, owned: Callable[[str], dict[str, str]]) -> None:
    plain = owned("tests.migrations.plain_settings")
    output = succeed_together(("migrate", "--verbosity", "0"), ("shell", "-c", ENQUEUE_AND_COUNT), **plain)
    assert "queued 1" in output
    assert rows(fresh, "SELECT proname FROM pg_proc WHERE proname LIKE 'list_store%'") == []
    assert rows(fresh, "SELECT count(*) FROM pg_policies") == [(0,)]
    output = succeed("runworker", "--burst", "--health-addr", "127.0.0.1:0", **plain)
    assert "job_succeeded" in output
    assert "role_noticed" not in output, "one user owns the tables, as it should"
    others = "CREATE FUNCTION theirs() RETURNS trigger LANGUAGE plpgsql AS '/* _pgtrigger_should_ignore */ BEGIN END'"
    with psycopg.connect(plain["ONE_USER_URL"]) as connection:
        connection.execute(others)
    succeed_together(("salon_jobs", "doctor", "--fail"), ("migrate", "salon_jobs", "zero"), **plain)
    assert set(rows(fresh, FUNCTIONS)) == {("theirs",), ("_pgtrigger_should_ignore",)}, "another app's trigger needs it"
    with psycopg.connect(plain["ONE_USER_URL"]) as connection:
        connection.execute("DROP FUNCTION theirs()")
    succeed_together(("migrate", "salon_jobs"), ("migrate", "salon_jobs", "zero"), **plain)
    assert rows(fresh, FUNCTIONS) == []
    left = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relname ~ 'salon_jobs'"
    assert rows(fresh, left) == []


def test_one_database_user_has_forced_policies(fresh: str, owned: Callable[[str], dict[str, str]]) -> None:
    one_user = owned("tests.migrations.one_user_settings")
    stores = (
        "from project.salon.models import Customer, Store; from salon_jobs import fan_out, tenant_context\n"
        "from tests.support import new_store_id; ids = [new_store_id() for _ in range(3)]; [Store.objects.create(id=i, name='s') for i in ids]\n"
        "for i in ids:\n"
        "  with tenant_context(i): Customer.objects.create(store_id=i, name='c', email='')\n"
        "with tenant_context(ids[0]): print('seen', Customer.objects.count())\n"
        "print('outside', Customer.objects.count())\n"
        "from project.salon.tasks.reservation import *\n"
        "print(fan_out(expire_tentative_for_store))"
    )
    output = succeed_together(("migrate", "--verbosity", "0"), ("shell", "-c", stores), **one_user)
    assert all(text in output for text in ("seen 1", "outside 0", "inserted=3")), output
    assert rows(fresh, "SELECT count(*) FROM customer") == [(3,)]
    assert rows(fresh, "SELECT DISTINCT roles::text FROM pg_policies") == [("{public}",)]
    burst = ("runworker", "--burst", "--health-addr", "127.0.0.1:0")
    assert succeed(*burst, **one_user).count("job_succeeded") == 3
    for options in ((), ("--plan",), ("--check",)):
        done = manage("migrate", *options, **one_user)
        what = "what it sets on its own session is no drift, which would refuse every later release"
        assert (done.returncode, "salon_jobs.W020" in done.stderr) == (0, False), what


@pytest.mark.slow
def test_sqlmigrate_needs_no_tables(fresh: str, bootstrapped: dict[str, str]) -> None:
    """A project without stores lacks no migration."""
    for name in ("0002_protect", "0003_fan_out"):
        assert "GRANT" in succeed("sqlmigrate", "salon_jobs", name, **bootstrapped)
    assert job_tables(fresh) == set()
    plain = {"DJANGO_SETTINGS_MODULE": "tests.migrations.plain_settings", "ONE_USER_URL": url_for("migrator", fresh)}
    succeed("makemigrations", "--check", "--dry-run", **plain)
