"""Follows the page on tables that have rows, with one database user and with roles, while old code writes."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.databases import rows
from tests.docs.crm_project import FILES
from tests.docs.markdown import read, section
from tests.docs.walkthrough import Walkthrough
from tests.settings import TEST_DATABASE, url_for

PAGE = "docs/how-to/existing-tables.md"
MIGRATE = "<!-- test: run -->\n```console\n$ python manage.py migrate\n```"
# ACTIVITIES=1000000 takes three to six minutes on two busy cores.
ACTIVITIES = int(os.environ.get("ACTIVITIES", "100000"))
ROWS = """
INSERT INTO accounts_organization (name) SELECT 'Organization' FROM generate_series(1, 100);
INSERT INTO crm_contact (organization_id, name)
SELECT 1 + n %% 100, 'Contact' FROM generate_series(1, %(contacts)s) AS n;
INSERT INTO crm_activity (contact_id, text)
SELECT 1 + n %% %(contacts)s, 'x' FROM generate_series(1, %(activities)s) AS n;
ANALYZE
"""
OLD_CODE = (
    "INSERT INTO crm_activity (contact_id, text) VALUES (1 + (random() * 9)::int, 'of old code')",
    "UPDATE crm_activity SET contact_id = 1 + contact_id % 10 WHERE id = (SELECT 1 + (random() * 99)::int)",
)
NEW_CODE = (
    "INSERT INTO crm_activity (contact_id, organization_id, text) VALUES (6, 7, 'of new code')",
    "UPDATE crm_activity SET text = 'x' WHERE id = (SELECT min(id) FROM crm_activity WHERE organization_id = 7)",
)
STRAY = """
SELECT count(*) FROM crm_activity AS a JOIN crm_contact AS c ON c.id = a.contact_id
 WHERE a.organization_id IS DISTINCT FROM c.organization_id
"""
COLUMNS = "SELECT count(*) FROM information_schema.columns WHERE table_name = 'crm_activity'"


@pytest.fixture(params=["one user", "roles"])
def project(request: pytest.FixtureRequest, tmp_path: Path, fresh: str) -> tuple[Walkthrough, str, str]:
    """Write the project as it was and migrate it; return how to follow the page, the database and the writers' URL."""
    if request.param == "roles":
        ours: Mapping[str, str] = request.getfixturevalue("bootstrapped")
        owner, writer, roles = ours["DATABASE_URL_MIGRATOR"], ours["DATABASE_URL"], "{}"
    else:
        request.getfixturevalue("owned")
        owner = writer = url_for(fresh, fresh)
        roles = "null"
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        if (tmp_path / path).parent.name == "migrations":
            (tmp_path / path).with_name("__init__.py").touch()
    page = Walkthrough(
        folder=tmp_path,
        superuser_url=url_for(None, "postgres"),
        database_url=url_for(None, fresh),
        values={"DATABASE_URL": owner, "ROLES": roles},
        timeout_s=600,
    )
    page.follow(MIGRATE)
    return page, fresh, writer


def fill(database: str, *, contacts: int, activities: int) -> None:
    with psycopg.connect(url_for(None, database), autocommit=True) as connection:
        for statement in ROWS.split(";\n"):
            connection.execute((statement % {"contacts": contacts, "activities": activities}).encode())


@contextmanager
def connected(url: str) -> Iterator[psycopg.Connection]:
    """Connect as code that fails if it waits for a lock for half a second."""
    with psycopg.connect(url, autocommit=True, options="-c lock_timeout=500ms") as connection:
        yield connection


def write(connection: psycopg.Connection, statements: Sequence[str]) -> None:
    for statement in statements:
        with connection.transaction():
            connection.execute("SELECT set_config('app.current_store_id', '7', true)")
            assert connection.execute(statement.encode()).rowcount > 0, statement


def steps() -> list[str]:
    return [section(read(PAGE), line) for line in read(PAGE).splitlines() if re.match(r"## \d\. ", line)]


@contextmanager
def writing(url: str, statements: Sequence[str]) -> Iterator[list[int]]:
    """Write meanwhile on two threads, in transactions of their own; count the runs, and raise what went wrong."""
    stop, runs = threading.Event(), [0, 0]

    def work(number: int) -> None:
        with connected(url) as connection:
            while not stop.wait(0.02):
                write(connection, statements)
                runs[number] += 1

    with ThreadPoolExecutor(2) as threads:
        working = [threads.submit(work, number) for number in range(2)]
        try:
            yield runs
        finally:
            stop.set()
    for each in working:
        each.result()


def test_follow_page(project: tuple[Walkthrough, str, str]) -> None:
    page, database, writer = project
    fill(database, contacts=1000, activities=3000)
    with connected(writer) as connection:
        for number, step in enumerate(steps(), 1):
            page.follow(step)
            write(connection, OLD_CODE if number <= 5 else NEW_CODE)
        assert rows(database, STRAY) == [(0,)]
        assert connection.execute("SELECT count(*) FROM crm_activity").fetchone() == (0,), "no rows without a store"
        page.follow(section(read(PAGE), "## The way back"))
        write(connection, OLD_CODE)
        assert rows(database, STRAY) == [(0,)]
        page.follow(MIGRATE.replace("migrate", "migrate crm 0001"))
        write(connection, OLD_CODE)
    assert rows(database, COLUMNS) == [(3,)]


@pytest.mark.slow
def test_no_write_waits_on_many_rows(project: tuple[Walkthrough, str, str]) -> None:
    """No write waits for half a second."""
    page, database, writer = project
    fill(database, contacts=10_000, activities=ACTIVITIES)
    # When new code writes, none of the old is left; it writes before the isolation, and after it.
    for code, parts in ((OLD_CODE, steps()[:5]), (NEW_CODE, [*steps()[5:], section(read(PAGE), "## The way back")])):
        with writing(writer, code) as runs:
            for part in parts:
                page.follow(part)
        assert min(runs) > 10
    assert rows(database, STRAY) == [(0,)]


def test_links_of_two_tenants_are_found(database: None) -> None:
    """The page's SELECT, on tables as Django makes them for a ManyToManyField."""
    [select] = re.findall(r"```sql\n(.*?crm_contact_tags.*?)```", read(PAGE), re.DOTALL)
    with psycopg.connect(url_for(None, TEST_DATABASE)) as connection:
        connection.execute(
            "CREATE TEMP TABLE crm_contact AS SELECT id, NULLIF(id, 3) organization_id FROM generate_series(1, 3) id;"
            "CREATE TEMP TABLE crm_tag AS SELECT id, id AS organization_id FROM generate_series(1, 3) id;"
            "CREATE TEMP TABLE crm_contact_tags AS SELECT 10 * contact.id + tag.id AS id, contact.id AS contact_id,"
            " tag.id AS tag_id FROM crm_contact contact CROSS JOIN crm_tag tag WHERE (contact.id, tag.id) <> (2, 3)"
        )
        found = connection.execute(select.encode()).fetchall()
    assert found == [(12, 1, 2), (13, 1, 3), (21, 2, 1), (31, None, 1), (32, None, 2), (33, None, 3)]
