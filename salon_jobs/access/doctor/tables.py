"""What is checked about tables and views: row-level security, owners, privileges, triggers, rules, undeclared ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from django.apps import apps

from salon_jobs.access.doctor.catalogue import Catalogue, CatalogueObject, Relation, Relations, Right
from salon_jobs.access.doctor.declaration import Declaration
from salon_jobs.access.doctor.drift import Drift, compare_owner, compare_rights, role
from salon_jobs.access.roles import identifier
from salon_jobs.conf import settings as conf


def compare_security(relations: Relations, declared: Declaration) -> Iterable[Drift]:
    """Yield tables that are missing, or whose row-level security is off, not forced, or on without being declared."""
    for access in declared.tables:
        table = relations.get(access.table)
        if table is None:
            hint = "run python manage.py migrate"
            yield Drift("table", f"table {access.table}", "a table", "none", needs_decision=True, hint=hint)
            continue
        for on, off, expected, found in (
            ("ENABLE", "DISABLE", access.is_protected, table.is_enabled),
            ("FORCE", "NO FORCE", access.is_protected and access.force, table.is_forced),
        ):
            if expected != found:
                word = on if expected else off
                fix = f"ALTER TABLE {table.sql} {word} ROW LEVEL SECURITY"
                yield Drift("row-level security", f"table {table.sql}", word, on if found else off, (fix,))


def compare_tables(objects: Iterable[CatalogueObject], relations: Relations, declared: Declaration) -> Iterable[Drift]:
    """Yield other owners, and privileges on tables, columns and sequences that differ from those declared."""
    tables = {each.oid: each for each in objects if each.is_relation}
    sequences: dict[int, list[CatalogueObject]] = {}
    for each in tables.values():
        sequences.setdefault(each.serves, []).append(each)
    for access in declared.tables:
        if access.table not in relations:
            continue
        table = tables[relations[access.table].oid]
        yield from compare_owner(table, declared.owner)
        # What owners of the host's own functions need on its tables is not declared here.
        exempt = {table.owner, declared.owner, *conf.extra_owner_roles}
        expected = [
            Right(grant.role, privilege, column)
            for grant in access.grants
            for privilege in grant.privileges
            for column in grant.columns or ("",)
        ]
        yield from compare_rights(table, expected, declared.covered(table.rights, exempt))
        inserting = {grant.role for grant in access.grants if "INSERT" in grant.privileges}
        for sequence in sequences.get(table.oid, ()):
            # An identity column needs only INSERT; a serial one also needs its sequence.
            needed = [Right(name, "USAGE") for name in inserting if sequence.is_serial]
            yield from compare_rights(sequence, needed, declared.covered(sequence.rights, exempt))


def compare_triggers_and_rules(catalogue: Catalogue, relations: Relations) -> Iterable[Drift]:
    """Yield disabled triggers of declared tables, including those of foreign keys, and rewrite rules."""
    tables = {table.oid: table.sql for table in relations.values()}
    for kind, oid, name, found in catalogue.rows("triggers_and_rules", tables=list(tables)):
        where = f"{kind} {name} of table {tables[oid]}"
        if kind == "trigger":
            yield Drift(kind, where, "ENABLE", found, (f"ALTER TABLE {tables[oid]} ENABLE TRIGGER {identifier(name)}",))
        else:
            hint = "it rewrites statements and runs with the rights of the table's owner; use a trigger instead"
            drop = f"DROP RULE {identifier(name)} ON {tables[oid]}"
            yield Drift(kind, where, "none", " ".join(found.split()), (drop,), True, hint)


_DECLARE: Final = (
    "or declare its model: StoreIsolation, or SystemScope where its rows belong to no store; "
    "for a model of another app, such as auth.User, by ProtectModel in a migration"
)


def names_of_django() -> set[str]:
    return {
        model._meta.db_table
        for model in apps.get_models(include_auto_created=True)
        if model.__module__.startswith("django.contrib.")
    }


def used_by_default(
    objects: Iterable[CatalogueObject], of_django: Iterable[Relation], relations: Relations, declared: Declaration
) -> list[Relation]:
    """Return the undeclared ones of Django's tables on which others have no more than the default privileges."""
    by_default = {
        Right(each.grantee, privilege)
        for each in declared.default_privileges
        for privilege in each.privileges
        if each.kind == "TABLES" and each.grantee is not None
    }
    ordinary = {
        each.oid
        for each in objects
        if each.is_relation and each.owner == declared.owner and declared.within_reach(each.rights) <= by_default
    }
    return [table for table in of_django if table not in relations.values() and table.oid in ordinary]


def find_undeclared_tables(
    objects: Iterable[CatalogueObject], expected: Collection[int], declared: Declaration
) -> Iterable[Drift]:
    """Yield undeclared tables on which runtime roles or PUBLIC have privileges, and relations of the wrong owners."""
    for table in objects:
        if not table.is_relation or table.oid in expected:
            continue
        # A column's sequence follows its table.
        if table.owner in (*declared.runtime, *declared.owner_roles) and not table.serves:
            yield from compare_owner(table, declared.owner)
        rights = declared.within_reach(table.rights)
        if not rights or table.kind in ("VIEW", "SEQUENCE"):
            continue
        by_role = {
            name: ", ".join(sorted({right.privilege for right in rights if right.grantee == name}))
            for name in sorted({right.grantee for right in rights})
        }
        found = "; ".join(f"{name} {privileges}" for name, privileges in by_role.items())
        found += ", with policies of its own" if table.has_policies else ", without policies"
        fix = tuple(f"REVOKE ALL ON {table.on} FROM {role(name)}" for name in by_role)
        yield Drift("undeclared table", table.where, "no runtime role", found, fix, True, _DECLARE)


def find_undeclared_views(catalogue: Catalogue, relations: Relations, declared: Declaration) -> Iterable[Drift]:
    """Yield views that show our roles rows with the privileges of an owner who sees more of them."""
    views = [
        each
        for each in catalogue.objects
        if each.kind == "VIEW" and declared.is_loophole(each) and declared.within_reach(each.rights)
    ]
    tables = dict(catalogue.rows("view_tables", views=[view.oid for view in views]))
    for view in views:
        for grantee in sorted({right.grantee for right in declared.within_reach(view.rights)}):
            # The migrator is restricted to a store in the tables of stores, and sees all rows of the others, including
            # jobs.
            more = _open_to(view.owner, relations, declared) - _open_to(grantee, relations, declared)
            hidden = sorted(
                table.sql for table in relations.values() if table.oid in more & {*tables.get(view.oid, ())}
            )
            fix = (f"ALTER VIEW {view.name} SET (security_invoker = true)",)
            where = f"{view.where}, role {grantee}"
            if view.owner_bypasses:
                found = f"the eyes of {view.owner}, who bypasses row-level security"
                yield Drift("undeclared view", where, "security_invoker", found, fix)
            elif hidden:
                found = f"the eyes of {view.owner}, who sees all rows of {', '.join(hidden)}"
                hint = "or take the view's rights from the role, which default privileges gave it"
                yield Drift("undeclared view", where, "security_invoker", found, fix, True, hint)


def _open_to(name: str, relations: Relations, declared: Declaration) -> set[int]:
    """Return the protected tables of which a role is declared to see all rows."""
    return {
        relations[access.table].oid
        for access in declared.tables
        if access.table in relations
        for policy in access.policies
        if name in policy.roles
        and policy.command in ("ALL", "SELECT")
        and policy.using is not None
        and policy.using.as_string() == "true"
    }
