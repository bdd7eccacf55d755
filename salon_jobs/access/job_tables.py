"""Declared rights on the tables of salon_jobs, by their models; and its functions, by their files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any, Final, cast

from django.apps import apps

from salon_jobs.access.declared_objects import (
    FunctionAccess,
    Policy,
    Right,
    TableAccess,
    Trigger,
    arguments_of,
    identifier,
)
from salon_jobs.access.policies import FAN_OUT_POLICY, rights_of, store_condition
from salon_jobs.conf import Roles
from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.rights import Access
from salon_jobs.db import statements

# One file each in ``db/sql``: its definition, and the roles and triggers that call it.
FUNCTIONS: Final = tuple(f"salon_jobs_{name.removesuffix('_function')}" for name in statements.files("*_function"))


@cache
def own_tables() -> Mapping[str, Access]:
    """Return what the models declare of their tables, by name."""
    models = cast("Iterable[Any]", apps.get_app_config("salon_jobs").get_models())
    return {model._meta.db_table: model.access for model in models if not model._meta.proxy}


def table_access(table: str, roles: Roles) -> TableAccess:
    """Return the declared access to one of ``own_tables()``.

    The web role reaches its current store's jobs, by row-level security. It adds jobs only by functions, and updates
    the columns that cancelling and retrying change; it never changes a running job, and leaves no job in a state other
    than queued or cancelled. The worker may do everything, the operator see and change the jobs of all stores. The
    migrator owns the tables, for data migrations. One database user owns them and needs nothing.
    """
    if roles.one_user:
        return TableAccess(table=table, is_protected=False)
    declared, own = own_tables()[table], store_condition("store_id")
    everybody = (roles.worker, roles.operator, roles.migrator)
    policies = [Policy(name="salon_jobs_all", command="ALL", roles=everybody, using="true", check="true")]
    if "SELECT" in declared.web:
        policies.append(Policy(name="salon_jobs_web_select", command="SELECT", roles=(roles.web,), using=own))
    if "DELETE" in declared.web:
        policies.append(Policy(name="salon_jobs_web_delete", command="DELETE", roles=(roles.web,), using=own))
    if "UPDATE" in declared.web:
        resting = f"{own} AND state IN ('queued', 'failed', 'cancelled')"
        changed_to = f"{own} AND state IN ('queued', 'cancelled')"
        policies.append(
            Policy(name="salon_jobs_web_update", command="UPDATE", roles=(roles.web,), using=resting, check=changed_to)
        )
    return TableAccess(
        table=table,
        policies=tuple(policies),
        rights=(
            *rights_of(roles.worker, dict.fromkeys(declared.worker, ())),
            *rights_of(roles.operator, dict.fromkeys(("SELECT", *declared.operator), ())),
            *rights_of(roles.web, declared.web),
        ),
    )


def history_access(roles: Roles) -> TableAccess:
    """Return the declared access to Django's migration history, which has no row-level security.

    Runtime processes check whether migrations are pending; none may change the history.
    """
    rights = tuple(Right(role, "SELECT") for role in roles.runtime)
    return TableAccess(table="django_migrations", rights=rights, is_protected=False)


_PLACEHOLDER: Final = re.compile(r"__(\w+?)__")
_TRIGGER: Final = re.compile(r"(CREATE (?:OR REPLACE|CONSTRAINT) TRIGGER (\w+)[^;]+? ON \S+\.(\w+)[^;]+);")


def job_function(name: str, schema: str, roles: Roles) -> FunctionAccess:
    """Return the declaration of one of ``FUNCTIONS`` in the job tables' ``schema``.

    Its file grants EXECUTE to roles by their keys in ``ROLES``, and creates its triggers. No role may call a trigger
    function. ``__name__`` of another file in a body stands for that statement, with the function's arguments as its
    parameters.
    """
    text = statements.load(f"{name.removeprefix('salon_jobs_')}_function")
    declared, _, uses = text.replace("__schema__", identifier(schema)).partition("$body$;")
    numbers = {argument: f"${number}" for number, argument in enumerate(arguments_of(declared), 1)}

    def fill(placeholder: re.Match[str]) -> str:
        if placeholder[1] == "guc":
            return conf.store_guc
        statement = re.sub(r"%\((\w+)\)s", lambda found: numbers.get(found[1], "NULL"), statements.load(placeholder[1]))
        return re.sub(r"\b(FROM|JOIN|UPDATE) (salon_jobs_)", rf"\1 {identifier(schema)}.\2", statement)

    return FunctionAccess(
        schema=schema,
        name=name,
        definition=f"{_PLACEHOLDER.sub(fill, declared)}$body$",
        callers=tuple(name for key in _PLACEHOLDER.findall(uses) if (name := getattr(roles, key))),
        triggers=tuple(
            Trigger(trigger, schema, table, " ".join(create.split()))
            for create, trigger, table in _TRIGGER.findall(uses)
        ),
    )


def fan_out_function(*, table: str, table_schema: str, key: str, roles: Roles) -> FunctionAccess:
    """Return the declaration of the function that lists all stores: no arguments, and only ids.

    ``table`` and its ``key`` column are those of the store model. With roles it belongs to the fan-out role.
    """
    schema, name = conf.fan_out_function.split(".")
    column, kind = identifier(key), store_key().sql
    cast = "" if kind == "uuid" else f"::{kind}"
    definition = (
        f"CREATE OR REPLACE FUNCTION {identifier(schema, name)}() RETURNS TABLE (store_id {kind}) LANGUAGE sql STABLE "
        f"SECURITY DEFINER SET search_path = pg_catalog AS $body$ SELECT s.{column}{cast} "
        f"FROM {identifier(table_schema, table)} AS s ORDER BY s.{column} $body$"
    )
    return FunctionAccess(
        schema=schema,
        name=name,
        definition=definition,
        callers=tuple(filter(None, [roles.worker])),
        owner=roles.fan_out_owner or None,
    )


def fan_out_reads(*, key: str, roles: Roles, bound: Collection[str]) -> tuple[Right, tuple[Policy, ...]]:
    """Return the only right that the function's owner has on the store table, to read the key.

    And a policy that shows it all rows, if the owner is one of the ``bound`` ones, which cannot bypass row-level
    security.
    """
    owner = roles.fan_out_owner
    policy = Policy(name=FAN_OUT_POLICY, command="SELECT", roles=(owner,), using="true")
    return Right(owner, "SELECT", key), (policy,) if owner in bound else ()
