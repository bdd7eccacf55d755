"""Everything declared for one database: roles, tables and functions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pgtrigger
from django.apps import apps
from django.db import connections, router
from django.db.models import Model

from salon_jobs.access.constraints import AccessConstraint, DatabaseForeignKey
from salon_jobs.access.declared_objects import PUBLIC, FunctionAccess, Right, TableAccess, Trigger, identifier
from salon_jobs.access.doctor.catalogue import Catalogue, CatalogueObject, Relation
from salon_jobs.access.job_tables import (
    FUNCTIONS,
    fan_out_function,
    fan_out_reads,
    history_access,
    job_function,
    own_tables,
    table_access,
)
from salon_jobs.access.operations.access import declarations
from salon_jobs.access.policies import open_to_owners
from salon_jobs.access.roles import DefaultPrivileges, RoleSpec, named_roles
from salon_jobs.conf import Roles
from salon_jobs.conf import settings as conf


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The declared state, with which the catalogue is compared. With one database user there are no ``named`` roles.

    ``owner`` is the owner of schema, tables and functions: the migrator, or the one database user. ``relations`` are
    the tables that exist, by name: the declared ones and, for ``declare``, those of all models.
    """

    roles: Roles
    named: tuple[tuple[RoleSpec, str], ...]
    owner: str
    tables: tuple[TableAccess, ...]
    relations: Mapping[str, Relation] = field(default_factory=dict[str, Relation])
    functions: tuple[FunctionAccess, ...] = ()
    models: Mapping[type[Model], AccessConstraint] = field(default_factory=dict[type[Model], AccessConstraint])
    foreign_keys: tuple[tuple[DatabaseForeignKey, type[Model]], ...] = ()

    @property
    def present(self) -> list[tuple[TableAccess, Relation]]:
        """The declared tables that exist."""
        return [(access, self.relations[access.table]) for access in self.tables if access.table in self.relations]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for _, name in self.named)

    @property
    def runtime(self) -> tuple[str, ...]:
        return self.roles.runtime

    @property
    def owner_roles(self) -> tuple[str, ...]:
        """Roles that own narrow functions and see all rows."""
        return tuple(name for spec, name in self.named if spec.owns_functions)

    @property
    def guarded(self) -> tuple[str, ...]:
        """Roles that no other role may join: the migrator and the owners."""
        return tuple(name for spec, name in self.named if spec.is_guarded)

    @property
    def default_privileges(self) -> tuple[DefaultPrivileges, ...]:
        return tuple(each for spec, name in self.named for each in spec.default_privileges(name, self.owner))

    def covered(self, rights: Iterable[Right], exempt: Collection[str]) -> set[Right]:
        """Return the rights to compare: with one database user those of PUBLIC, else all except those of ``exempt``."""
        return {
            right
            for right in rights
            if right.grantee == PUBLIC or (not self.roles.one_user and right.grantee not in exempt)
        }

    def of_runtime_roles(self, rights: Iterable[Right]) -> set[Right]:
        """Return the rights of runtime roles and PUBLIC."""
        return {right for right in rights if right.grantee == PUBLIC or right.grantee in self.runtime}

    def is_loophole(self, each: CatalogueObject) -> bool:
        """Return whether a view or function shows its users rows that only its owner may see."""
        sees_more = each.owner_bypasses or each.owner in (self.owner, *self.owner_roles)
        return each.runs_as_owner and not each.is_of_extension and sees_more


def declare_tables(catalogue: Catalogue, *others: str) -> Declaration:
    """Return the declared roles and tables; ``others`` are further tables to look up."""
    using, roles, store = catalogue.using, conf.roles, _store_table()
    tables = [*(table_access(name, roles) for name in own_tables()), history_access(roles)]
    models = declarations()
    for model, constraint in models.items():
        if router.allow_migrate_model(using, model):
            access = constraint.access(model, roles, using=using)
            if not roles.one_user and store is not None and access.table == store[0]:
                reads, policies = fan_out_reads(key=store[1], roles=roles, bound=catalogue.bound_owners)
                access = replace(access, rights=(*access.rights, reads), policies=(*access.policies, *policies))
            tables.append(open_to_owners(access, roles, catalogue.bound_owners))
    return Declaration(
        roles=roles,
        named=named_roles(roles),
        owner=roles.migrator or str(connections[using].settings_dict.get("USER") or catalogue.role),
        tables=tuple(tables),
        models=models,
        relations=catalogue.relations({*others, *(name for each in tables for name in (each.table, *each.reads))}),
    )


def declare(catalogue: Catalogue) -> Declaration:
    """Return the whole declaration. Raises SchemaMissing if the job tables do not exist."""
    roles, store = conf.roles, _store_table()
    keys = tuple(
        (key, model)
        for model in apps.get_models(include_auto_created=True)
        for key in model._meta.constraints
        # In this order: for some models Django asks the server for its features, as a user who may be locked out.
        if isinstance(key, DatabaseForeignKey)
        and model._meta.can_migrate(catalogue.using)
        and router.allow_migrate_model(catalogue.using, model)
    )
    of_models = {model._meta.db_table for model in apps.get_models(include_auto_created=True)}
    declared = declare_tables(catalogue, *of_models)
    relations = declared.relations
    if "salon_jobs_job" not in relations:
        raise catalogue.missing_tables()
    functions = [job_function(name, relations["salon_jobs_job"].schema, roles) for name in FUNCTIONS]
    if store is not None and store[0] in relations:
        table, key = store
        functions.append(fan_out_function(table=table, table_schema=relations[table].schema, key=key, roles=roles))
    functions += _functions_of_pgtrigger(table for _, table in declared.present)
    return replace(declared, functions=tuple(functions), foreign_keys=keys)


def names_of_django() -> set[str]:
    return {
        model._meta.db_table
        for model in apps.get_models(include_auto_created=True)
        if model.__module__.startswith("django.contrib.")
    }


_FUNCTION: Final = re.compile(
    r"CREATE OR REPLACE FUNCTION (\S+)\((.*?)\)\s+RETURNS (\w+) AS \$\$(.*?)\$\$ LANGUAGE plpgsql;", re.DOTALL
)


def _functions_of_pgtrigger(tables: Iterable[Relation]) -> list[FunctionAccess]:
    """Return pgtrigger's functions for these tables: the shared one, and one with its trigger for each guard."""
    by_name = {table.name: table for table in tables}
    found: dict[str, FunctionAccess] = {}
    for model, guard in pgtrigger.registered():
        if (table := by_name.get(model._meta.db_table)) is None:
            continue
        sql = guard.compile(model).sql
        words = {**sql.defaults, **sql.kwargs}
        trigger = Trigger(
            sql.pgid,
            table.schema,
            table.name,
            f"CREATE {'CONSTRAINT' if words['constraint'] else 'OR REPLACE'} TRIGGER {sql.pgid} {words['when']}"
            f" {words['operation']} ON {table.sql} {words['timing']} {words['referencing']} FOR EACH {words['level']}"
            f" {words['condition']} EXECUTE FUNCTION {identifier(table.schema, sql.pgid)}()",
            comment=sql.hash,
        )
        for qualified, arguments, returns, body in _FUNCTION.findall(str(sql)):
            schema, _, name = qualified.rpartition(".")
            schema = schema.strip('"') or table.schema
            function = FunctionAccess(
                schema=schema,
                name=name,
                definition=f"CREATE OR REPLACE FUNCTION {identifier(schema, name)}({arguments})"
                f" RETURNS {returns} LANGUAGE plpgsql AS $body${body}$body$",
                callers=None,
                triggers=(trigger,) if name == sql.pgid else (),
            )
            found[function.signature] = function
    return list(found.values())


def _store_table() -> tuple[str, str] | None:
    if conf.store_model is None:
        return None
    meta: Any = apps.get_model(conf.store_model)._meta
    return str(meta.db_table), str(meta.pk.column)
