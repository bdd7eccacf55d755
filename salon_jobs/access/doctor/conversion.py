"""Conversion of a database from one database user to roles and back, with its rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psycopg

from salon_jobs.access.bootstrap import as_member
from salon_jobs.access.declared_objects import PUBLIC, grantee, identifier, identifiers
from salon_jobs.access.doctor.catalogue import Catalogue
from salon_jobs.access.doctor.declaration import declare
from salon_jobs.access.doctor.examination import fix, run
from salon_jobs.access.doctor.roles import KINDS, OF_PUBLIC
from salon_jobs.access.roles import SCHEMA, alter_defaults
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.db.connections import LOCK_TIMEOUT


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """Plan of a conversion: the roles that lose all rights, and the role that owns the database afterwards."""

    database: str
    former: tuple[str, ...]
    owner: str
    to_roles: bool


def plan_conversion(connection: psycopg.Connection[Any], *, using: str) -> Conversion | None:
    """Compare the database's owner with the one in the settings; return None if they are the same.

    Raises SchemaMissing before the first migrate, ConfigurationError if the one database user does not exist.
    """
    catalogue = Catalogue(connection, using=using)
    declared = declare(catalogue)
    # The roles other than the declared owner that own the job tables or, with one user, have privileges there.
    with catalogue.unchanged(), as_member(connection, ()):
        rows = catalogue.rows(
            "former_roles", of_roles=declared.roles.one_user, fan_out=conf.fan_out_function, owner=declared.owner
        )
    former = tuple(sorted({name for (name,) in rows} - {declared.owner}))
    if not former:
        return None
    if declared.roles.one_user and not catalogue.rows("roles", names=[declared.owner]):
        raise ConfigurationError(
            f"DATABASES[{using!r}]['USER'] names the one database user, and there is no role {declared.owner!r}"
        )
    return Conversion(
        database=catalogue.database, former=former, owner=declared.owner, to_roles=not declared.roles.one_user
    )


def convert(connection: psycopg.Connection[Any], plan: Conversion, *, using: str) -> tuple[str, ...]:
    """Convert in one transaction, as a superuser or as a role that administers the roles of both sides.

    Return the policies that still name a former role.

    The roles must exist. Raises FixIncomplete, with nothing changed, if a statement is refused or the result is not as
    declared.
    """
    with connection.transaction():
        catalogue = Catalogue(connection, using=using)
        connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        declared = declare(catalogue)
        jobs = declared.relations["salon_jobs_job"]
        schemas = sorted({SCHEMA, conf.fan_out_function.split(".")[0], jobs.schema})
        statements = [*_hand_over(catalogue, plan, schemas)]
        if plan.to_roles:  # existing objects get the default privileges; ``fix`` then takes some of them back
            for each in declared.default_privileges:
                if each.grantee is not None:
                    on = f"ALL {each.kind} IN SCHEMA {SCHEMA}"
                    statements.append(f"GRANT {', '.join(each.privileges)} ON {on} TO {identifier(each.grantee)}")
        else:
            statements += _revoke_all(catalogue, plan, schemas)
        with as_member(connection, (*plan.former, plan.owner, *declared.guarded)):
            for statement in statements:
                run(connection, statement)
        fix(connection, using=using, with_orphans=False)
        return tuple(text for (text,) in catalogue.rows("policies_of", roles=list(plan.former)))


def _hand_over(catalogue: Catalogue, plan: Conversion, schemas: list[str]) -> Iterable[str]:
    """Yield the statements that give the new owner everything that the former ones own in the declared schemas."""
    # First, since the owner of an object must be able to create it.
    yield f"ALTER SCHEMA {SCHEMA} OWNER TO {identifier(plan.owner)}"
    for each in catalogue.objects:
        is_movable = each.kind != "SCHEMA" and not each.is_of_extension and not each.serves
        if is_movable and each.schema in schemas and each.owner in plan.former:
            yield f"ALTER {each.kind} {each.name} OWNER TO {identifier(plan.owner)}"


def _revoke_all(catalogue: Catalogue, plan: Conversion, schemas: list[str]) -> Iterable[str]:
    """Yield the statements that revoke all rights of former roles in this database, and grant the owner its rights."""
    former = identifiers(plan.former)
    database, owner = identifier(plan.database), identifier(plan.owner)
    if any(each.kind == "DATABASE" and each.owner in plan.former for each in catalogue.objects):
        yield f"ALTER DATABASE {database} OWNER TO {owner}"
    yield f"GRANT CONNECT, TEMPORARY ON DATABASE {database} TO {owner}"
    for schema in map(identifier, schemas):
        for kind in ("TABLES", "SEQUENCES", "ROUTINES"):
            yield f"REVOKE ALL ON ALL {kind} IN SCHEMA {schema} FROM {former} CASCADE"
        yield f"REVOKE ALL ON SCHEMA {schema} FROM {former} CASCADE"
    yield f"REVOKE ALL ON DATABASE {database} FROM {former} CASCADE"
    for name in plan.former:
        yield f"ALTER ROLE {identifier(name)} IN DATABASE {database} RESET ALL"
    # Objects that they create later have the server's own default privileges.
    rows = catalogue.rows("default_privileges", creators=list(plan.former))
    for creator, schema, kind, name in sorted({row[:4] for row in rows}):
        yield f"{alter_defaults(creator, schema)} REVOKE ALL ON {KINDS[kind]} FROM {grantee(name)}"
    for creator in plan.former:
        for kind, privilege in OF_PUBLIC.items():
            yield f"{alter_defaults(creator)} GRANT {privilege} ON {KINDS[kind]} TO {PUBLIC}"
