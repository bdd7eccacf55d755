"""Creates test databases without migrations, by Django's runner and by pytest-django: they have what migrations make."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.databases import environment, rows, spare_database
from tests.interpreter import ROOT, manage, run_python, succeed
from tests.migrations.catalogue import CATALOGUE
from tests.settings import url_for

SETTINGS = "tests.migrations.unmigrated_settings"
PLAIN = """
from django.db import ProgrammingError, transaction
from django.test import TestCase, TransactionTestCase

from salon_jobs import enqueue_job
from salon_jobs.core.outcomes import Succeeded
from salon_jobs.models import Job
from salon_jobs.testing import drain_jobs


class InTransaction(TestCase):
    def test_job_runs(self):
        enqueue_job("ping", {})
        [run] = drain_jobs()
        assert isinstance(run.outcome, Succeeded)

    def test_triggers_guard(self):
        enqueue_job("ping", {})
        with self.assertRaisesMessage(ProgrammingError, "Cannot update of"), transaction.atomic():
            Job.objects.update(task="x")


class Flushed(TransactionTestCase):
    def test_one(self):
        enqueue_job("ping", {})
        assert Job.objects.count() == 1

    test_two = test_one
"""
ROLES = """
from django.db import connection
from django.test import TestCase, TransactionTestCase
from project.salon.models import Customer

from salon_jobs.conf import settings as conf
from salon_jobs.tenancy import create_store
from salon_jobs.testing import as_role, as_store, assert_isolated


class WithStores(TestCase):
    def test_stores_are_isolated(self):
        for name in ("Ginza", "Umeda"):
            store = create_store(name=name)
            with as_store(store):
                Customer.objects.create(store=store, name="Ada")
        assert_isolated(Customer)

    def test_worker_lists_the_stores(self):
        store = create_store(name="Ginza")
        with as_role("worker"), connection.cursor() as cursor:
            cursor.execute(f"SELECT store_id FROM {conf.fan_out_function}()")
            assert cursor.fetchall() == [(store.pk,)]


class Flushed(TransactionTestCase):
    def test_one(self):
        assert create_store(name="Ginza").pk

    test_two = test_one
"""
STARTING = """

class Starting(TestCase):
    def test_error_says_what_to_set(self):
        from salon_jobs.core.errors import SchemaMissing
        from salon_jobs.process.preflight import check_schema
        with self.assertRaisesMessage(SchemaMissing, "made without migrations, as by TEST = {'MIGRATE': False}"):
            check_schema("default")
"""
PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
Project = dict[str, str]


@pytest.fixture(params=["plain", "roles"])
def project(request: pytest.FixtureRequest, fresh: str, tmp_path: Path) -> Iterator[Project]:
    """Write tests; return the environment of a project that has them, as a user who may create databases."""
    with_roles = request.param == "roles"
    request.getfixturevalue("bootstrapped" if with_roles else "empty_url")
    (tmp_path / "test_own.py").write_text(ROLES if with_roles else PLAIN)
    yield {
        **environment(fresh),
        "DJANGO_SETTINGS_MODULE": SETTINGS,
        "ONE_USER_URL": url_for(None, fresh),
        "WITH_ROLES": str(with_roles),
    }
    with psycopg.connect(os.environ["DATABASE_URL_BOOTSTRAP"], autocommit=True) as server:
        for (name,) in server.execute(
            "SELECT datname FROM pg_database WHERE starts_with(datname, %s)", [f"test_{fresh}"]
        ):
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_same_is_made_without_migrations(fresh: str, project: Project) -> None:
    succeed("migrate", "--run-syncdb", "--verbosity", "0", **{**project, "WITHOUT_MIGRATIONS": "always"})
    with spare_database(copied=False) as other:
        if project["WITH_ROLES"] == "True":
            succeed("bootstrap_roles", "--share-roles", "--database", other, **project)
        succeed("migrate", "--verbosity", "0", **{**project, "ONE_USER_URL": url_for(None, other)})
        assert of_ours(fresh) == of_ours(other)


def test_runner_of_django_makes_what_jobs_need(project: Project, tmp_path: Path) -> None:
    """A process that is started in such a database says that it needs migrations."""
    project["WITHOUT_MIGRATIONS"] = "in tests"
    with (tmp_path / "test_own.py").open("a") as tests:
        tests.write(STARTING)
    for options in (("--parallel", "2"), ()):
        done = manage("test", str(tmp_path), "--noinput", "--keepdb", *options, **project)
        assert done.returncode == 0, done.stderr
        assert "OK" in done.stderr


def test_pytest_makes_what_jobs_need(project: Project, tmp_path: Path) -> None:
    """Two workers of pytest-xdist grant rights to the same roles at once; without roles, one process starts twice."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = ("-q", "-p", "no:cacheprovider", "--nomigrations", "--reuse-db", "-n")
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    surroundings = {**outside, **project, "PYTHONPATH": str(ROOT)}
    for workers in ("2",) if project["WITH_ROLES"] == "True" else ("0", "0"):
        done = run_python("-c", PYTEST, *command, workers, environment=surroundings, folder=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr


def of_ours(name: str) -> list[tuple[object, ...]]:
    """Return what the database has of us: tables, policies, functions, triggers, indexes."""
    return [row for row in rows(name, CATALOGUE) if str(row[1]).startswith(("salon_jobs", "pgtrigger", "_pgtrigger"))]
