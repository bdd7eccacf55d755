"""System catalogue of one database, and its differences from the declaration."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import psycopg
from django.db import connections
from django.db.migrations.loader import MigrationLoader

from salon_jobs.access.bootstrap import connect
from salon_jobs.access.declared_objects import Right, grantee, grants, identifier, on_columns, privileges
from salon_jobs.access.policies import BOUND_OWNERS
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError, SchemaMissing
from salon_jobs.db import statements

SEARCH_PATH_REMEDY: Final = (
    "correct it where it is set, such as ALTER DATABASE … SET search_path = a, public, which names each schema by"
    " itself: in quotes, the list would be the name of one schema"
)


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference: the place, the declared and the found value, and the statements that fix it.

    ``fix`` runs in order, as a superuser or as a role that administers the roles. ``needs_decision``: a person must
    decide whether ``fix`` is right or the declaration is wrong, so it never runs by itself; ``hint`` says what else to
    do.
    """

    kind: str
    where: str
    expected: str
    found: str
    fix: tuple[str, ...] = ()
    needs_decision: bool = False
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: expected {self.expected}, found {self.found}"


class CatalogueObject(NamedTuple):
    """A database, schema, parameter, relation, routine, type or statistics: its owner, and everyone else's rights.

    ``kind`` and ``name`` are as ALTER writes them. ``runs_as_owner``: a view without security_invoker or a SECURITY
    DEFINER routine. ``serves`` is the table of a sequence's column, which ``is_serial`` or an identity.
    """

    kind: str
    oid: int
    schema: str
    name: str
    owner: str
    owner_bypasses: bool
    runs_as_owner: bool
    has_policies: bool
    is_of_extension: bool
    is_serial: bool
    serves: int
    rights: frozenset[Right]

    @property
    def on(self) -> str:
        """The object as GRANT … ON names it."""
        return f"{'TABLE' if self.kind in _LIKE_TABLES else self.kind} {self.name}"

    @property
    def where(self) -> str:
        return f"{self.kind.lower()} {self.name}"

    @property
    def is_relation(self) -> bool:
        return self.kind in _LIKE_TABLES or self.kind in ("TABLE", "SEQUENCE")

    @property
    def is_routine(self) -> bool:
        return self.kind in ("FUNCTION", "PROCEDURE", "AGGREGATE")

    def compare_owner(self, owner: str) -> Iterable[Drift]:
        if self.owner != owner:
            fix = f"ALTER {self.kind} {self.name} OWNER TO {identifier(owner)}"
            yield Drift("owner", self.where, owner, self.owner, (fix,))

    def compare_rights(self, expected: Iterable[Right], found: Iterable[Right], *, hint: str = "") -> Iterable[Drift]:
        """Yield the drifts of rights, one per role. ``found`` are the rights that the declaration covers."""
        declared, present = set(expected), set(found)
        for name in sorted({right.grantee for right in declared ^ present}):
            theirs_declared = {right for right in declared if right.grantee == name}
            theirs_present = {right for right in present if right.grantee == name}
            extra = theirs_present - theirs_declared
            # Revoking a privilege on the whole object also revokes it on its columns.
            revoked = {right.privilege for right in extra if not right.column}
            missing = {right for right in theirs_declared if right not in theirs_present or right.privilege in revoked}
            fix = grants(self.on, missing)
            if extra:
                cascade = " CASCADE" if any(right.may_grant for right in extra) else ""
                fix.insert(0, f"REVOKE {privileges(extra)} ON {self.on} FROM {grantee(name)}{cascade}")
            texts = _text(theirs_declared), _text(theirs_present)
            yield Drift("grant", f"{self.where}, role {name}", *texts, tuple(fix), hint=hint)


def _text(rights: Iterable[Right]) -> str:
    whole = [
        f"{right.privilege}{' WITH GRANT OPTION' if right.may_grant else ''}"
        for right in sorted(rights)
        if not right.column
    ]
    return ", ".join([*whole, *on_columns(rights)]) or "nothing"


_LIKE_TABLES: Final = ("VIEW", "MATERIALIZED VIEW", "FOREIGN TABLE")


class Relation(NamedTuple):
    """A table and its row-level security."""

    oid: int
    schema: str
    name: str
    is_enabled: bool
    is_forced: bool

    @property
    def sql(self) -> str:
        return identifier(self.schema, self.name)

    @property
    def where(self) -> str:
        return f"table {self.sql}"


class Catalogue:
    """Reader of the system catalogue of an alias's database, over one connection with any role."""

    def __init__(self, connection: psycopg.Connection[Any], *, using: str) -> None:
        self.connection, self.using = connection, using
        # Owners of functions that have policies, since they cannot bypass row-level security.
        self.bound_owners: list[str]
        ((self.database, self.role, self.sees_all_rows, self.bound_owners),) = connection.execute(
            f"SELECT current_database(), current_user, rolsuper OR rolbypassrls, {BOUND_OWNERS} FROM pg_roles"
            " WHERE rolname = current_user",
            [[*conf.roles.owners]],
        ).fetchall()
        self.version = connection.info.server_version

    def rows(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows of ``doctor_<statement>`` in ``db/sql/doctor.sql``."""
        return self.connection.execute(statements.load(f"doctor_{statement}").encode(), parameters).fetchall()

    @contextmanager
    def unchanged(self) -> Generator[None]:
        """Run a block in a transaction that is rolled back."""
        with self.connection.transaction(force_rollback=True):
            yield

    def relations(self, names: Iterable[str]) -> dict[str, Relation]:
        """Return the tables with these names in the search path, or else in the schema ``public``."""
        return {row[2]: Relation(*row) for row in self.rows("relations", names=list(names))}

    @cached_property
    def objects(self) -> list[CatalogueObject]:
        """Everything with an owner and rights, except the server's own relations and routines."""
        return [
            CatalogueObject._make(
                (
                    *values,
                    frozenset(
                        Right(name, what, column, is_grantable == "true") for name, what, column, is_grantable in rights
                    ),
                )
            )
            for *values, rights in self.rows("objects")
        ]

    def qualify(self) -> None:
        """Set the search path to pg_catalog for the rest of the transaction, so that other names show their schema.

        Values are shown as Django writes them, with instants in UTC and names quoted only where necessary.
        """
        self.connection.execute(
            "SELECT set_config('search_path', 'pg_catalog', true), set_config('TimeZone', 'UTC', true),"
            " set_config('DateStyle', 'ISO', true), set_config('IntervalStyle', 'postgres', true),"
            " set_config('bytea_output', 'hex', true), set_config('quote_all_identifiers', 'off', true)"
        )

    def missing_tables(self) -> SchemaMissing:
        """Return the error for job tables that are not found: either migrate, or correct the search path."""
        ((path, source, schemas, has_history, may_read_history),) = self.rows("hidden_tables")
        if schemas is None:
            text, remedy = "the job tables are missing", "python manage.py migrate"
            if may_read_history and (commands := _after_fake({*self.rows("history")})):
                text += ", but django_migrations has their migrations as applied"
                remedy = ", ".join(f"python manage.py {command}" for command in commands)
            elif has_history and not may_read_history:
                remedy += "; if it has nothing to do, python manage.py salon_jobs doctor --superuser says why"
            return SchemaMissing(f"{text}; run: {remedy}")
        return SchemaMissing(
            f"the job tables are in the schema {schemas}, where search_path = {path} (source: {source}) does not lead;"
            f" {SEARCH_PATH_REMEDY}"
        )


def _after_fake(recorded: set[tuple[Any, ...]]) -> list[str]:
    """Return the commands that create the job tables if their migrations were faked; otherwise none.

    ``zero`` also forgets migrations that depend on ours and were applied: they are recorded again.
    """
    graph = MigrationLoader(None, ignore_no_migrations=True).graph
    dependent = [key for first in graph.root_nodes("salon_jobs") for key in graph.backwards_plan(first)]
    applied = [key for key in dependent if key in recorded]
    if all(app != "salon_jobs" for app, _ in applied):
        return []
    last: dict[str, str] = {}
    for app, name in applied:  # the last comes first
        last.setdefault(app, name)
    again = [f"migrate {app} {name} --fake" for app, name in reversed(last.items()) if app != "salon_jobs"]
    return ["migrate salon_jobs zero --fake", "migrate salon_jobs", *again, "migrate"]


def by_alias(alias: str) -> psycopg.Connection[Any]:
    """Return psycopg's connection of an alias. Raises ConfigurationError for an alias that does not exist."""
    if alias not in connections:
        raise ConfigurationError(f"DATABASES has no alias {alias!r}")
    connections[alias].ensure_connection()
    raw: psycopg.Connection[Any] = connections[alias].connection
    return raw


def database_name(using: str) -> str | None:
    """Return the name of an alias's database; None if the superuser's URL has to supply it."""
    return str(connections[using].settings_dict["NAME"] or "") or None


@contextmanager
def as_superuser(*, using: str) -> Generator[psycopg.Connection[Any]]:
    """Connect to an alias's database by BOOTSTRAP_URL, and close at the end. Raises ConfigurationError, NotReady."""
    if conf.bootstrap_url is None:
        raise ConfigurationError("SALON_JOBS['BOOTSTRAP_URL'] is not set: name the URL of who creates the roles")
    with connect(conf.bootstrap_url, database_name(using)) as connection:
        yield connection
