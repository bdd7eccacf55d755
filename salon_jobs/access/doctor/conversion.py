"""Conversion of a database from one database user to roles and back, with its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from salon_jobs.access.doctor.catalogue import KIND_OF_RELATION, PUBLIC, Catalogue
from salon_jobs.access.doctor.declaration import Declaration, declare
from salon_jobs.access.doctor.drift import role
from salon_jobs.access.doctor.examination import fix, run
from salon_jobs.access.doctor.roles import KINDS, OF_PUBLIC
from salon_jobs.access.roles import SCHEMA, identifier
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.db.locks import LOCK_TIMEOUT


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """Plan of a conversion: who loses everything, and who owns it afterwards."""

    database: str
    former: tuple[str, ...]
    owner: str
    to_roles: bool


def plan_conversion(connection: psycopg.Connection[Any]) -> Conversion | None:
    """Compare the database's owner with the one in the settings; return None if they are the same.

    Raises SchemaMissing before the first migrate, ConfigurationError if the one database user does not exist.
    """
    catalogue = Catalogue(connection)
    declared = declare(catalogue)
    former = _former(catalogue, declared)
    if not former:
        return None
    is_known = catalogue.rows("SELECT FROM pg_roles WHERE rolname = %s", declared.owner)
    if declared.roles is None and not is_known:
        raise ConfigurationError(
            f"DATABASES[{conf.database!r}]['USER'] names the one database user, and there is no role {declared.owner!r}"
        )
    return Conversion(
        database=catalogue.database, former=former, owner=declared.owner, to_roles=declared.roles is not None
    )


def convert(connection: psycopg.Connection[Any], plan: Conversion) -> tuple[str, ...]:
    """Convert in one transaction, as superuser; the roles exist. Return the policies that still name a former role.

    Raises FixIncomplete, with nothing changed, when a statement is refused or the result is not as declared.
    """
    with connection.transaction():
        catalogue = Catalogue(connection)
        connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        declared = declare(catalogue)
        for statement in (
            *_hand_over(catalogue, plan),
            *(_give_all(declared) if plan.to_roles else _take_all(catalogue, plan)),
        ):
            run(connection, statement)
        fix(connection, with_orphans=False)
        return _policies_of(catalogue, plan.former)


def _former(catalogue: Catalogue, declared: Declaration) -> tuple[str, ...]:
    """Return the roles besides the declared owner that own the job tables or, with one user, have privileges there."""
    found = catalogue.rows(
        """
        SELECT c.relowner::regrole::name FROM pg_class c WHERE c.oid = to_regclass('salon_jobs_job')
         UNION
        SELECT g.rolname FROM pg_class c CROSS JOIN aclexplode(c.relacl) a JOIN pg_roles g ON g.oid = a.grantee
         WHERE c.oid = to_regclass('salon_jobs_job') AND %(alone)s
         UNION
        SELECT p.proowner::regrole::name FROM pg_proc p
         WHERE p.oid = to_regprocedure(%(fan_out)s || '()') AND %(alone)s
         UNION
        SELECT rolname FROM pg_roles WHERE rolname = ANY (%(extra)s::text[]) AND %(alone)s
        """,
        alone=declared.roles is None,
        fan_out=conf.fan_out_function,
        extra=list(conf.extra_owner_roles),
    )
    former = {name for (name,) in found} - {declared.owner}
    return tuple(sorted(former if former - set(conf.extra_owner_roles) else ()))


def _hand_over(catalogue: Catalogue, plan: Conversion) -> Iterable[str]:
    """Yield the statements that give the new owner all that the former ones own in the declared objects' schemas."""
    found = catalogue.rows(
        f"""
        SELECT {KIND_OF_RELATION},
               format('%%I.%%I', n.nspname, c.relname)
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND n.nspname = ANY (%(schemas)s::text[])
           AND c.relowner::regrole::name = ANY (%(former)s::text[])
           AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                              AND (d.deptype = 'e' OR (c.relkind = 'S' AND d.deptype IN ('a', 'i'))))
        UNION ALL
        SELECT CASE p.prokind WHEN 'p' THEN 'PROCEDURE' WHEN 'a' THEN 'AGGREGATE' ELSE 'FUNCTION' END,
               format('%%I.%%I(%%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid))
          FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
         WHERE n.nspname = ANY (%(schemas)s::text[]) AND p.proowner::regrole::name = ANY (%(former)s::text[])
           AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid
                              AND d.deptype = 'e')
        UNION ALL
        SELECT CASE t.typtype WHEN 'd' THEN 'DOMAIN' ELSE 'TYPE' END, format('%%I.%%I', n.nspname, t.typname)
          FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
         WHERE n.nspname = ANY (%(schemas)s::text[]) AND t.typowner::regrole::name = ANY (%(former)s::text[])
           AND (t.typtype IN ('d', 'e', 'r')
                OR (t.typtype = 'c' AND EXISTS (SELECT FROM pg_class c WHERE c.oid = t.typrelid AND c.relkind = 'c')))
           AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid
                              AND d.deptype = 'e')
        UNION ALL
        SELECT 'STATISTICS', format('%%I.%%I', n.nspname, s.stxname)
          FROM pg_statistic_ext s JOIN pg_namespace n ON n.oid = s.stxnamespace
         WHERE n.nspname = ANY (%(schemas)s::text[]) AND s.stxowner::regrole::name = ANY (%(former)s::text[])
        """,
        schemas=_schemas(catalogue),
        former=list(plan.former),
    )
    for kind, name in found:
        yield f"ALTER {kind} {name} OWNER TO {identifier(plan.owner)}"


def _give_all(declared: Declaration) -> Iterable[str]:
    """Yield the statements that give existing objects the default privileges; those declared lose some again later."""
    for each in declared.default_privileges:
        if each.grantee is not None:
            privileges = ", ".join(each.privileges)
            yield f"GRANT {privileges} ON ALL {each.kind} IN SCHEMA {SCHEMA} TO {identifier(each.grantee)}"


def _take_all(catalogue: Catalogue, plan: Conversion) -> Iterable[str]:
    """Yield the statements that leave the former roles nothing in this database, and the new owner what it needs."""
    former = ", ".join(map(identifier, plan.former))
    database, owner = identifier(plan.database), identifier(plan.owner)
    yield f"ALTER SCHEMA {SCHEMA} OWNER TO {owner}"
    if catalogue.rows(
        "SELECT FROM pg_database WHERE datname = current_database() AND datdba::regrole::name = ANY (%s::text[])",
        list(plan.former),
    ):
        yield f"ALTER DATABASE {database} OWNER TO {owner}"
    yield f"GRANT CONNECT, TEMPORARY ON DATABASE {database} TO {owner}"
    for schema in _schemas(catalogue):
        for kind in ("TABLES", "SEQUENCES", "ROUTINES"):
            yield f"REVOKE ALL ON ALL {kind} IN SCHEMA {identifier(schema)} FROM {former} CASCADE"
        yield f"REVOKE ALL ON SCHEMA {identifier(schema)} FROM {former} CASCADE"
    yield f"REVOKE ALL ON DATABASE {database} FROM {former} CASCADE"
    for name in plan.former:
        yield f"ALTER ROLE {identifier(name)} IN DATABASE {database} RESET ALL"
    yield from _forget_defaults(catalogue, plan)


def _forget_defaults(catalogue: Catalogue, plan: Conversion) -> Iterable[str]:
    """Yield the statements that leave the former roles only the server's own default privileges."""
    found = catalogue.rows(
        f"""
        SELECT DISTINCT d.defaclrole::regrole::name, coalesce(n.nspname, ''), d.defaclobjtype::text,
               coalesce(g.rolname, '{PUBLIC}')
          FROM pg_default_acl d
          LEFT JOIN pg_namespace n ON n.oid = d.defaclnamespace
         CROSS JOIN aclexplode(d.defaclacl) a LEFT JOIN pg_roles g ON g.oid = a.grantee
         WHERE d.defaclrole::regrole::name = ANY (%s::text[])
        """,
        list(plan.former),
    )
    for creator, schema, kind, grantee in found:
        within = f" IN SCHEMA {identifier(schema)}" if schema else ""
        of = f"ALTER DEFAULT PRIVILEGES FOR ROLE {identifier(creator)}{within}"
        if grantee != creator:
            yield f"{of} REVOKE ALL ON {KINDS[kind]} FROM {role(grantee)}"
        if not schema and kind in OF_PUBLIC:
            yield f"{of} GRANT {OF_PUBLIC[kind]} ON {KINDS[kind]} TO {PUBLIC}"


def _schemas(catalogue: Catalogue) -> list[str]:
    jobs = catalogue.relations(["salon_jobs_job"])["salon_jobs_job"]
    return sorted({SCHEMA, conf.fan_out_function.split(".")[0], jobs.schema})


def _policies_of(catalogue: Catalogue, names: Sequence[str]) -> tuple[str, ...]:
    found = catalogue.rows(
        "SELECT format('%%I of %%s', policyname, tablename) FROM pg_policies WHERE roles && %s::name[] ORDER BY 1",
        list(names),
    )
    return tuple(text for (text,) in found)
