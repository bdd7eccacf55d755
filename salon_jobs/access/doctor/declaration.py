"""Everything declared for one database: roles, tables and functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from django.apps import apps
from django.db import connections, router

from salon_jobs.access.constraints import SameStoreForeignKey
from salon_jobs.access.doctor.catalogue import Catalogue
from salon_jobs.access.functions import FunctionAccess
from salon_jobs.access.job_tables import (
    FUNCTIONS,
    TABLES,
    fan_out_function,
    fan_out_reads,
    history_access,
    job_function,
    table_access,
)
from salon_jobs.access.operations.for_hosts import declarations
from salon_jobs.access.policies import TableAccess
from salon_jobs.access.roles import DefaultPrivileges, RoleSpec, named_roles
from salon_jobs.conf import Roles
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import SchemaMissing


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKey:
    """One composite foreign key to a row of the same store."""

    name: str
    table: str
    columns: tuple[str, ...]
    to_table: str
    to_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What the catalogue is compared with. With one database user there are no ``named`` roles.

    ``owner`` owns schema, tables and functions: the migrator, or the one database user. ``protected`` tables are under
    row-level security, ``plain`` ones are not.
    """

    roles: Roles | None
    named: tuple[tuple[RoleSpec, str], ...]
    owner: str
    store_guc: str
    protected: tuple[TableAccess, ...]
    plain: tuple[TableAccess, ...]
    functions: tuple[FunctionAccess, ...] = ()
    keys: tuple[StoreKey, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all roles."""
        return tuple(name for _, name in self.named)

    @property
    def owner_roles(self) -> tuple[str, ...]:
        """Roles that own narrow functions and bypass row-level security."""
        return tuple(name for spec, name in self.named if spec.owns_functions)

    @property
    def guarded(self) -> tuple[str, ...]:
        """Roles that no other may become: the migrator and the owners."""
        return tuple(name for spec, name in self.named if spec.owns_functions or spec.owns_schema)

    @property
    def default_privileges(self) -> tuple[DefaultPrivileges, ...]:
        """Default privileges on new objects."""
        return tuple(each for spec, name in self.named for each in spec.default_privileges(name, self.owner))


def declare_tables(*, owner: str = "") -> Declaration:
    """Return what is declared for roles and tables; without roles, ``owner`` is the one database user."""
    roles = conf.roles
    protected = [] if roles is None else [table_access(name, roles) for name in TABLES]
    plain = [*map(_plain, TABLES), _plain("django_migrations")] if roles is None else [history_access(roles)]
    for model, constraint in declarations().items():
        if not router.allow_migrate_model(conf.database, model):
            continue
        access = constraint.access(model, roles)
        if access is None:
            plain.append(_plain(model._meta.db_table))
        else:
            protected.append(_with_the_fan_out(access))
    return Declaration(
        roles=roles,
        named=() if roles is None else named_roles(roles, conf.extra_owner_roles),
        owner=owner if roles is None else roles.migrator,
        store_guc=conf.store_guc,
        protected=tuple(protected),
        plain=tuple(plain),
    )


def declare(catalogue: Catalogue) -> Declaration:
    """Return everything that is declared. Raises SchemaMissing if the job tables do not exist."""
    roles = conf.roles
    user = str(connections[conf.database].settings_dict.get("USER") or catalogue.role)
    job_table = catalogue.relations(["salon_jobs_job"]).get("salon_jobs_job")
    if job_table is None:
        raise SchemaMissing("the job tables are missing; run: python manage.py migrate")
    functions = [job_function(name, job_table.schema, roles) for name in FUNCTIONS]
    if (store := _store_table()) is not None:
        table, key = store
        found = catalogue.relations([table]).get(table)
        if found is not None:
            functions.append(fan_out_function(table=table, table_schema=found.schema, key=key, roles=roles))
    return replace(declare_tables(owner=user), functions=tuple(functions), keys=tuple(_store_keys()))


def _store_keys() -> Iterable[StoreKey]:
    for model in apps.get_models(include_auto_created=True):
        if not model._meta.can_migrate(conf.database) or not router.allow_migrate_model(conf.database, model):
            continue
        for key in model._meta.constraints:
            if isinstance(key, SameStoreForeignKey):
                columns, to, to_columns = key.reference(model)
                yield StoreKey(
                    name=key.name,
                    table=model._meta.db_table,
                    columns=tuple(columns),
                    to_table=to._meta.db_table,
                    to_columns=tuple(to_columns),
                )


def _plain(table: str) -> TableAccess:
    return TableAccess(table=table, policies=(), force=False)


def _with_the_fan_out(access: TableAccess) -> TableAccess:
    """Add to the store table what the owner of the fan-out function reads there."""
    store = _store_table()
    if conf.roles is None or store is None or access.table != store[0]:
        return access
    return replace(access, grants=(*access.grants, fan_out_reads(key=store[1], roles=conf.roles)))


def _store_table() -> tuple[str, str] | None:
    if conf.store_model is None:
        return None
    meta: Any = apps.get_model(conf.store_model)._meta
    return str(meta.db_table), str(meta.pk.column)
