"""Databases for one test, in addition to the one that all tests share."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql

from tests.interpreter import succeed
from tests.settings import PASSWORD, TEMPLATE, url_for

URLS = {
    "DATABASE_URL_MIGRATOR": "migrator",
    "DATABASE_URL": "app",
    "WORKER_DATABASE_URL": "worker_runtime",
    "OPERATOR_DATABASE_URL": "jobs_operator",
}


@contextmanager
def spare_database(*, copied: bool) -> Iterator[str]:
    """Create and drop a database, empty or migrated like the tests' own."""
    name = f"salon_spare_{secrets.token_hex(4)}"
    template = sql.Identifier(TEMPLATE if copied else "template1")
    with psycopg.connect(os.environ["DATABASE_URL_BOOTSTRAP"], autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), template))
        try:
            yield name
        finally:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def fresh() -> Iterator[str]:
    """Return the name of a database that does not exist yet; drop it afterwards."""
    name = f"salon_fresh_{secrets.token_hex(4)}"
    yield name
    with psycopg.connect(os.environ["DATABASE_URL_BOOTSTRAP"], autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def empty_url(fresh: str) -> str:
    """Create the database ``fresh``, without tables; return its superuser's URL."""
    with psycopg.connect(os.environ["DATABASE_URL_BOOTSTRAP"], autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(fresh)))
    return url_for(None, fresh)


@pytest.fixture
def bootstrapped(fresh: str) -> dict[str, str]:
    """Create the database ``fresh`` with its roles; return the URLs of every role."""
    urls = environment(fresh)
    succeed("bootstrap_roles", "--share-roles", "--database", fresh, **urls)
    return urls


@pytest.fixture
def owned(fresh: str) -> Iterator[Callable[[str], dict[str, str]]]:
    """Create a database owned by one ordinary user; return the environment of a process that uses it."""
    with owned_database(fresh) as environment_with:
        yield environment_with


@contextmanager
def owned_database(name: str) -> Iterator[Callable[[str], dict[str, str]]]:
    """Create a database and its owner of the same name; drop both."""
    identifier = sql.Identifier(name)
    with psycopg.connect(os.environ["DATABASE_URL_BOOTSTRAP"], autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(identifier, sql.Literal(PASSWORD)))
        connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(identifier, identifier))
        yield lambda settings: {"DJANGO_SETTINGS_MODULE": settings, "ONE_USER_URL": url_for(name, name)}
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(identifier))
        connection.execute(sql.SQL("DROP ROLE {}").format(identifier))


def environment(name: str) -> dict[str, str]:
    """Return the URLs of every role for one database."""
    return {variable: url_for(role, name) for variable, role in URLS.items()}


def rows(name: str, statement: str) -> list[tuple[object, ...]]:
    """Query as the superuser."""
    with psycopg.connect(url_for(None, name)) as connection:
        return connection.execute(statement.encode()).fetchall()
