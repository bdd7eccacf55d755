"""Builds the bootstrap SQL, one idempotent script per role, and renders it for psql.

``tenancy.bootstrap`` executes the same statements over a connection; ``bootstrap_sql/`` holds the rendered text for the
default names, and a parity test compares the two. Every script re-asserts attributes, memberships and grants, so a
second run changes nothing and mends what somebody altered by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from salon_jobs.conf import Roles
from salon_jobs.tenancy.roles import SCHEMA, RoleSpec, identifier, literal, named_roles

PRELUDE: Final = (
    # Names resolve in pg_catalog alone: before the first bootstrap everybody may create objects in public.
    "SET LOCAL search_path = pg_catalog",
    # "Already exists" is what a second run expects.
    "SET LOCAL client_min_messages = warning",
    # Passwords stay out of the server's log, also when a statement fails.
    "SET LOCAL log_statement = 'none'",
    "SET LOCAL log_min_duration_statement = -1",
    "SET LOCAL log_min_error_statement = panic",
    # Two bootstraps at once, in whichever databases of the cluster, wait for each other.
    "LOCK TABLE pg_catalog.pg_authid IN SHARE ROW EXCLUSIVE MODE",
)


@dataclass(frozen=True, slots=True)
class RoleScript:
    """Holds the statements of one role: first those of the cluster, then those of the connected database."""

    spec: RoleSpec
    name: str
    cluster: tuple[str, ...]
    database: tuple[str, ...]


def build_scripts(roles: Roles, extra_owner_roles: Iterable[str] = ()) -> tuple[RoleScript, ...]:
    """Build the scripts in the order in which they must run.

    Raises ``ConfigurationError`` when an extra owner role has the name of another role.
    """
    named = named_roles(roles, extra_owner_roles)
    guarded = [name for spec, name in named if spec.owns_functions or spec.owns_schema]
    return tuple(
        RoleScript(
            spec,
            name,
            tuple(_cluster_statements(spec, name, migrator=roles.migrator, guarded=guarded)),
            tuple(_database_statements(spec, name, migrator=roles.migrator)),
        )
        for spec, name in named
    )


def _cluster_statements(spec: RoleSpec, name: str, *, migrator: str, guarded: Iterable[str]) -> Iterable[str]:
    role = identifier(name)
    yield _block(
        f"IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {literal(name)}) THEN",
        f"    CREATE ROLE {role};",
        "END IF;",
    )
    if spec.owns_functions:
        yield f"{alter_role(spec, name)} PASSWORD NULL"
        yield _block(
            "IF pg_catalog.current_setting('server_version_num')::integer >= 160000 THEN",
            f"    EXECUTE {literal(grant_owner(name, migrator, version=160000))};",
            "ELSE",
            f"    {grant_owner(name, migrator, version=150000)};",
            "END IF;",
        )
        return
    yield alter_role(spec, name)
    for setting in spec.settings:
        yield f"ALTER ROLE {role} SET {setting}"
    if not spec.owns_schema:
        yield _revoke_memberships(name, guarded)


def alter_role(spec: RoleSpec, name: str) -> str:
    """Return what gives a role its attributes."""
    words = (word if on else f"NO{word}" for word, on in spec.attributes.items())
    return f"ALTER ROLE {identifier(name)} {' '.join(words)}"


def grant_owner(owner: str, migrator: str, *, version: int) -> str:
    """Return what lets the migrator become an owner of functions, but never act with its rights unasked.

    Before PostgreSQL 16 there is no option for that; the migrator's own NOINHERIT does it.
    """
    options = " WITH ADMIN FALSE, SET TRUE, INHERIT FALSE" if version >= 160000 else ""
    return f"GRANT {identifier(owner)} TO {identifier(migrator)}{options}"


def _revoke_memberships(name: str, guarded: Iterable[str]) -> str:
    """Take a runtime role out of the migrator and the owners, whoever put it there."""
    return _block(
        "FOR membership IN",
        "    SELECT granted.rolname AS granted, grantor.rolname AS grantor",
        "    FROM pg_catalog.pg_auth_members AS m",
        "    JOIN pg_catalog.pg_roles AS granted ON granted.oid = m.roleid",
        "    JOIN pg_catalog.pg_roles AS member ON member.oid = m.member",
        "    JOIN pg_catalog.pg_roles AS grantor ON grantor.oid = m.grantor",
        f"    WHERE member.rolname = {literal(name)}",
        f"      AND granted.rolname IN ({', '.join(literal(each) for each in guarded)})",
        "LOOP",
        "    EXECUTE pg_catalog.format('REVOKE %I FROM %I GRANTED BY %I CASCADE',",
        f"        membership.granted, {literal(name)}, membership.grantor);",
        "END LOOP;",
        declare="membership record;",
    )


def _database_statements(spec: RoleSpec, name: str, *, migrator: str) -> Iterable[str]:
    role = identifier(name)
    defaults = [each.statement() for each in spec.default_privileges(name, migrator)]
    if spec.owns_schema:
        yield f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"
        yield f"ALTER SCHEMA {SCHEMA} OWNER TO {role}"
        yield f"REVOKE ALL ON SCHEMA {SCHEMA} FROM PUBLIC"
        yield _on_database("REVOKE ALL ON DATABASE %I FROM PUBLIC")
        yield from defaults
    elif not spec.owns_functions:
        yield _on_database(f"REVOKE ALL ON DATABASE %I FROM {role}")
    for privilege in spec.database_privileges:
        yield _on_database(f"GRANT {privilege} ON DATABASE %I TO {role}")
    if spec.owns_schema:
        return
    if not spec.owns_functions:
        yield f"REVOKE ALL ON SCHEMA {SCHEMA} FROM {role}"
    yield f"GRANT USAGE ON SCHEMA {SCHEMA} TO {role}"
    yield from defaults


def _on_database(statement: str) -> str:
    template = literal(statement.replace("%I", "%1$I"))
    return _block(f"EXECUTE pg_catalog.format({template}, pg_catalog.current_database());")


def _block(*lines: str, declare: str | None = None) -> str:
    head = [f"DECLARE\n    {declare}"] if declare else []
    body = [f"    {line}" for line in lines]
    return "\n".join(["DO $bootstrap$", *head, "BEGIN", *body, "END", "$bootstrap$"])


def render_psql(script: RoleScript) -> str:
    """Render one script as a file for psql, to be run by a superuser connected to the application's database."""
    spec = script.spec
    parts = [_header(script), "\\set ON_ERROR_STOP on", "BEGIN;", *(f"{line};" for line in PRELUDE)]
    if spec.variable is not None:
        parts.append(_psql_password(spec.variable))
    parts += ["", "-- The cluster", *(f"{line};" for line in script.cluster)]
    if spec.variable is not None:
        parts.append(f"ALTER ROLE {identifier(script.name)} PASSWORD :'{_psql_name(spec.variable)}';")
    parts += ["", "-- The database", *(f"{line};" for line in script.database), "COMMIT;"]
    return "\n".join(parts) + "\n"


def _header(script: RoleScript) -> str:
    variable = script.spec.variable
    lines = [
        f"Role {script.name}: {script.spec.purpose}.",
        "Idempotent. Run it as superuser, connected to the application's database, before `migrate`:",
        f"    {f'{variable}=… ' if variable else ''}psql -d DATABASE -f THIS_FILE",
    ]
    if variable is not None:
        lines.append(f"psql before version 15 reads no environment: give -v {_psql_name(variable)}=… instead.")
    lines.append("`manage.py bootstrap_roles` runs the same statements, and `--print` prints them for other names.")
    return "\n".join(f"-- {line}" for line in lines)


def _psql_password(variable: str) -> str:
    name = _psql_name(variable)
    refusal = f"{variable} is not set: give the password of the role in the environment or by -v {name}=…"
    return "\n".join(
        [
            f"\\if :{{?{name}}}",
            "\\else",
            f"    \\set {name} ''",
            f"    \\getenv {name} {variable}",
            "\\endif",
            f"SELECT :'{name}' = '' AS password_is_missing \\gset",
            "\\if :password_is_missing",
            f"    DO $bootstrap$ BEGIN RAISE EXCEPTION {literal(refusal)}; END $bootstrap$;",
            "\\endif",
        ]
    )


def _psql_name(variable: str) -> str:
    return re.sub(r"\W", "_", variable.lower())
