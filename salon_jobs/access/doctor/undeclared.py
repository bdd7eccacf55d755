"""Undeclared objects, and those that reach beyond the declaration: tables, views, functions, owners."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from salon_jobs.access.doctor.catalogue import KIND_OF_RELATION, PUBLIC, Catalogue, Relation
from salon_jobs.access.doctor.declaration import Declaration
from salon_jobs.access.doctor.drift import Drift, role
from salon_jobs.access.roles import identifier
from salon_jobs.conf import Roles

_VISIBLE: Final = """n.nspname NOT LIKE 'pg\\_%%' AND n.nspname <> 'information_schema'"""


def find_undeclared(catalogue: Catalogue, relations: Mapping[str, Relation], declared: Declaration) -> Iterable[Drift]:
    """Yield what the roles can reach or own undeclared; with one database user, only leakproof functions."""
    roles = declared.roles
    yield from _leakproof(catalogue, (declared.owner,) if roles is None else roles.runtime)
    if roles is None:
        return
    yield from _tables(catalogue, relations, roles)
    yield from _views(catalogue, relations, declared, roles)
    yield from _definers(catalogue, declared, roles)
    yield from _owned(catalogue, relations, declared, roles)


def _tables(catalogue: Catalogue, relations: Mapping[str, Relation], roles: Roles) -> Iterable[Drift]:
    """Yield undeclared tables on which runtime roles or PUBLIC have privileges."""
    found = catalogue.rows(
        f"""
        SELECT n.nspname, c.relname, c.relkind::text, c.relrowsecurity, coalesce(g.rolname, '{PUBLIC}'),
               string_agg(DISTINCT a.privilege_type, ', ')
          FROM pg_class c
          JOIN pg_namespace n ON n.oid = c.relnamespace
         CROSS JOIN LATERAL (
            SELECT * FROM aclexplode(c.relacl)
             UNION ALL
            SELECT e.* FROM pg_attribute t CROSS JOIN aclexplode(t.attacl) e
             WHERE t.attrelid = c.oid AND NOT t.attisdropped
         ) a
          LEFT JOIN pg_roles g ON g.oid = a.grantee
         WHERE c.relkind IN ('r', 'p', 'm', 'f') AND {_VISIBLE} AND c.oid <> ALL (%s::bigint[]::oid[])
           AND (a.grantee = 0 OR g.rolname = ANY (%s::text[]))
         GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 5
        """,
        [table.oid for table in relations.values()],
        list(roles.runtime),
    )
    for schema, name, kind, has_policies, grantee, privileges in found:
        table = f"{identifier(schema)}.{identifier(name)}"
        what = {"m": "a materialized view", "f": "a foreign table"}.get(kind, "a table")
        yield Drift(
            kind="undeclared table",
            where=f"table {table}, role {grantee}",
            expected="nothing",
            found=f"{privileges} on {what} {'with policies of its own' if has_policies else 'without policies'}",
            fix=(f"REVOKE ALL ON {table} FROM {role(grantee)}",),
            needs_decision=True,
            hint=(
                "or declare its model: StoreIsolation, or SystemScope where its rows belong to no store; "
                "for a model of another app, such as auth.User, by ProtectModel in a migration"
            ),
        )


def _views(
    catalogue: Catalogue, relations: Mapping[str, Relation], declared: Declaration, roles: Roles
) -> Iterable[Drift]:
    """Yield views that show our roles rows with the privileges of an owner who sees more of them."""
    found = catalogue.rows(
        f"""
        WITH RECURSIVE reads (view, what) AS (
            SELECT r.ev_class, d.refobjid FROM pg_rewrite r
              JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
             WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid <> r.ev_class
        ), reaches (view, what) AS (
            SELECT view, what FROM reads
             UNION
            SELECT a.view, b.what FROM reaches a JOIN reads b ON b.view = a.what
        )
        SELECT DISTINCT n.nspname, c.relname, o.rolname, o.rolsuper OR o.rolbypassrls, coalesce(g.rolname, '{PUBLIC}'),
               ARRAY(SELECT what::bigint FROM reaches WHERE view = c.oid)
          FROM pg_class c
          JOIN pg_namespace n ON n.oid = c.relnamespace
          JOIN pg_roles o ON o.oid = c.relowner
         CROSS JOIN aclexplode(c.relacl) a
          LEFT JOIN pg_roles g ON g.oid = a.grantee
         WHERE c.relkind = 'v' AND {_VISIBLE} AND (o.rolsuper OR o.rolbypassrls OR o.rolname = %s)
           AND (a.grantee = 0 OR g.rolname = ANY (%s::text[]))
           AND NOT coalesce(c.reloptions && ARRAY['security_invoker=true', 'security_invoker=on',
                                                  'security_invoker=1'], false)
           AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.objid = c.oid AND e.deptype = 'e')
        """,
        declared.owner,
        list(roles.runtime),
    )
    for schema, name, owner, bypasses, grantee, reads in found:
        # The migrator is restricted to a store in the tables of stores, and sees all rows of the others, including
        # jobs.
        hidden = set(reads) & (_open_to(owner, relations, declared) - _open_to(grantee, relations, declared))
        if not bypasses and not hidden:
            continue
        view = f"{identifier(schema)}.{identifier(name)}"
        shown = sorted(table.sql for table in relations.values() if table.oid in hidden)
        yield Drift(
            kind="undeclared view",
            where=f"view {view}, role {grantee}",
            expected="security_invoker",
            found=f"the eyes of {owner}, who "
            + ("bypasses row-level security" if bypasses else f"sees all rows of {', '.join(shown)}"),
            fix=(f"ALTER VIEW {view} SET (security_invoker = true)",),
            needs_decision=not bypasses,
            hint="" if bypasses else "or take the view's rights from the role, which default privileges gave it",
        )


def _open_to(role: str, relations: Mapping[str, Relation], declared: Declaration) -> set[int]:
    """Return the protected tables of which a role is declared to see all rows."""
    return {
        relations[access.table].oid
        for access in declared.protected
        if access.table in relations
        for policy in access.policies
        if role in policy.roles
        and policy.command in ("ALL", "SELECT")
        and policy.using is not None
        and policy.using.as_string() == "true"
    }


def _definers(catalogue: Catalogue, declared: Declaration, roles: Roles) -> Iterable[Drift]:
    """Yield undeclared SECURITY DEFINER functions that our roles may call, of owners who see more."""
    known = [function.signature for function in declared.functions]
    found = catalogue.rows(
        f"""
        SELECT DISTINCT format('%%I.%%I(%%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid)),
               o.rolname, coalesce(g.rolname, '{PUBLIC}'), o.rolname = ANY (%(owners)s::text[])
          FROM pg_proc p
          JOIN pg_namespace n ON n.oid = p.pronamespace
          JOIN pg_roles o ON o.oid = p.proowner
         CROSS JOIN aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
          LEFT JOIN pg_roles g ON g.oid = a.grantee
         WHERE p.prosecdef AND {_VISIBLE} AND a.grantee <> p.proowner
           AND (o.rolsuper OR o.rolbypassrls OR o.rolname = %(owner)s)
           AND (a.grantee = 0 OR g.rolname = ANY (%(runtime)s::text[]))
           AND p.oid <> ALL (ARRAY(SELECT to_regprocedure(s)::oid FROM unnest(%(known)s::text[]) AS s
                                    WHERE to_regprocedure(s) IS NOT NULL))
           AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.objid = p.oid AND e.deptype = 'e')
         ORDER BY 1, 3
        """,
        owners=list(declared.owner_roles),
        owner=declared.owner,
        runtime=list(roles.runtime),
        known=known,
    )
    for signature, owner, grantee, is_hosts in found:
        if is_hosts and grantee != PUBLIC:
            continue  # EXTRA_OWNER_ROLES are declared to own such functions
        yield Drift(
            kind="undeclared function",
            where=f"function {signature}, role {grantee}",
            expected="no EXECUTE",
            found=f"EXECUTE of a SECURITY DEFINER function of {owner}",
            fix=(f"REVOKE ALL ON FUNCTION {signature} FROM {role(grantee)}",),
            needs_decision=grantee != PUBLIC,
            hint="" if grantee == PUBLIC else "or give it to an owner named in EXTRA_OWNER_ROLES, or make it INVOKER",
        )


def _leakproof(catalogue: Catalogue, runtime: Sequence[str]) -> Iterable[Drift]:
    """Yield LEAKPROOF functions that PUBLIC or our roles may call, except those of the server and of extensions."""
    found = catalogue.rows(
        f"""
        SELECT format('%%I.%%I(%%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid)),
               o.rolname, array_agg(c.name ORDER BY c.name)
          FROM pg_proc p
          JOIN pg_namespace n ON n.oid = p.pronamespace
          JOIN pg_roles o ON o.oid = p.proowner
          JOIN (SELECT '{PUBLIC}' AS name, 0::oid AS oid
                 UNION ALL
                SELECT rolname, oid FROM pg_roles WHERE rolname = ANY (%s::text[])) c
            ON CASE c.oid WHEN 0 THEN EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                                               WHERE a.grantee = 0)
                          ELSE has_function_privilege(c.oid, p.oid, 'EXECUTE') END
         WHERE p.proleakproof AND {_VISIBLE}
           AND NOT EXISTS (SELECT FROM pg_depend e
                            WHERE e.classid = 'pg_proc'::regclass AND e.objid = p.oid AND e.deptype = 'e')
         GROUP BY p.oid, n.nspname, p.proname, o.rolname ORDER BY 1
        """,
        list(runtime),
    )
    for signature, owner, callers in found:
        who = PUBLIC if PUBLIC in callers else ", ".join(callers)
        yield Drift(
            kind="leakproof function",
            where=f"function {signature}",
            expected="NOT LEAKPROOF",
            found=f"LEAKPROOF, owned by {owner}; role {who} may call it",
            fix=(f"ALTER FUNCTION {signature} NOT LEAKPROOF",),
            hint="PostgreSQL may call it on rows of other stores, before their policies are checked",
        )


def _owned(
    catalogue: Catalogue, relations: Mapping[str, Relation], declared: Declaration, roles: Roles
) -> Iterable[Drift]:
    """Yield anything owned by runtime roles, which own nothing, and tables of the owners, which own only functions."""
    found = catalogue.rows(
        f"""
        SELECT {KIND_OF_RELATION},
               format('%%I.%%I', n.nspname, c.relname), o.rolname
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles o ON o.oid = c.relowner
         WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND {_VISIBLE}
           AND o.rolname = ANY (%(runtime)s::text[] || %(owners)s::text[]) AND c.oid <> ALL (%(known)s::bigint[]::oid[])
        UNION ALL
        SELECT 'FUNCTION', format('%%I.%%I(%%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid)),
               o.rolname
          FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_roles o ON o.oid = p.proowner
         WHERE {_VISIBLE} AND o.rolname = ANY (%(runtime)s::text[]) AND p.proname <> ALL (%(functions)s::text[])
        UNION ALL
        SELECT 'SCHEMA', quote_ident(n.nspname), o.rolname
          FROM pg_namespace n JOIN pg_roles o ON o.oid = n.nspowner
         WHERE {_VISIBLE} AND o.rolname = ANY (%(runtime)s::text[] || %(owners)s::text[]) AND n.nspname <> 'public'
         ORDER BY 1, 2
        """,
        runtime=list(roles.runtime),
        owners=list(declared.owner_roles),
        known=[table.oid for table in relations.values()],
        functions=[function.name for function in declared.functions],
    )
    for kind, name, owner in found:
        yield Drift(
            kind="owner",
            where=f"{kind.lower()} {name}",
            expected=declared.owner,
            found=owner,
            fix=(f"ALTER {kind} {name} OWNER TO {identifier(declared.owner)}",),
        )
