"""Migrates projects whose jobs are in one of several databases: nothing of them is in the others."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.databases import rows
from tests.interpreter import manage, succeed
from tests.migrations.catalogue import ENQUEUE_AND_COUNT, FUNCTIONS, JOB_TABLES, job_tables
from tests.migrations.operations import succeed_together
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


def sqlite_tables(project: Project) -> set[str]:
    connection = sqlite3.connect(project["SQLITE_FILE"])
    try:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    finally:
        connection.close()


def migrate(*aliases: str, to: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    return [("migrate", *to, "--database", alias, "--verbosity", "0") for alias in aliases]


@pytest.mark.parametrize("routers", ROUTERS)
def test_only_one_database_gets_the_tables(fresh: str, other: str, project: Project, routers: str) -> None:
    project["ROUTERS"] = routers
    succeed_together(("check",), *migrate("default", "other"), **project)
    assert {name for name in sqlite_tables(project) if name.startswith("salon_jobs")} == set()
    assert job_tables(other) == set()
    assert rows(other, FUNCTIONS) == []
    assert job_tables(fresh) == set()
    succeed_together(*migrate("jobs_again"), **project)
    assert job_tables(fresh) == JOB_TABLES, "another alias of the same database"
    succeed_together(*migrate("jobs"), *migrate("default", "other", "jobs", to=("salon_jobs", "zero")), **project)
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
