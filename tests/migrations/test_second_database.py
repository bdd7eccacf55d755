"""Migrates projects whose jobs are in one of several databases: nothing of them is in the others."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from tests.databases import rows
from tests.interpreter import manage, succeed
from tests.migrations.catalogue import ENQUEUE_AND_COUNT, FUNCTIONS, JOB_TABLES, job_tables
from tests.migrations.operations import succeed_together
from tests.servers.forwarder import Forwarder
from tests.settings import url_for

Project = dict[str, str]
ROUTERS = ["", "salon_jobs.db.router.JobTablesRouter"]


@pytest.fixture
def other() -> Iterator[str]:
    name = f"salon_other_{secrets.token_hex(4)}"
    with psycopg.connect(os.environ["DATABASE_URL_BOOTSTRAP"], autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield name
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def project(owned: Callable[[str], dict[str, str]], other: str, tmp_path: Path) -> Project:
    """Return the environment of a project with SQLite, the database of the jobs, and another."""
    places = {"SQLITE_FILE": str(tmp_path / "db.sqlite3"), "OTHER_URL": url_for(None, other)}
    return {**owned("tests.migrations.second_settings"), **places}


@pytest.fixture
def pooler(project: Project) -> Iterator[Forwarder]:
    """Return what is between clients and the alias of the jobs, at another port than the server's."""
    forwarder = Forwarder(urlsplit(project["ONE_USER_URL"]).port or 0)
    forwarder.open()
    project["POOLER_PORT"] = str(forwarder.port)
    yield forwarder
    forwarder.cut()


def sqlite_tables(project: Project) -> set[str]:
    connection = sqlite3.connect(project["SQLITE_FILE"])
    try:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    finally:
        connection.close()


def migrate(*aliases: str, to: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    return [("migrate", *to, "--database", alias, "--verbosity", "0") for alias in aliases]


@pytest.mark.parametrize("routers", ROUTERS)
def test_only_one_database_gets_the_tables(
    fresh: str, other: str, project: Project, pooler: Forwarder, routers: str
) -> None:
    """By another alias that leads there, too, whether it has the same port or goes past a pooler."""
    through = {**project, "ROUTERS": routers}
    straight = {name: value for name, value in through.items() if name != "POOLER_PORT"}
    succeed_together(("check",), *migrate("default", "other"), **straight)
    assert {name for name in sqlite_tables(project) if name.startswith("salon_jobs")} == set()
    assert job_tables(other) == set()
    assert rows(other, FUNCTIONS) == []
    assert job_tables(fresh) == set()
    write = ("sqlmigrate", "salon_jobs", "0001", "--database", "jobs_again")
    assert 'CREATE TABLE "salon_jobs_job"' in succeed_together(write, *migrate("jobs_again", "other"), **through)
    assert job_tables(fresh) == JOB_TABLES
    assert job_tables(other) == set()
    prune = ("migrate", "salon_jobs", "--prune", "--database", "jobs_again", "--verbosity", "0")
    succeed_together(*migrate("jobs"), prune, **through)
    assert "queued 1" in succeed("shell", "-c", ENQUEUE_AND_COUNT, **{**through, "ROUTERS": ROUTERS[1]})
    succeed_together(*migrate("default", "other", "jobs_again", to=("salon_jobs", "zero")), **straight)
    assert job_tables(fresh) == set()


def test_jobs_beside_a_default_sqlite_database(project: Project) -> None:
    dump = ("dumpdata", "--exclude", "contenttypes")
    assert "salon_jobs" not in succeed_together(*migrate("default", "jobs"), dump, **project)
    done = manage("dumpdata", **{**project, "ROUTERS": ""})
    assert done.returncode != 0
    assert "no such table: salon_jobs" in done.stderr, "what Django does without a router"
    assert "queued 1" in succeed("shell", "-c", ENQUEUE_AND_COUNT, **project), "the router finds the table"
    assert "job_succeeded" in succeed("runworker", "--burst", "--health-addr", "127.0.0.1:0", **project)
    save = (
        "from salon_jobs.models import Limit; "
        "Limit(kind='queue', name='mail').save(using='jobs_again'); one = Limit.objects.using('jobs_again').get(); "
        "one.save(); print('written by', one._state.db)"
    )
    written = succeed_together(("salon_jobs", "doctor", "--fail"), ("shell", "-c", save), **project)
    assert "written by jobs_again" in written, "a row stays with its alias"


def test_database_that_cannot_be_compared(fresh: str, other: str, project: Project, pooler: Forwarder) -> None:
    pooler.cut()
    succeed_together(*migrate("default", "other"), **project)
    assert job_tables(other) == set(), "it has another name"
    done = manage(*migrate("jobs_again")[0], **project)
    assert done.returncode == 1
    assert "WORKER.NOT_READY: whether the alias 'jobs_again' leads to the database of the jobs" in done.stderr
    assert "set SALON_JOBS['DATABASE'] to the alias" in done.stderr
    assert rows(fresh, "SELECT 1 FROM pg_tables WHERE tablename = 'django_migrations'") == []


def test_router_answers_without_a_server(project: Project, pooler: Forwarder) -> None:
    pooler.cut()
    project["ONE_USER_URL"] = project["ONE_USER_URL"].replace(f":{pooler.target_port}/", ":1/")
    ask = (
        "from salon_jobs.db.router import JobTablesRouter;"
        " print(*(JobTablesRouter().allow_migrate('jobs_again', app) for app in ('salon_jobs', 'plain')))"
    )
    check = ("makemigrations", "salon_jobs", "--check")
    assert "False None\n" in succeed_together(check, ("shell", "-v", "0", "-c", ask), **project)


def test_fake_is_undone_by_the_named_commands(fresh: str, project: Project) -> None:
    fake = ("migrate", "salon_jobs", "--fake", "--database", "jobs", "--verbosity", "0")
    succeed_together(("migrate", "contenttypes", *fake[3:]), fake, **project)
    commands = named_by_doctor(project)
    assert commands == ["migrate salon_jobs zero --fake", "migrate salon_jobs", "migrate"]
    as_named = [(*command.split(), "--database", "jobs", "--verbosity", "0") for command in commands]
    succeed_together(*as_named, ("salon_jobs", "doctor", "--fail"), **project)
    assert job_tables(fresh) == JOB_TABLES


def test_commands_keep_what_depends_on_ours(owned: Callable[[str], dict[str, str]], fresh: str) -> None:
    urls = owned("tests.migrations.tenants_settings")
    urls |= {"TENANTS_FIRST": "yes", "TENANTS_STORE_MODEL": "tenants.Store"}
    succeed("migrate", "--verbosity", "0", **urls)
    with psycopg.connect(urls["ONE_USER_URL"]) as owner:
        names = [sql.Identifier(f"salon_jobs_{name}") for name in JOB_TABLES]
        owner.execute(sql.SQL("DROP TABLE {} CASCADE").format(sql.SQL(", ").join(names)))
    commands = named_by_doctor(urls)
    assert commands[2] == "migrate tenants 0003_fan_out --fake"
    as_named = [(*command.split(), "--verbosity", "0") for command in commands]
    succeed_together(*as_named, ("salon_jobs", "doctor", "--fail"), **urls)
    assert job_tables(fresh) == JOB_TABLES
    with psycopg.connect(urls["ONE_USER_URL"]) as owner:
        owner.execute("DELETE FROM django_migrations WHERE app = 'salon_jobs'")
        owner.execute(sql.SQL("DROP TABLE {} CASCADE").format(sql.SQL(", ").join(names)))
    assert named_by_doctor(urls) == ["migrate"]


def named_by_doctor(project: Project) -> list[str]:
    """Return the commands that the doctor names where the job tables are missing."""
    done = manage("salon_jobs", "doctor", **project)
    assert done.returncode == 1
    assert "WORKER.SCHEMA_MISSING: the job tables are missing" in done.stderr
    commands = done.stderr.strip().partition("; run: ")[2].split(", ")
    return [command.removeprefix("python manage.py ") for command in commands]
