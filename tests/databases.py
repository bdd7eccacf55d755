"""Databases for one test, in addition to the one that all tests share."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import connections
from psycopg import sql

from project.local.postgres import EmbeddedPostgres
from tests.interpreter import succeed
from tests.settings import PASSWORD, TEMPLATE, url_for
from tests.support import seen

URLS = {
    "DATABASE_URL_MIGRATOR": "migrator",
    "DATABASE_URL": "app",
    "WORKER_DATABASE_URL": "worker_runtime",
    "OPERATOR_DATABASE_URL": "jobs_operator",
}
_PREPARED = 2  # at once, in one test


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


@pytest.fixture
def preparing(database: None) -> Iterator[str]:
    """Have all aliases lead to a server that can prepare transactions, if theirs cannot; the URL of its superuser."""
    [(most,)] = seen("SHOW max_prepared_transactions")
    if int(most) >= _PREPARED:
        yield url_for(None)
        return
    settings = connections.settings
    with EmbeddedPostgres(fsync=False, options={"max_prepared_transactions": f"{_PREPARED}"}) as server:
        urls = {name: url_for(role, "prepared", server=server.url) for name, role in URLS.items()}
        urls["DATABASE_URL_BOOTSTRAP"] = server.url
        succeed("bootstrap_roles", "--share-roles", "--database", "prepared", **urls)
        succeed("migrate", "--verbosity", "0", **urls)
        superuser = urlsplit(url_for(None, "prepared", server=server.url))
        there: dict[str, Any] = {"HOST": superuser.hostname, "PORT": superuser.port, "NAME": "prepared", "OPTIONS": {}}
        login = {"USER": superuser.username, "PASSWORD": superuser.password}
        before = {alias: {**settings[alias]} for alias in settings}
        connections.close_all()
        for alias in settings:
            settings[alias] |= {**there, **(login if alias == "owner" else {})}
        try:
            yield superuser.geturl()
        finally:
            connections.close_all()
            for alias, own in before.items():
                settings[alias] |= own


def environment(name: str) -> dict[str, str]:
    """Return the URLs of every role for one database."""
    return {variable: url_for(role, name) for variable, role in URLS.items()}


def rows(name: str, statement: str) -> list[tuple[object, ...]]:
    """Query as the superuser."""
    with psycopg.connect(url_for(None, name)) as connection:
        return connection.execute(statement.encode()).fetchall()


def programs() -> Path:
    """Return the folder of the programs of the tests' server."""
    [(folder,)] = rows("postgres", "SELECT setting FROM pg_config WHERE name = 'BINDIR'")
    return Path(str(folder))
