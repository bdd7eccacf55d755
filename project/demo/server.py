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
_ADMINISTRATOR: Final = "administrator"
_ROLES: Final = ("migrator", "web", "worker", "operator")


@dataclass(frozen=True, slots=True)
class DemoDatabase:
    """One database and its URL for each role; ``shares_roles``: passwords are known, so others may use them.

    ``bootstrap_url`` logs in as a superuser, or as who owns the database and may create roles.
    """

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
        """Connect by ``bootstrap_url``, outside any transaction, with the time zone UTC."""
        return psycopg.connect(self.bootstrap_url, autocommit=True, options="-c timezone=UTC")

    def connect_operator(self) -> psycopg.Connection[Any]:
        """Connect as the operator, who sees all jobs and messages, outside any transaction."""
        return psycopg.connect(self.url("operator"), autocommit=True)

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
    # Of our own server, as those that managed services give.
    administrator_url: str | None = None

    @contextmanager
    def database(self) -> Iterator[DemoDatabase]:
        """Create an empty database. On our own server it replaces earlier ones and stays; otherwise it is dropped."""
        name = f"{_PREFIX}{secrets.token_hex(4)}"
        with self._connect() as connection:
            for old in self._names(connection) if self.ours else ():
                connection.execute(_drop(old))
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            self._hand_over(connection, name)
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
            for name in names:
                self._hand_over(connection, name)
        return self._database(names[0]) if names else None

    def _database(self, name: str) -> DemoDatabase:
        url = urlunsplit(urlsplit(self.administrator_url or self.superuser_url)._replace(path=f"/{name}"))
        given: dict[str, str] = settings.SALON_JOBS["ROLE_PASSWORDS"]
        passwords = {role: given.get(role) or secrets.token_urlsafe(24) for role in _ROLES}
        return DemoDatabase(url, passwords, shares_roles=not self.ours and all(map(given.get, _ROLES)))

    def _hand_over(self, connection: psycopg.Connection[Any], database: str) -> None:
        if self.administrator_url:
            owner = sql.SQL("ALTER DATABASE {} OWNER TO {}").format(*map(sql.Identifier, (database, _ADMINISTRATOR)))
            connection.execute(owner)

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
        yield DemoServer(server.url, ours=True, administrator_url=_administrator(server.url))


def _administrator(superuser_url: str) -> str:
    """Make a role that is no superuser, and may create roles and alter those that are there; return its URL."""
    name, password = sql.Identifier(_ADMINISTRATOR), secrets.token_urlsafe(24)
    roles = settings.SALON_JOBS["ROLES"]
    ours = [*(roles[key] for key in roles if key != "extra_owners"), *roles["extra_owners"]]
    with psycopg.connect(superuser_url, autocommit=True) as connection:
        query = "SELECT rolname FROM pg_roles WHERE rolname = ANY (%s)"
        there = [row[0] for row in connection.execute(query, [[_ADMINISTRATOR, *ours]]).fetchall()]
        if _ADMINISTRATOR not in there:
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN CREATEROLE CREATEDB").format(name))
        connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(name, sql.Literal(password)))
        for role in set(there) - {_ADMINISTRATOR}:
            grant = sql.SQL("GRANT {} TO {} WITH ADMIN TRUE, INHERIT FALSE, SET FALSE")
            connection.execute(grant.format(sql.Identifier(role), name))
    parts = urlsplit(superuser_url)
    return urlunsplit(parts._replace(netloc=f"{_ADMINISTRATOR}:{password}@{parts.netloc.rpartition('@')[2]}"))


@contextmanager
def all_rows(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Inside, in one transaction, see and load the rows of all stores.

    A role that is no superuser does that as a member of the tables' owner, on whom row-level security is not forced
    meanwhile. Nobody else sees that, and the tables are locked.
    """
    with connection.transaction():
        if connection.info.parameter_status("is_superuser") == "on":
            yield
            return
        migrator = sql.Identifier(settings.SALON_JOBS["ROLES"]["migrator"])
        connection.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(migrator))
        query = "SELECT relname FROM pg_class WHERE relforcerowsecurity AND NOT starts_with(relname, 'salon_jobs_')"
        tables = [sql.Identifier("public", row[0]) for row in connection.execute(query).fetchall()]
        for table in tables:
            connection.execute(sql.SQL("ALTER TABLE {} NO FORCE ROW LEVEL SECURITY").format(table))
        yield
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for table in tables:
            connection.execute(sql.SQL("ALTER TABLE {} FORCE ROW LEVEL SECURITY").format(table))
        connection.execute(sql.SQL("REVOKE {} FROM CURRENT_USER").format(migrator))


def _drop(name: str) -> sql.Composed:
    return sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
