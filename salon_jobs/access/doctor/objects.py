"""Checks of tables, views and functions, and of what belongs to them: policies, triggers, rules, keys."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeAlias

from django.apps import apps
from django.db import router

from salon_jobs.access.constraints import SameStoreForeignKey
from salon_jobs.access.doctor.catalogue import Catalogue, CatalogueObject, Drift, Relation
from salon_jobs.access.doctor.declaration import Declaration
from salon_jobs.access.doctor.expressions import normal_form
from salon_jobs.access.job_tables import TABLES
from salon_jobs.access.objects import PUBLIC, Policy, Right, Trigger, grantee, identifier, identifiers

Relations: TypeAlias = Mapping[str, Relation]


def compare_security(relations: Relations, declared: Declaration) -> Iterable[Drift]:
    """Yield tables that are missing, or whose row-level security is off, not forced, or on though not declared."""
    for access in declared.tables:
        table = relations.get(access.table)
        if table is None:
            hint = "run python manage.py migrate"
            yield Drift("table", f"table {access.table}", "a table", "none", needs_decision=True, hint=hint)
            continue
        for on, off, expected, present in (
            ("ENABLE", "DISABLE", access.is_protected, table.is_enabled),
            ("FORCE", "NO FORCE", access.is_protected and access.force, table.is_forced),
        ):
            if expected != present:
                word = on if expected else off
                fix = f"ALTER TABLE {table.sql} {word} ROW LEVEL SECURITY"
                yield Drift("row-level security", table.where, word, on if present else off, (fix,))


def compare_policies(catalogue: Catalogue, relations: Relations, declared: Declaration) -> Iterable[Drift]:
    """Yield policies that are missing, different or undeclared."""
    by_table: dict[int, dict[str, Policy]] = {relation.oid: {} for relation in relations.values()}
    for oid, name, command, is_permissive, roles, using, check in catalogue.rows("policies", tables=list(by_table)):
        by_table[oid][name] = Policy(
            name=name, command=command, roles=tuple(roles), using=using, check=check, is_permissive=is_permissive
        )
    for access in declared.tables:
        if access.table not in relations:
            continue
        table = relations[access.table]
        present, expected = by_table[table.oid], {policy.name: policy for policy in access.policies}
        for name in sorted(present.keys() | expected.keys()):
            was, policy = present.get(name), expected.get(name)
            if was is not None and policy is not None and is_same(was, policy):
                continue
            fix = [] if was is None else [f"DROP POLICY {identifier(name)} ON {table.sql}"]
            fix += [] if policy is None else [policy.create(table.sql)]
            want, have = ("none" if each is None else each.text() for each in (policy, was))
            yield Drift("policy", f"policy {name} of {table.where}", want, have, tuple(fix))


def is_same(one: Policy, other: Policy) -> bool:
    def normal(policy: Policy) -> tuple[object, ...]:
        conditions = (None if each is None else normal_form(each) for each in (policy.using, policy.check))
        return policy.name, policy.command, policy.is_permissive, sorted(policy.roles), *conditions

    return normal(one) == normal(other)


def find_foreign_parts(catalogue: Catalogue, relations: Relations) -> Iterable[Drift]:
    """Yield policies, and parts of the job tables, that call functions or operators of somebody else.

    A condition may look as declared all the same: the server shows a cast and not the function that does it.
    """
    tables = {table.oid: table for table in relations.values()}
    ours = [table.oid for name, table in relations.items() if name in TABLES]
    for kind, name, oid, found in catalogue.rows("foreign_parts", protected=list(tables), tables=ours):
        hint = "drop that, or the cast that calls it, and make this again"
        where = f"{kind} {name} of {tables[oid].where}"
        yield Drift(kind, where, "only functions and operators of the server or an extension", found, (), True, hint)


def compare_tables(objects: Iterable[CatalogueObject], relations: Relations, declared: Declaration) -> Iterable[Drift]:
    """Yield owners, and privileges on tables, columns and sequences, that differ from those declared."""
    tables = {each.oid: each for each in objects if each.is_relation}
    sequences: dict[int, list[CatalogueObject]] = {}
    for each in tables.values():
        sequences.setdefault(each.serves, []).append(each)
    for access in declared.tables:
        if access.table not in relations:
            continue
        table = tables[relations[access.table].oid]
        yield from table.compare_owner(declared.owner)
        # What the owners of the host's own functions need on its tables is declared nowhere.
        extra = () if access.table in TABLES or declared.roles is None else declared.roles.extra_owners
        exempt = {table.owner, declared.owner, *extra}
        yield from table.compare_rights(access.rights, declared.covered(table.rights, exempt))
        for sequence in sequences.get(table.oid, ()):
            needed = [Right(name, "USAGE") for name in access.inserting if sequence.is_serial]
            yield from sequence.compare_rights(needed, declared.covered(sequence.rights, exempt))


def compare_triggers_and_rules(catalogue: Catalogue, relations: Relations, declared: Declaration) -> Iterable[Drift]:
    """Yield triggers (those of foreign keys included) that are missing, different, disabled or undeclared; rules."""
    tables = {table.oid: table for table in relations.values()}
    declared_triggers = {
        (relations[trigger.table].oid, trigger.name): trigger
        for function in declared.functions
        for trigger in function.triggers
        if trigger.table in relations
    }
    for kind, oid, name, definition, state, is_internal in catalogue.rows("triggers_and_rules", tables=list(tables)):
        table = tables[oid]
        where = f"{kind} {name} of {table.where}"
        if kind == "rule":
            hint = "it rewrites statements and runs with the rights of the table's owner; use a trigger instead"
            drop = f"DROP RULE {identifier(name)} ON {table.sql}"
            yield Drift(kind, where, "none", " ".join(definition.split()), (drop,), True, hint)
            continue
        trigger = declared_triggers.pop((oid, name), None)
        if trigger is None:
            if not is_internal:
                drop = f"DROP TRIGGER {identifier(name)} ON {table.sql}"
                hint = "it can change or drop rows unseen; declare it with pgtrigger if it is yours"
                yield Drift(kind, where, "none", definition, (drop,), True, hint)
                continue
        elif _normal_trigger(trigger, trigger.create) != _normal_trigger(trigger, definition):
            yield Drift(kind, where, trigger.create, definition, tuple(trigger.replace()))
        if state != "ENABLE":
            yield Drift(kind, where, "ENABLE", state, (f"ALTER TABLE {table.sql} ENABLE TRIGGER {identifier(name)}",))
    for (oid, name), trigger in declared_triggers.items():
        where = f"trigger {name} of {tables[oid].where}"
        yield Drift("trigger", where, "a trigger", "none", tuple(trigger.replace()))


def _normal_trigger(trigger: Trigger, definition: str) -> str:
    """Return the definition in normal form, with its events in order; without the condition, if that is a host's."""
    text = normal_form(definition.replace(" OR REPLACE", "", 1))
    if trigger.table not in TABLES:
        text = re.sub(r" when .* execute ", " execute ", text)
    return re.sub(
        r"(before|after|of) (.+?) on ",
        lambda found: f"{found[1]} {' or '.join(sorted(found[2].split(' or ')))} on ",
        text,
        count=1,
    )


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
    """Return Django's undeclared tables on which other roles have no more than the default privileges."""
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
            yield from table.compare_owner(declared.owner)
        rights = declared.within_reach(table.rights)
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


def find_undeclared_views(catalogue: Catalogue, relations: Relations, declared: Declaration) -> Iterable[Drift]:
    """Yield views that show our roles rows with the privileges of an owner who sees more of them."""
    views = [
        each
        for each in catalogue.objects
        if each.kind == "VIEW" and declared.is_loophole(each) and declared.within_reach(each.rights)
    ]
    tables = dict(catalogue.rows("view_tables", views=[view.oid for view in views]))
    for view in views:
        for name in sorted({right.grantee for right in declared.within_reach(view.rights)}):
            # The migrator is restricted to one store in tables with stores' rows, and sees all rows of other tables,
            # such as the jobs.
            more = _open_to(view.owner, relations, declared) - _open_to(name, relations, declared)
            hidden = sorted(
                table.sql for table in relations.values() if table.oid in more & {*tables.get(view.oid, ())}
            )
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


def _open_to(name: str, relations: Relations, declared: Declaration) -> set[int]:
    """Return the tables whose declared policies show a role all rows."""
    return {
        relations[access.table].oid
        for access in declared.tables
        if access.table in relations
        for policy in access.policies
        if name in policy.roles and policy.command in ("ALL", "SELECT") and policy.using == "true"
    }


def compare_store_keys(catalogue: Catalogue) -> Iterable[Drift]:
    """Yield same-store keys that are missing or differ: rows could refer to another store's rows."""
    keys = [
        (key.name, model._meta.db_table, *key.reference(model))
        for model in apps.get_models(include_auto_created=True)
        for key in model._meta.constraints
        # In this order: for some models Django asks the server what it supports, as a user who may be locked out.
        if isinstance(key, SameStoreForeignKey)
        and model._meta.can_migrate(catalogue.using)
        and router.allow_migrate_model(catalogue.using, model)
    ]
    relations = catalogue.relations({name for _, table, _, to, _ in keys for name in (table, to._meta.db_table)})
    rows = catalogue.rows("definitions", tables=[relation.oid for relation in relations.values()])
    present = {(oid, name): definition for oid, name, _, _, definition in rows}
    for key_name, table_name, columns, model, to_columns in keys:
        table, to = relations.get(table_name), relations.get(model._meta.db_table)
        if table is None or to is None:
            continue
        own = f"FOREIGN KEY ({identifiers(columns)}) REFERENCES {to.sql} ({identifiers(to_columns)})"
        own += " DEFERRABLE INITIALLY DEFERRED"
        definition = present.get((table.oid, key_name), "none")
        if normal_form(definition.removesuffix(" NOT VALID")) == normal_form(own):
            continue
        alter, name = f"ALTER TABLE {table.sql}", identifier(key_name)
        drop = () if definition == "none" else (f"{alter} DROP CONSTRAINT {name}",)
        add = f"{alter} ADD CONSTRAINT {name} {own} NOT VALID"
        hint = "run the doctor again after it: rows added in the meantime still need to be validated"
        yield Drift("foreign key", f"foreign key {key_name} of {table.where}", own, definition, (*drop, add), hint=hint)


def find_orphans(catalogue: Catalogue) -> Iterable[Drift]:
    """Yield keys with rows that refer to nothing, or that were never validated. Reads both tables of each key.

    Only a role that bypasses row-level security sees all of the rows.
    """
    for name, child, columns, parent, to_columns, is_valid, is_child_forced, is_parent_forced in catalogue.rows(
        "foreign_keys"
    ):
        table, to = identifier(*child), identifier(*parent)
        where = f"foreign key {name} of table {table}"
        present = " AND ".join(f"c.{identifier(column)} IS NOT NULL" for column in columns)
        pairs = zip(map(identifier, to_columns), map(identifier, columns), strict=True)
        match = " AND ".join(f"p.{to_column} = c.{column}" for to_column, column in pairs)
        orphans = f"SELECT c.* FROM {table} AS c WHERE {present} AND NOT EXISTS (SELECT FROM {to} AS p WHERE {match})"
        ((count,),) = catalogue.connection.execute(f"SELECT count(*) FROM ({orphans}) AS orphans".encode()).fetchall()
        if count:
            hint = "this shows them; delete or fix each by hand"
            yield Drift("orphans", where, "no rows that refer to nothing", f"{count:,} rows", (orphans,), True, hint)
        elif not is_valid:
            # When run as the owner, the validation must not be subject to the policies.
            forced = [each for each, is_forced in ((table, is_child_forced), (to, is_parent_forced)) if is_forced]
            fix = (
                *(f"ALTER TABLE {each} NO FORCE ROW LEVEL SECURITY" for each in forced),
                f"ALTER TABLE {table} VALIDATE CONSTRAINT {identifier(name)}",
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
        yield from routine.compare_owner(owner)
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
        usage = [f"GRANT USAGE ON SCHEMA {identifier(function.schema)} TO {owner}"] if function.owner else []
        fix = (*usage, create, f"ALTER FUNCTION {function.signature} OWNER TO {owner}", *grants)
        yield Drift("function", f"function {function.signature}", "a function", "none", fix)
    if declared.roles is not None:
        yield from _find_undeclared_routines(routines.values(), declared_routines, declared)


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
        for name in sorted({right.grantee for right in declared.within_reach(routine.rights)}):
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


def find_publications(catalogue: Catalogue, relations: Relations, declared: Declaration) -> Iterable[Drift]:
    """Yield publications of protected tables: their subscribers get the rows of all stores, without policies."""
    protected = {
        relations[each.table].oid: relations[each.table]
        for each in declared.tables
        if each.is_protected and each.table in relations
    }
    for name, publishes_all, oid in catalogue.rows("publications", tables=list(protected)):
        table = protected[oid]
        verb = f"DROP PUBLICATION {identifier(name)}" if publishes_all else ""
        fix = verb or f"ALTER PUBLICATION {identifier(name)} DROP TABLE {table.sql}"
        hint = "subscribers get the rows of all stores, without policies"
        where = f"publication {name} of {table.where}"
        yield Drift(
            "publication", where, "none", "FOR ALL TABLES" if publishes_all else "published", (fix,), True, hint
        )


def find_server_functions(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield EXECUTE on functions that the server or an extension withholds from PUBLIC, such as pg_read_file."""
    roles = list(declared.names or (declared.owner,))
    for function, name in catalogue.rows("server_functions", roles=roles):
        fix = f"REVOKE EXECUTE ON FUNCTION {function} FROM {grantee(name)}"
        hint = "the server withholds it from everyone but superusers, as it reaches past all policies"
        yield Drift("server function", f"function {function}, role {name}", "no EXECUTE", "EXECUTE", (fix,), hint=hint)


def find_leakproof(catalogue: Catalogue, declared: Declaration) -> Iterable[Drift]:
    """Yield LEAKPROOF functions that PUBLIC or our roles may call, except those of the server and of extensions."""
    routines = {each.oid: each for each in catalogue.objects if each.is_routine}
    for oid, callers in catalogue.rows("leakproof", roles=list(declared.runtime or (declared.owner,))):
        if oid in routines:
            routine = routines[oid]
            who = PUBLIC if PUBLIC in callers else ", ".join(callers)
            yield Drift(
                "leakproof function",
                routine.where,
                "NOT LEAKPROOF",
                f"LEAKPROOF, owned by {routine.owner}; role {who} may call it",
                (f"ALTER {routine.kind} {routine.name} NOT LEAKPROOF",),
                hint="PostgreSQL may call it on rows of other stores, before their policies are checked",
            )
