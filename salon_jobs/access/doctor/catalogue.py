"""The system catalogue of one database, and the connections the doctor reads it through."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg
from django.db import connections
from psycopg import sql

from salon_jobs.access.bootstrap import connect
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError

PUBLIC: Final = "PUBLIC"
# What ALTER calls a row c of pg_class.
KIND_OF_RELATION: Final = (
    "CASE c.relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW'"
    " WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'TABLE' END"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A table as found in the catalogue."""

    oid: int
    schema: str
    name: str
    owner: str
    is_enabled: bool
    is_forced: bool

    @property
    def identifier(self) -> sql.Identifier:
        """Its name, with the schema."""
        return sql.Identifier(self.schema, self.name)

    @property
    def sql(self) -> str:
        """Its name, with the schema, as text."""
        return self.identifier.as_string()


class Catalogue:
    """Reader of the system catalogue over one connection, with whatever role it has."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        ((self.database, self.role, self.is_superuser, self.sees_all_rows),) = self.rows(
            "SELECT current_database(), current_user, rolsuper, rolsuper OR rolbypassrls FROM pg_roles"
            " WHERE rolname = current_user"
        )
        self.version = connection.info.server_version

    def rows(self, query: LiteralString, *parameters: Any, **named: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self.connection.execute(query, named or parameters or None).fetchall()

    @contextmanager
    def unchanged(self) -> Generator[None]:
        """Run a block in a transaction that is rolled back."""
        with self.connection.transaction(force_rollback=True):
            yield

    def relations(self, names: Iterable[str]) -> dict[str, Relation]:
        """Return the tables with these names in the search path, or else in the schema ``public``.

        A search path stored for the database would otherwise hide them from the doctor too.
        """
        found = self.rows(
            """
            SELECT t.name, c.oid::bigint, n.nspname, c.relname, c.relowner::regrole::name, c.relrowsecurity,
                   c.relforcerowsecurity
              FROM unnest(%s::text[]) AS t (name)
              JOIN pg_class c
                ON c.oid = coalesce(to_regclass(quote_ident(t.name)), to_regclass('public.' || quote_ident(t.name)))
              JOIN pg_namespace n ON n.oid = c.relnamespace
            """,
            list(names),
        )
        return {
            name: Relation(
                oid=oid, schema=schema, name=relname, owner=owner, is_enabled=is_enabled, is_forced=is_forced
            )
            for name, oid, schema, relname, owner, is_enabled, is_forced in found
        }

    def qualify(self) -> None:
        """Resolve names only in pg_catalog for the rest of the transaction, so that all others show their schema."""
        self.rows("SELECT set_config('search_path', 'pg_catalog', true)")


def by_alias(alias: str) -> psycopg.Connection[Any]:
    """Return the connection underneath Django's. Raises ConfigurationError for an alias that does not exist."""
    if alias not in connections:
        raise ConfigurationError(f"DATABASES has no alias {alias!r}")
    connections[alias].ensure_connection()
    raw: psycopg.Connection[Any] = connections[alias].connection
    return raw


def database_name() -> str | None:
    """Return the name of the jobs' database; None if the superuser's URL has to supply it."""
    return str(connections[conf.database].settings_dict["NAME"] or "") or None


@contextmanager
def as_superuser() -> Generator[psycopg.Connection[Any]]:
    """Connect to the jobs' database by BOOTSTRAP_URL, and close at the end. Raises ConfigurationError, NotReady."""
    if conf.bootstrap_url is None:
        raise ConfigurationError("SALON_JOBS['BOOTSTRAP_URL'] is not set: name a superuser's URL")
    with connect(conf.bootstrap_url, database_name()) as connection:
        yield connection
