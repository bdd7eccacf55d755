"""Startup checks of the role, the tables and the migrations."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

from django.core.management.base import CommandError
from django.db import Error, OperationalError, ProgrammingError, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.transaction import atomic
from psycopg import Error as PsycopgError
from psycopg.errors import UndefinedTable

from salon_jobs.access.declared_objects import identifier, trigger_schema
from salon_jobs.access.doctor.catalogue import SEARCH_PATH_REMEDY, Catalogue, by_alias
from salon_jobs.access.doctor.examination import examine_tables
from salon_jobs.access.doctor.session_settings import find_refused
from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.errors import (
    BootstrapMissing,
    CatalogueDrift,
    ConversionMissing,
    DangerousSetting,
    ForbiddenRole,
    NotReady,
    SchemaMissing,
)
from salon_jobs.core.events import log_event
from salon_jobs.core.units import with_noun
from salon_jobs.db.connections import POSTGRESQL_REMEDY, holds_job_tables, not_postgresql
from salon_jobs.db.read_only import ServerReadOnly

_ROLE = """
SELECT current_user, r.rolsuper, r.rolbypassrls,
       EXISTS (SELECT FROM pg_class c WHERE c.oid = to_regclass('salon_jobs_job') AND pg_has_role(c.relowner, 'MEMBER'))
  FROM pg_roles r WHERE r.rolname = current_user
"""


@contextmanager
def answering() -> Generator[None]:
    """Turn database errors into NotReady; a read-only server is named with its remedy."""
    try:
        yield
    except ServerReadOnly as error:
        raise NotReady(str(error)) from error
    except (Error, PsycopgError) as error:
        raise NotReady(f"the database does not answer: {str(error).strip()}") from error


def check_role(alias: str, expected: str = "") -> None:
    """Refuse roles that no runtime process may use. Raises ForbiddenRole; NotReady if the database does not answer.

    Forbidden are a superuser, BYPASSRLS, the owner of the job tables or a member of it, the migrator, and any role but
    ``expected`` if one is given.

    With one database user (no ROLES) nothing is refused: it may own the tables, whose policies bind the owner too. A
    superuser or BYPASSRLS is logged as a warning if there are stores, since no policy binds it.
    """
    with answering(), connections[alias].cursor() as cursor:
        cursor.execute(_ROLE)
        user, is_superuser, bypasses_rls, owns_tables = cursor.fetchone()
    faults = {
        "is a superuser": is_superuser,
        "bypasses row-level security": bypasses_rls,
        "owns the job tables": owns_tables,
        "is the migrator": user == conf.roles.migrator,
        f"is not {expected!r}": expected not in ("", user),
    }
    if not any(faults.values()):
        return
    text = f"database role {user!r} {' and '.join(fault for fault, holds in faults.items() if holds)}"
    if not conf.roles.one_user:
        raise ForbiddenRole(f"{text}; connect as {repr(expected) if expected else 'a runtime role'}")
    if conf.store_model is not None and (is_superuser or bypasses_rls):
        text += ": it sees the rows of all stores; with ROLES set, this process would refuse it"
        log_event(logging.WARNING, events.ROLE_NOTICED, detail=text)


def check_tables(alias: str) -> None:
    """Check that the database answers and the job tables exist. Raises NotReady, SchemaMissing."""
    with answering(), connections[alias].cursor() as cursor:
        cursor.execute("SELECT to_regclass('salon_jobs_job') IS NOT NULL")
        (present,) = cursor.fetchone()
        if not present:
            raise Catalogue(by_alias(alias), using=alias).missing_tables()


def check_schema(alias: str) -> None:
    """Check that the job tables exist and no migration is pending. Raises SchemaMissing, NotReady."""
    check_tables(alias)
    with answering():
        loader, pending = _migrations(alias)
    if pending:
        names = ", ".join([*pending[:3], *("…" for _ in pending[3:4])])
        remedy = "run: python manage.py migrate"
        if not loader.applied_migrations:
            remedy = (
                "the tables were made without migrations, as by TEST = {'MIGRATE': False}: have a test that starts a"
                " process migrate, or run its jobs by salon_jobs.testing"
            )
        raise SchemaMissing(f"{with_noun(len(pending), 'migration is', 'migrations are')} pending ({names}); {remedy}")


def pending_migrations(alias: str) -> list[str]:
    """Return the names of the migrations that are still to be applied, for which processes wait. Role: any.

    One query, unless some are. Raises database errors.
    """
    connection = connections[alias]
    applied = MigrationRecorder(connection).migration_qs.values_list("app", "name")
    try:
        with atomic(using=alias) if connection.in_atomic_block else nullcontext():
            if _on_disk().issubset(applied):
                return []
    except ProgrammingError as error:
        if not isinstance(error.__cause__, UndefinedTable):
            raise  # else the tables were made without migrations, as in a test
    return _migrations(alias)[1]


@cache
def _on_disk() -> frozenset[tuple[str, str]]:
    """Return the migrations that this process has: to import those of all apps takes a tenth of a second."""
    return frozenset(MigrationLoader(None).disk_migrations or ())


def _migrations(alias: str) -> tuple[MigrationLoader, list[str]]:
    executor = MigrationExecutor(connections[alias])
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return executor.loader, [f"{migration.app_label}.{migration.name}" for migration, _ in plan]


def check_settings(alias: str) -> None:
    """Refuse the settings with which jobs fail or guards do not fire, from any source.

    Reads the settings with which a session starts. Raises DangerousSetting; NotReady if the database does not answer.
    """
    with answering():
        found = find_refused(Catalogue(by_alias(alias), using=alias))
    if found:
        raise DangerousSetting(
            f"sessions start with {', '.join(found)}; remove it there; python manage.py salon_jobs doctor says where"
        )


def check_drift(alias: str) -> None:
    """Compare row-level security and policies with the declared ones, and act as ON_DRIFT says.

    Takes milliseconds; ``salon_jobs doctor`` compares the rest. Raises CatalogueDrift, NotReady.
    """
    if conf.on_drift == "ignore":
        return
    with answering():
        drifts = examine_tables(by_alias(alias), using=alias).drifts
    if not drifts:
        return
    text = f"{'; '.join(map(str, drifts[:3]))}{' …' if drifts[3:] else ''}; run: python manage.py salon_jobs doctor"
    if conf.on_drift == "refuse":
        raise CatalogueDrift(text)
    log_event(logging.WARNING, events.CATALOGUE_DRIFT, drifts=len(drifts), detail=text)


# All users see the roles of clients here; the server's own processes have none. reserved_connections came with
# PostgreSQL 16.
_LEFT = """
  WITH used AS (
       SELECT count(*) AS of_server, count(*) FILTER (WHERE datname = current_database()) AS of_database,
              count(*) FILTER (WHERE usename = session_user) AS of_role
         FROM pg_stat_activity WHERE usesysid IS NOT NULL AND pid <> pg_backend_pid()),
       server AS (
       SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
              - COALESCE(current_setting('reserved_connections', true)::int, 0) AS total)
SELECT server.total, LEAST(server.total - used.of_server, NULLIF(r.rolconnlimit, -1) - used.of_role,
                           NULLIF(d.datconnlimit, -1) - used.of_database)
  FROM used, server, pg_roles r, pg_database d
 WHERE r.rolname = session_user AND d.datname = current_database()
"""


def connections_left(alias: str) -> tuple[int, int]:
    """Return how many connections the server has in total, and how many more server, database and role allow us now.

    Raises NotReady if the database does not answer.
    """
    with answering(), connections[alias].cursor() as cursor:
        cursor.execute(_LEFT)
        total, left = cursor.fetchone()
    return total, left


def check_worker(alias: str) -> None:
    """Check role, settings, schema and drift for a process that runs as the worker. Raises their errors."""
    check_role(alias, conf.roles.worker)
    check_settings(alias)
    check_schema(alias)
    check_drift(alias)


_OLDEST_POSTGRESQL = 150000
_BOOTSTRAP = (
    "before migrate, run python manage.py bootstrap_roles (or bootstrap_sql/roles.sql with psql) as a superuser"
)


def require_login(alias: str) -> None:
    """Refuse to migrate as a role that cannot log in (BootstrapMissing).

    Also refuses another database, an old server, a search path without a schema, one user that may not create our
    functions (CommandError), and a role that may not change the job tables (ConversionMissing), as when ``ROLES`` was
    changed without a conversion. Django reports other connection errors.
    """
    if (fault := not_postgresql(alias)) is not None:
        raise CommandError(f"{fault}: {POSTGRESQL_REMEDY}")
    connection: Any = connections[alias]
    try:
        if connection.pg_version < _OLDEST_POSTGRESQL:
            raise CommandError("salon_jobs needs PostgreSQL 15 or newer: unique job keys use NULLS NOT DISTINCT")
    except OperationalError as error:
        reason = str(error).strip().splitlines()[-1]
        # A login refused in the handshake carries no SQLSTATE here, only the server's message.
        if not conf.roles.one_user and ("authentication failed" in reason or "does not exist" in reason):
            raise BootstrapMissing(
                f"cannot log in as {connection.settings_dict['USER']!r}: {reason}; "
                f"{_BOOTSTRAP}, with the passwords of your URLs"
            ) from error
        return
    with connection.cursor() as cursor:
        cursor.execute(
            # Look it up by name: without rights on the schema, to_regclass finds nothing.
            "SELECT min(relowner::regrole::text) FROM pg_class WHERE relname = 'salon_jobs_job' AND relkind = 'r'"
            " HAVING NOT bool_or(pg_has_role(relowner, 'MEMBER'))"
        )
        found = cursor.fetchone()
        cursor.execute(
            "SELECT setting, source FROM pg_settings"
            " WHERE name = 'search_path' AND source <> 'default' AND current_schema() IS NULL"
        )
        path = cursor.fetchone()
        barred = _barred_schemas(cursor)
    if found is not None:
        raise ConversionMissing(
            f"the job tables belong to {found[0]!r}, not to {connection.settings_dict['USER']!r}: connect as the "
            "owner, or, when ROLES was changed in the settings, run python manage.py salon_jobs convert"
        )
    if path is not None:
        raise CommandError(
            f"search_path = {path[0]} (source: {path[1]}) leads to no schema that exists and that"
            f" {connection.settings_dict['USER']!r} may use; {SEARCH_PATH_REMEDY}"
        )
    user = connection.settings_dict["USER"]
    for schema, own in barred.items():
        if schema == trigger_schema():
            raise CommandError(
                f"triggers share a function in the schema {schema!r}, where {user!r} may create nothing: set "
                f"PGTRIGGER_SCHEMA = {own!r} in Django's settings, or another schema of that user"
            )
        raise CommandError(
            f"the function that lists the stores is in the schema {schema!r}, where {user!r} may create nothing: "
            f"GRANT USAGE, CREATE ON SCHEMA {identifier(schema)} TO {identifier(user)}"
        )


def _barred_schemas(cursor: Any) -> dict[str, str]:
    """Return the schemas in which the first migrate creates functions and one user may not, with its own schema."""
    stores = conf.fan_out_function.partition(".")[0] if conf.store_model else None
    needed = [schema for schema in (trigger_schema(), stores) if schema is not None]
    if not conf.roles.one_user or not needed:
        return {}
    cursor.execute(
        "SELECT name, current_schema() FROM unnest(%s::text[]) AS name WHERE to_regclass('salon_jobs_job') IS NULL"
        " AND NOT coalesce(has_schema_privilege(to_regnamespace(quote_ident(name)), 'CREATE'), false)",
        [needed],
    )
    return dict(cursor.fetchall())


def require_roles(*, using: str, **_: Any) -> None:
    """Refuse to migrate before the roles exist. Receiver of ``pre_migrate``; raises BootstrapMissing."""
    if not holds_job_tables(using):
        return
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT rolname FROM pg_roles WHERE rolname = ANY (%s)", [[*conf.roles.names]])
        present = {row[0] for row in cursor.fetchall()}
    if missing := [name for name in conf.roles.names if name not in present]:
        raise BootstrapMissing(f"database roles are missing: {', '.join(missing)}; {_BOOTSTRAP}")
