"""Compares the rights on the database and the schema, and the default privileges of new objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from salon_jobs.doctor.catalogue import PUBLIC, Catalogue
from salon_jobs.doctor.declaration import Declaration
from salon_jobs.doctor.drift import Drift
from salon_jobs.doctor.rights import Right, compare_rights, role
from salon_jobs.tenancy.roles import SCHEMA, identifier

KINDS: Final = {"r": "TABLES", "S": "SEQUENCES", "f": "FUNCTIONS", "T": "TYPES", "n": "SCHEMAS", "L": "LARGE OBJECTS"}
# What PUBLIC has on new objects by the server itself.
OF_PUBLIC: Final = {"f": "EXECUTE", "T": "USAGE"}


def compare_database(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield what PUBLIC and our roles have on the database, but should not, or the other way round."""
    found = catalogue.rows(
        f"""
        SELECT coalesce(g.rolname, '{PUBLIC}'), a.privilege_type, a.is_grantable
          FROM pg_database d
         CROSS JOIN aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) a
          LEFT JOIN pg_roles g ON g.oid = a.grantee
         WHERE d.datname = current_database() AND a.grantee <> d.datdba
        """
    )
    ours = {*declared.names, PUBLIC}
    ((owner,),) = catalogue.rows("SELECT datdba::regrole::name FROM pg_database WHERE datname = current_database()")
    on, where = f"DATABASE {identifier(catalogue.database)}", f"database {catalogue.database}"
    if owner in declared.names and owner != declared.owner:
        mend = (f"ALTER {on} OWNER TO {identifier(declared.owner)}",)
        yield Drift(kind="owner", where=where, expected=f"not {owner}", seen=owner, mend=mend)
    seen = {Right(name, what, may_grant=option) for name, what, option in found if name in ours}
    expected = {Right(name, what) for spec, name in declared.named for what in spec.database_privileges}
    if owner == declared.owner:  # who owns it has all of it
        expected = {right for right in expected if right.grantee != owner}
    yield from compare_rights(on, where, expected, seen)


def compare_schema(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield what PUBLIC and our roles have on the schema, and who else may create objects in it."""
    found = catalogue.rows(
        f"""
        SELECT coalesce(g.rolname, '{PUBLIC}'), a.privilege_type, a.is_grantable
          FROM pg_namespace n CROSS JOIN aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
          LEFT JOIN pg_roles g ON g.oid = a.grantee
         WHERE n.nspname = %s AND a.grantee <> n.nspowner
        """,
        SCHEMA,
    )
    on, where = f"SCHEMA {SCHEMA}", f"schema {SCHEMA}"
    for (owner,) in catalogue.rows("SELECT nspowner::regrole::name FROM pg_namespace WHERE nspname = %s", SCHEMA):
        if owner != declared.owner:
            mend = (f"ALTER {on} OWNER TO {identifier(declared.owner)}",)
            yield Drift(kind="owner", where=where, expected=declared.owner, seen=owner, mend=mend)
    ours = {*declared.names, PUBLIC}
    seen = {Right(name, what, may_grant=option) for name, what, option in found if name in ours or what == "CREATE"}
    expected = {Right(name, "USAGE") for spec, name in declared.named if not spec.owns_schema}
    yield from compare_rights(on, where, expected, {right for right in seen if right.grantee != declared.owner})


def compare_other_schemas(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield other schemas in which PUBLIC or one of our roles, except the migrator, may create objects."""
    found = catalogue.rows(
        f"""
        SELECT n.nspname, coalesce(g.rolname, '{PUBLIC}'), a.is_grantable
          FROM pg_namespace n CROSS JOIN aclexplode(n.nspacl) a LEFT JOIN pg_roles g ON g.oid = a.grantee
         WHERE n.nspname <> %s AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner
           AND (a.grantee = 0 OR g.rolname = ANY (%s::text[]))
         ORDER BY 1, 2
        """,
        SCHEMA, [name for name in declared.names if name != declared.owner],
    )  # fmt: skip
    for schema, name, option in found:
        right = Right(name, "CREATE", may_grant=option)
        for drift in compare_rights(f"SCHEMA {identifier(schema)}", f"schema {schema}", (), [right]):
            yield replace(drift, hint="objects created there can pass for yours, such as tables without policies")


def compare_parameters(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield settings of the server that PUBLIC or our roles may set, such as the one that switches triggers off."""
    found = catalogue.rows(
        f"""
        SELECT p.parname, coalesce(g.rolname, '{PUBLIC}'), a.privilege_type, a.is_grantable
          FROM pg_parameter_acl p CROSS JOIN aclexplode(p.paracl) a LEFT JOIN pg_roles g ON g.oid = a.grantee
         WHERE a.grantee = 0 OR g.rolname = ANY (%s::text[])
        """,
        list(declared.names),
    )
    for parameter, name, what, option in found:
        right = Right(name, what, may_grant=option)
        yield from compare_rights(f"PARAMETER {parameter}", f"parameter {parameter}", (), [right])


def compare_default_privileges(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield what new objects of the migrator and the owners would give, but should not, or the other way round."""
    creators = list(declared.guarded)
    found = catalogue.rows(
        f"""
        SELECT r.rolname, coalesce(n.nspname, ''), d.kind, coalesce(g.rolname, '{PUBLIC}'), a.privilege_type
          FROM pg_roles r
         CROSS JOIN LATERAL (
            SELECT defaclobjtype::text AS kind, defaclnamespace AS namespace, defaclacl AS acl
              FROM pg_default_acl WHERE defaclrole = r.oid
             UNION ALL
            SELECT k, 0, acldefault(k::"char", r.oid) FROM unnest(ARRAY['f', 'T']) AS k
             WHERE NOT EXISTS (SELECT FROM pg_default_acl d
                                WHERE d.defaclrole = r.oid AND d.defaclnamespace = 0 AND d.defaclobjtype = k::"char")
         ) d
         CROSS JOIN aclexplode(d.acl) a
          LEFT JOIN pg_namespace n ON n.oid = d.namespace
          LEFT JOIN pg_roles g ON g.oid = a.grantee
         WHERE r.rolname = ANY (%s::text[]) AND a.grantee <> r.oid
        """,
        creators,
    )
    seen = {(creator, schema, KINDS[kind], grantee, what) for creator, schema, kind, grantee, what in found}
    expected = {(creator, "", KINDS[kind], PUBLIC, what) for creator in creators for kind, what in OF_PUBLIC.items()}
    for each in declared.default_privileges:
        for what in each.privileges:
            if each.grantee is None:
                expected.discard((each.creator, "", each.kind, PUBLIC, what))
            else:
                expected.add((each.creator, SCHEMA, each.kind, each.grantee, what))
    for is_missing, entries in ((False, seen - expected), (True, expected - seen)):
        for creator, schema, kind, grantee, what in sorted(entries):
            within = f" IN SCHEMA {identifier(schema)}" if schema else ""
            do = f"GRANT {what} ON {kind} TO" if is_missing else f"REVOKE {what} ON {kind} FROM"
            yield Drift(
                kind="default privilege",
                where=f"new {kind.lower()} of {creator}{f' in schema {schema}' if schema else ''}, role {grantee}",
                expected=what if is_missing else f"no {what}",
                seen="none" if is_missing else what,
                mend=(f"ALTER DEFAULT PRIVILEGES FOR ROLE {identifier(creator)}{within} {do} {role(grantee)}",),
            )
