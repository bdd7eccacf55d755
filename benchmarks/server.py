"""Gives a run its server, durable as in production, and fresh databases on it: one of ours, one for each peer."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import sql

from benchmarks import processor
from project import settings
from project.local.postgres import EmbeddedPostgres

_PREFIX: Final = "salon_bench_"
# Room for the millions of rows of some measures; durability stays as it is.
_OPTIONS: Final = {"shared_buffers": "1GB", "max_wal_size": "4GB"}
_SHOWN: Final = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_sync_method",
    "shared_buffers",
    "max_wal_size",
    "max_connections",
    "autovacuum",
)
_ROLES: Final = ("migrator", "web", "worker", "operator")


class ServerNotDurable(RuntimeError):
    """The server does not write what was committed to the disk, so its figures would mean nothing."""


@dataclass(frozen=True, slots=True)
class Database:
    """Names one database and the URLs by which each role reaches it."""

    superuser_url: str
    passwords: dict[str, str]

    @property
    def name(self) -> str:
        """Return the database's name."""
        return urlsplit(self.superuser_url).path.lstrip("/")

    def url(self, role: str) -> str:
        """Return the URL of ``migrator``, ``web``, ``worker`` or ``operator``."""
        parts = urlsplit(self.superuser_url)
        login = f"{settings.SALON_JOBS['ROLES'][role]}:{quote(self.passwords[role], safe='')}"
        return urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}"))

    def connect(self, *, application_name: str = "") -> psycopg.Connection[Any]:
        """Connect as the superuser, outside any transaction."""
        return psycopg.connect(self.superuser_url, autocommit=True, application_name=application_name)

    def execute(self, statement: str, *parameters: object) -> None:
        """Execute one statement as the superuser."""
        with self.connect() as connection:
            connection.execute(statement.encode(), parameters)

    def settle(self) -> None:
        """Leave nothing of the work done so far to whoever is measured next: statistics, dead rows, dirty pages."""
        with self.connect() as connection:
            connection.execute("VACUUM (ANALYZE)")
            connection.execute("CHECKPOINT")

    def server_pid(self) -> int | None:
        """Return the process of the server that starts its backends; None when it runs elsewhere."""
        with self.connect() as connection:
            return processor.parent(connection.info.backend_pid, name="postgres")


@dataclass(frozen=True, slots=True)
class Server:
    """Creates databases on one server, and drops them when their block ends."""

    superuser_url: str
    embedded: bool
    passwords: dict[str, str]

    @contextmanager
    def database(self, template: str = "template1") -> Iterator[Database]:
        """Create a database: an empty one, or a copy of one to which nobody is connected."""
        name = f"{_PREFIX}{secrets.token_hex(4)}"
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        with psycopg.connect(self.superuser_url, autocommit=True) as connection:
            connection.execute(create)
        try:
            yield Database(urlunsplit(urlsplit(self.superuser_url)._replace(path=f"/{name}")), self.passwords)
        finally:
            with psycopg.connect(self.superuser_url, autocommit=True) as connection:
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def facts(self) -> dict[str, str]:
        """Return the server's version and the settings that decide its speed."""
        with psycopg.connect(self.superuser_url) as connection:
            rows = connection.execute(
                "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY (%s)", [list(_SHOWN)]
            ).fetchall()
        return {**dict(rows), "server": "embedded" if self.embedded else "given by DATABASE_URL_BOOTSTRAP"}


def role_passwords() -> dict[str, str]:
    """Return a password for each role: the one that was given, which others know, else a new one."""
    known: dict[str, str] = settings.SALON_JOBS["ROLE_PASSWORDS"]
    return {role: known.get(role) or secrets.token_urlsafe(24) for role in _ROLES}


@contextmanager
def server(*, durable: bool = True) -> Iterator[Server]:
    """Use the server of ``DATABASE_URL_BOOTSTRAP``, else run an embedded one with fsync on.

    Raises ServerNotDurable for a given server without fsync or synchronous commits, unless ``durable`` is False.
    """
    passwords = role_passwords()
    if given := settings.SALON_JOBS["BOOTSTRAP_URL"]:
        found = Server(given, embedded=False, passwords=passwords)
        facts = found.facts()
        if durable and not all(facts[name] == "on" for name in ("fsync", "synchronous_commit", "full_page_writes")):
            raise ServerNotDurable("turn on fsync, synchronous_commit and full_page_writes, or name another server")
        yield found
        return
    with embedded_server(passwords) as own:
        yield own


@contextmanager
def embedded_server(passwords: dict[str, str], **options: str) -> Iterator[Server]:
    """Run a server of its own, with fsync on; ``options`` are more of its settings."""
    with EmbeddedPostgres(options={**_OPTIONS, **options}) as embedded:
        yield Server(embedded.url, embedded=True, passwords=passwords)
