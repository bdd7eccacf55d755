"""Checks of tables, views and functions: owners, rights, row-level security, and undeclared objects."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from django.apps import apps

from salon_jobs.access.declared_objects import PUBLIC, FunctionAccess, Right, grantee, identifier, literal
from salon_jobs.access.doctor.catalogue import Catalogue, CatalogueObject, Drift, Relation
from salon_jobs.access.doctor.declaration import Declaration, names_of_django
from salon_jobs.access.job_tables import own_tables


def compare_security(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield tables that are missing, or with row-level security off, not forced, or on though not declared."""
    for access in declared.tables:
        if access.table not in declared.relations:
            hint = "run python manage.py migrate"
            yield Drift("table", f"table {access.table}", "a table", "none", needs_decision=True, hint=hint)
    for access, table in declared.present:
        for on, off, expected, present in (
            ("ENABLE", "DISABLE", access.is_protected, table.is_enabled),
            ("FORCE", "NO FORCE", access.is_protected and access.force, table.is_forced),
        ):
            if expected != present:
                word = on if expected else off
                fix = f"ALTER TABLE {table.sql} {word} ROW LEVEL SECURITY"
                yield Drift("row-level security", table.where, word, on if present else off, (fix,))


def find_open_partitions(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield tables with partitions, or inheriting tables, that show all rows to anyone who queries them directly.

    Without its own policy, a partition under row-level security shows no rows; a query of the table shows the rows that
    the table's policies allow.
    """
    tables = {table.oid: (access, table) for access, table in declared.present if access.is_protected}
    found: dict[int, dict[str, list[str]]] = {}
    for oid, name, is_enabled, is_forced in catalogue.rows("partitions", tables=[*tables]):
        access, _ = tables[oid]
        missing = ["ENABLE"] * (not is_enabled) + ["FORCE"] * (access.force and not is_forced)
        if missing:
            found.setdefault(oid, {})[name] = [f"ALTER TABLE {name} {word} ROW LEVEL SECURITY" for word in missing]
    for oid, partitions in found.items():
        hint = "enable and force it in the migration that makes a partition"
        fix = tuple(statement for statements in partitions.values() for statement in statements)
        on = "row-level security of its partitions"
        yield Drift("row-level security", tables[oid][1].where, on, f"none of {', '.join(partitions)}", fix, hint=hint)


def find_distributed(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield tables under row-level security that Citus distributes: the store does not reach the other nodes."""
    tables = {table.oid: table for access, table in declared.present if access.is_protected}
    if catalogue.rows("distributes") == [(True,)]:
        for (oid,) in catalogue.rows("distributed", tables=[*tables]):
            fix = f"SELECT undistribute_table({literal(tables[oid].sql)})"
            hint = "isolated tables on Citus are not supported, see docs/how-to/managed-postgresql.md"
            place = "on one server", "distributed by Citus, whose other nodes know no store"
            yield Drift("distributed table", tables[oid].where, *place, (fix,), needs_decision=True, hint=hint)


def compare_tables(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield owners, and privileges on tables, columns and sequences, that differ from the declared ones."""
    tables = {each.oid: each for each in catalogue.objects if each.is_relation}
    sequences: dict[int, list[CatalogueObject]] = {}
    for each in tables.values():
        sequences.setdefault(each.serves, []).append(each)
    for access, relation in declared.present:
        table = tables[relation.oid]
        yield from table.compare_owner(declared.owner)
        # Rights that the owners of the host's own functions need on its tables are not declared anywhere.
        extra = () if access.table in own_tables() else declared.roles.extra_owners
        exempt = {table.owner, declared.owner, *extra}
        yield from table.compare_rights(access.rights, declared.covered(table.rights, exempt))
        for sequence in sequences.get(table.oid, ()):
            needed = [Right(name, "USAGE") for name in access.inserting if sequence.is_serial or access.takes_keys]
            yield from sequence.compare_rights(needed, declared.covered(sequence.rights, exempt))


_DECLARE: Final = (
    "or declare its model: StoreIsolation, or SystemScope where its rows belong to no store; "
    "for a model of another app, such as auth.User, by ProtectModel in a migration"
)


def used_by_default(catalogue: Catalogue, declared: Declaration) -> set[Relation]:
    """Return Django's undeclared tables on which other roles have no more than the default privileges."""
    by_default = {
        Right(each.grantee, privilege)
        for each in declared.default_privileges
        for privilege in each.privileges
        if each.kind == "TABLES" and each.grantee is not None
    }
    ordinary = {
        each.oid
        for each in catalogue.objects
        if each.is_relation and each.owner == declared.owner and declared.of_runtime_roles(each.rights) <= by_default
    }
    of_django = {table for name, table in declared.relations.items() if name in names_of_django()}
    return {table for table in of_django if table.oid in ordinary} - {table for _, table in declared.present}


def find_undeclared_tables(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield undeclared tables on which runtime roles or PUBLIC have privileges, and relations of the wrong owners."""
    declared_tables = {table.oid for _, table in declared.present}
    expected = declared_tables | {table.oid for table in used_by_default(catalogue, declared)}
    for table in catalogue.objects:
        if not table.is_relation or table.oid in expected:
            continue
        # A column's sequence follows its table.
        if table.owner in (*declared.runtime, *declared.owner_roles) and not table.serves:
            yield from table.compare_owner(declared.owner)
        rights = declared.of_runtime_roles(table.rights)
        if not rights or table.kind in ("VIEW", "SEQUENCE"):
            continue
        by_role = {
            name: ", ".join(sorted({right.privilege for right in rights if right.grantee == name}))
            for name in sorted({right.grantee for right in rights})
        }
        granted = "; ".join(f"{name} {privileges}" for name, privileges in by_role.items())
        granted += ", with policies of its own" if table.has_policies else ", without policies"
        fix = tuple(f"REVOKE ALL ON {table.on} FROM {grantee(name)}" for name in by_role)
        yield Drift("undeclared table", table.where, "no runtime role", granted, fix, True, _DECLARE)


def find_unmanaged_tables(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield tables that refer to rows of stores, show all of their own, and come from no model's migrations.

    A check (W010) names the tables of other models and, with roles, every undeclared table that a role can reach.
    """
    protected = {table.oid: table for access, table in declared.present if access.is_protected}
    known = {table.oid for _, table in declared.present}
    managed = [model._meta.db_table for model in apps.get_models(include_auto_created=True) if model._meta.managed]
    found: dict[str, list[str]] = {}
    for oid, name, target in catalogue.rows("referring", tables=[*protected], **{"except": managed}):
        if oid not in known:
            found.setdefault(name, []).append(protected[target].name)
    for name, targets in found.items():
        hint = "declare it in the migration that makes it, ProtectModel(…); SystemScope(…) if stores share its rows"
        refers = f"refers to {', '.join(targets)}, without policies"
        yield Drift("undeclared table", f"table {name}", "row-level security", refers, (), True, hint)


def find_undeclared_views(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield views that show our roles rows with the privileges of an owner who sees more of them."""
    views = [
        each
        for each in catalogue.objects
        if each.kind == "VIEW" and declared.is_loophole(each) and declared.of_runtime_roles(each.rights)
    ]
    tables = dict(catalogue.rows("view_tables", views=[view.oid for view in views]))
    for view in views:
        for name in sorted({right.grantee for right in declared.of_runtime_roles(view.rights)}):
            # The migrator is restricted to one store in tables with stores' rows, and sees all rows of other tables,
            # such as the jobs.
            more = _open_to(view.owner, declared) - _open_to(name, declared)
            hidden = sorted(table.sql for table in more if table.oid in tables.get(view.oid, ()))
            if not (view.owner_bypasses or hidden):
                continue
            eyes = "bypasses row-level security" if view.owner_bypasses else f"sees all rows of {', '.join(hidden)}"
            yield Drift(
                "undeclared view",
                f"{view.where}, role {name}",
                "security_invoker",
                f"the eyes of {view.owner}, who {eyes}",
                (f"ALTER VIEW {view.name} SET (security_invoker = true)",),
                needs_decision=not view.owner_bypasses,
                hint=""
                if view.owner_bypasses
                else "or take the view's rights from the role, which default privileges gave it",
            )


def _open_to(name: str, declared: Declaration) -> set[Relation]:
    """Return the tables that show a role all rows, by their declared policies."""
    return {
        table
        for access, table in declared.present
        for policy in access.policies
        if name in policy.roles and policy.command in ("ALL", "SELECT") and policy.using == "true"
    }


def find_orphans(catalogue: Catalogue) -> Iterable[Drift]:
    """Yield keys with rows that refer to nothing, or that were never validated. Reads both tables of each key.

    Only a role that bypasses row-level security sees all of the rows.
    """
    for schema, table, name, orphans, is_valid, forced in catalogue.rows("orphans"):
        where = f"foreign key {name} of table {identifier(schema, table)}"
        ((count,),) = catalogue.connection.execute(f"SELECT count(*) FROM ({orphans}) AS orphans".encode()).fetchall()
        if count:
            hint = "this shows them; delete or fix each by hand"
            yield Drift("orphans", where, "no rows that refer to nothing", f"{count:,} rows", (orphans,), True, hint)
        elif not is_valid:
            # When run as the owner, the validation must not be subject to the policies.
            fix = (
                *(f"ALTER TABLE {each} NO FORCE ROW LEVEL SECURITY" for each in forced),
                f"ALTER TABLE {identifier(schema, table)} VALIDATE CONSTRAINT {identifier(name)}",
                *(f"ALTER TABLE {each} FORCE ROW LEVEL SECURITY" for each in forced),
            )
            yield Drift("foreign key", where, "validated", "NOT VALID", fix)


def compare_functions(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield declared functions that are missing or differ, others with the same name, and other loopholes."""
    routines = {each.oid: each for each in catalogue.objects if each.is_routine}
    missing = {function.signature: function for function in declared.functions}
    declared_routines: set[int] = set()
    for signature, oid, words, body in catalogue.rows(
        "functions",
        signatures=list(missing),
        schemas=[function.schema for function in declared.functions],
        names=[function.name for function in declared.functions],
        arguments=[function.arguments for function in declared.functions],
    ):
        routine = routines[oid]
        if signature is None:
            expected, found = "none of this name and these arguments", f"one, owned by {routine.owner}"
            yield Drift("function", routine.where, expected, found, (f"DROP {routine.kind} {routine.name}",))
            continue
        declared_routines.add(oid)
        function = missing.pop(signature)
        owner = function.owner or declared.owner
        for drift in routine.compare_owner(owner):
            yield replace(drift, fix=_by_creator(function, *drift.fix))
        differing = [pair for pair in zip(function.behaviour, words, strict=True) if pair[0] != pair[1]]
        if body != function.body:
            differing.append(("the declared body", "another body"))
        if differing:
            expected, found = (", ".join(texts) for texts in zip(*differing, strict=True))
            yield Drift("function", routine.where, expected, found, (function.definition,))
        if function.callers is not None:
            yield from routine.compare_rights(function.rights, declared.covered(routine.rights, {routine.owner, owner}))
    for function in missing.values():
        owner = identifier(function.owner or declared.owner)
        create, *grants = function.create()
        fix = _by_creator(function, create, f"ALTER FUNCTION {function.signature} OWNER TO {owner}", *grants)
        yield Drift("function", f"function {function.signature}", "a function", "none", fix)
    if not declared.roles.one_user:
        yield from _find_undeclared_routines(routines.values(), declared_routines, declared)


def _by_creator(function: FunctionAccess, *statements: str) -> tuple[str, ...]:
    """Return the statements around those of the new owner that let it create in the schema; superusers do without.

    They run in one transaction.
    """
    if function.owner is None:
        return statements
    schema, owner = identifier(function.schema), identifier(function.owner)
    grant, revoke = (
        f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {owner}",
        f"REVOKE CREATE ON SCHEMA {schema} FROM {owner}",
    )
    return (grant, *statements, revoke)


def _find_undeclared_routines(
    routines: Iterable[CatalogueObject], declared_routines: Collection[int], declared: Declaration
) -> Iterable[Drift]:
    """Yield undeclared routines of runtime roles, and SECURITY DEFINER ones whose owner sees more than callers."""
    for routine in routines:
        if routine.oid in declared_routines:
            continue
        if routine.owner in declared.runtime:
            yield from routine.compare_owner(declared.owner)
        if not declared.is_loophole(routine):
            continue
        for name in sorted({right.grantee for right in declared.of_runtime_roles(routine.rights)}):
            if name != PUBLIC and routine.owner in declared.owner_roles:
                continue  # extra_owners are declared to own such functions
            hint = "or give it to an owner named in ROLES['extra_owners'], or make it INVOKER"
            yield Drift(
                "undeclared function",
                f"{routine.where}, role {name}",
                "no EXECUTE",
                f"EXECUTE of a SECURITY DEFINER function of {routine.owner}",
                (f"REVOKE ALL ON {routine.on} FROM {grantee(name)}",),
                needs_decision=name != PUBLIC,
                hint="" if name == PUBLIC else hint,
            )


def find_loopholes(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield what bypasses all policies: publications, functions that the server withholds, LEAKPROOF functions."""
    for kind, where, expected, found, fix, needs_decision, hint in catalogue.rows(
        "loopholes",
        protected=[table.oid for access, table in declared.present if access.is_protected],
        roles=list(declared.names or (declared.owner,)),
        callers=list(declared.runtime or (declared.owner,)),
    ):
        yield Drift(kind, where, expected, found, tuple(fix), needs_decision, hint)
