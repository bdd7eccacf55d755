"""Database server for the demo, with fresh databases."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import sql

from project import settings
from project.local.postgres import EmbeddedPostgres
from project.local.postgres_install import server_account

HOME: Final = settings.BASE_DIR / ".demo"
_PREFIX: Final = "salon_demo_"
_FINISHED: Final = "the data of the salon_jobs demo is complete here"
_ROLES: Final = ("migrator", "web", "worker", "operator")


@dataclass(frozen=True, slots=True)
class DemoDatabase:
    """One database and its URL for each role; ``shares_roles``: passwords are known, so others may use them."""

    bootstrap_url: str
    passwords: dict[str, str]
    shares_roles: bool

    @property
    def name(self) -> str:
        return urlsplit(self.bootstrap_url).path.lstrip("/")

    def url(self, role: str) -> str:
        """Return the URL of ``migrator``, ``web``, ``worker`` or ``operator``."""
        parts = urlsplit(self.bootstrap_url)
        user, password = settings.SALON_JOBS["ROLES"][role], quote(self.passwords[role], safe="")
        return urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.netloc.rpartition('@')[2]}"))

    def connect(self) -> psycopg.Connection[Any]:
        """Connect as the superuser, outside any transaction, with the time zone UTC."""
        return psycopg.connect(self.bootstrap_url, autocommit=True, options="-c timezone=UTC")

    def mark_finished(self) -> None:
        """Record that the data is complete here, so that ``--serve`` can use it."""
        remark = sql.SQL("COMMENT ON DATABASE {} IS {}").format(sql.Identifier(self.name), sql.Literal(_FINISHED))
        with self.connect() as connection:
            connection.execute(remark)


@dataclass(frozen=True, slots=True)
class DemoServer:
    """Demo databases on one server.

    Roles belong to the server. If the environment gives all passwords, other databases may use the roles as well. If
    not, the passwords are changed, which is refused when other databases use the roles.
    """

    superuser_url: str
    ours: bool

    @contextmanager
    def database(self) -> Iterator[DemoDatabase]:
        """Create an empty database. On our own server it replaces earlier ones and stays; otherwise it is dropped."""
        name = f"{_PREFIX}{secrets.token_hex(4)}"
        with self._connect() as connection:
            for old in self._names(connection) if self.ours else ():
                connection.execute(_drop(old))
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield self._database(name)
        finally:
            if not self.ours:
                with self._connect() as connection:
                    connection.execute(_drop(name))

    def finished_database(self) -> DemoDatabase | None:
        """Return the database that a finished run left on our own server, or None."""
        if not self.ours:
            return None
        with self._connect() as connection:
            names = self._names(connection, remark=_FINISHED)
        return self._database(names[0]) if names else None

    def _database(self, name: str) -> DemoDatabase:
        url = urlunsplit(urlsplit(self.superuser_url)._replace(path=f"/{name}"))
        given: dict[str, str] = settings.SALON_JOBS["ROLE_PASSWORDS"]
        passwords = {role: given.get(role) or secrets.token_urlsafe(24) for role in _ROLES}
        return DemoDatabase(url, passwords, shares_roles=not self.ours and all(map(given.get, _ROLES)))

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.superuser_url, autocommit=True)

    def _names(self, connection: psycopg.Connection[Any], *, remark: str | None = None) -> list[str]:
        query = """
            SELECT datname FROM pg_database
            WHERE starts_with(datname, %(prefix)s)
              AND (%(remark)s::text IS NULL OR shobj_description(oid, 'pg_database') = %(remark)s)
            ORDER BY oid DESC
        """
        return [row[0] for row in connection.execute(query, {"prefix": _PREFIX, "remark": remark}).fetchall()]


@contextmanager
def demo_server() -> Iterator[DemoServer]:
    """Use the server of ``DATABASE_URL_BOOTSTRAP``, or run an embedded one, with its data in ``.demo`` if possible.

    It is not if the account that runs PostgreSQL for root has no access to it; then everything is temporary.
    """
    if given := settings.SALON_JOBS["BOOTSTRAP_URL"]:
        yield DemoServer(given, ours=False)
        return
    home = HOME if server_account().reaches(settings.BASE_DIR) else None
    with EmbeddedPostgres(home=home) as server:
        if home is not None:
            (home / ".gitignore").write_text("*\n")
        yield DemoServer(server.url, ours=True)


def _drop(name: str) -> sql.Composed:
    return sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
