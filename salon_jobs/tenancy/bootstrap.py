"""Creates the database roles, and the database if asked, over a superuser's connection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import psycopg
from psycopg import sql

from salon_jobs.conf import Roles
from salon_jobs.core.errors import ConfigurationError, NotReady
from salon_jobs.tenancy.bootstrap_sql import PRELUDE, RoleScript, build_scripts

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """Tells what is in place now."""

    database: str
    roles: tuple[str, ...]
    created_database: bool


def bootstrap(
    url: str,
    *,
    roles: Roles,
    passwords: Mapping[str, str],
    extra_owner_roles: Iterable[str] = (),
    database: str | None = None,
) -> Bootstrapped:
    """Create or mend the roles, their memberships, grants and default privileges; idempotent.

    ``url`` must log in as a superuser. Works on ``database``, which is created with the migrator as owner when it does
    not exist, else on the database of the URL. All of it is one transaction, save the creation of the database.
    ``passwords`` maps role keys (migrator, web, worker, operator) to passwords; they are hashed here and never sent.

    Raises ``ConfigurationError`` (a password is missing, the URL is malformed or not a superuser's) or ``NotReady``
    (the server can not be reached).
    """
    scripts = build_scripts(roles, extra_owner_roles)
    _require_passwords(scripts, passwords)
    created = False
    if database is not None:
        with connect(url) as connection:
            created = _ensure_database(connection, database, scripts[0])
    with connect(url, database) as connection:
        _require_superuser(connection)
        with connection.transaction():
            _execute(connection, *PRELUDE)
            for script in scripts:
                _apply(connection, script, passwords)
        return Bootstrapped(connection.info.dbname, tuple(script.name for script in scripts), created)


def _require_passwords(scripts: Iterable[RoleScript], passwords: Mapping[str, str]) -> None:
    missing = [
        f"{script.spec.variable} (SALON_JOBS['ROLE_PASSWORDS'][{script.spec.key!r}], role {script.name})"
        for script in scripts
        if script.spec.variable is not None and not passwords.get(script.spec.key)
    ]
    if missing:
        raise ConfigurationError(f"the password of a role is missing; set {', '.join(missing)}")


def connect(url: str, database: str | None = None) -> Connection:
    """Connect by ``BOOTSTRAP_URL``, in autocommit; ``database`` instead of the URL's. Raises as ``bootstrap``."""
    try:
        return psycopg.connect(url, autocommit=True, connect_timeout=10, dbname=database)
    except psycopg.ProgrammingError:  # its text repeats the URL with the password
        raise ConfigurationError("SALON_JOBS['BOOTSTRAP_URL'] is not a PostgreSQL URL") from None
    except psycopg.OperationalError as error:
        raise NotReady(f"the server of BOOTSTRAP_URL can not be used: {error}") from error


def _require_superuser(connection: Connection) -> None:
    row = connection.execute(
        "SELECT rolsuper, rolname FROM pg_catalog.pg_roles WHERE rolname = session_user"
    ).fetchone()
    if row is None or not row[0]:
        raise ConfigurationError(
            f"SALON_JOBS['BOOTSTRAP_URL'] logs in as {connection.info.user}, which is not a superuser; "
            "only a superuser can create a role that bypasses row-level security"
        )


def _ensure_database(connection: Connection, database: str, migrator: RoleScript) -> bool:
    """Create the database unless it exists; its owner must exist first. Return whether it was created."""
    _require_superuser(connection)
    if connection.execute("SELECT FROM pg_catalog.pg_database WHERE datname = %s", [database]).fetchone() is not None:
        return False
    with connection.transaction():
        _execute(connection, *PRELUDE, *migrator.cluster)
    statement = sql.SQL("CREATE DATABASE {} OWNER {} ENCODING 'UTF8' TEMPLATE template0")
    try:
        connection.execute(statement.format(sql.Identifier(database), sql.Identifier(migrator.name)))
    except psycopg.errors.DuplicateDatabase:  # another bootstrap was faster
        return False
    return True


def _apply(connection: Connection, script: RoleScript, passwords: Mapping[str, str]) -> None:
    _execute(connection, *script.cluster)
    if script.spec.variable is not None:
        password = passwords[script.spec.key].encode()
        verifier = connection.pgconn.encrypt_password(password, script.name.encode(), b"scram-sha-256").decode()
        statement = sql.SQL("ALTER ROLE {} PASSWORD {}")
        connection.execute(statement.format(sql.Identifier(script.name), sql.Literal(verifier)))
    _execute(connection, *script.database)


def _execute(connection: Connection, *statements: str) -> None:
    for statement in statements:
        connection.execute(statement.encode())
