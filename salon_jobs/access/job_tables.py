"""Declared rights on the tables of salon_jobs; and its functions, as declared in their files."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from salon_jobs.access.declared_objects import (
    ALL_ROWS,
    FunctionAccess,
    Policy,
    Privilege,
    Right,
    TableAccess,
    Trigger,
    arguments_of,
    identifier,
)
from salon_jobs.access.policies import FAN_OUT_POLICY, Privileges, rights_of, store_condition
from salon_jobs.conf import Roles
from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_key
from salon_jobs.db import statements


class JobTable(NamedTuple):
    """Rights of web and worker on a table, besides the worker's full rights and the operator's SELECT; its storage.

    ``web``: on the current store's rows only, and the columns it may update. ``worker`` may only read tables that only
    functions write.
    """

    operator: tuple[Privilege, ...] = ()
    web: Privileges = MappingProxyType({})
    worker: tuple[Privilege, ...] = ALL_ROWS
    storage: Mapping[str, float] = MappingProxyType({})


_READ: Final[Privileges] = {"SELECT": ()}
TABLES: Final[Mapping[str, JobTable]] = {
    "salon_jobs_job": JobTable(
        operator=("UPDATE", "DELETE"),
        web={
            "SELECT": (),
            # Not id, lease and others that the workers trust: with those, SQL injected into a web process could stop
            # the workers for all stores.
            "UPDATE": (
                *("queue", "priority", "max_attempts", "run_at", "expires_at"),
                *("state", "reason", "finished_at", "cancel_requested_at", "begun_once_at"),
            ),
        },
        # A job is three row versions within seconds: inserted, claimed, deleted. With the server's defaults, a table
        # that once held a million rows is vacuumed after 200,000 dead ones, and deliberately slowly; until then each
        # claim reads past them. So the threshold is fixed, and vacuum runs at full speed. The TOAST table holds long
        # payloads. Half of a page is free for the versions of running jobs: an update that has to leave the page logs a
        # lock of the old version first, and then the whole of the new one (a fifth of the WAL of a job).
        storage={
            "autovacuum_vacuum_scale_factor": 0,
            "autovacuum_vacuum_threshold": 5000,
            "autovacuum_vacuum_cost_delay": 0,
            "autovacuum_analyze_scale_factor": 0,
            "autovacuum_analyze_threshold": 5000,
            "toast.autovacuum_vacuum_scale_factor": 0,
            "toast.autovacuum_vacuum_threshold": 5000,
            "toast.autovacuum_vacuum_cost_delay": 0,
            "fillfactor": 50,
        },
    ),
    "salon_jobs_job_error": JobTable(operator=("DELETE",), web=_READ),
    "salon_jobs_job_result": JobTable(operator=("DELETE",), web=_READ),
    "salon_jobs_job_progress": JobTable(operator=("DELETE",), web=_READ),
    # A retry from the start, which a store may request, deletes them.
    "salon_jobs_job_step": JobTable(operator=("DELETE",), web={"SELECT": (), "DELETE": ()}),
    "salon_jobs_superseded": JobTable(),
    "salon_jobs_fan_out": JobTable(),
    "salon_jobs_unique": JobTable(),
    "salon_jobs_follow_up": JobTable(operator=("DELETE",), worker=("SELECT",)),
    # Read by the web for its store; written by functions only.
    "salon_jobs_flow": JobTable(operator=("DELETE",), web=_READ, worker=("SELECT", "UPDATE", "DELETE")),
    "salon_jobs_flow_member": JobTable(operator=("DELETE",), web=_READ, worker=("SELECT", "DELETE")),
    "salon_jobs_flow_edge": JobTable(operator=("DELETE",), web=_READ, worker=("SELECT", "DELETE")),
    # Written and deleted by triggers within one transaction: no row is ever live when a vacuum looks.
    "salon_jobs_change": JobTable(
        worker=(),
        storage={
            "autovacuum_vacuum_scale_factor": 0,
            "autovacuum_vacuum_threshold": 5000,
            "autovacuum_vacuum_cost_delay": 0,
        },
    ),
    # A waiting job is written once and deleted once; the key's row changes with each job that gets its turn.
    "salon_jobs_ordered_key": JobTable(operator=("DELETE",), web=_READ, worker=("SELECT",), storage={"fillfactor": 70}),
    "salon_jobs_ordered_job": JobTable(operator=("DELETE",), web=_READ, worker=("SELECT",)),
    "salon_jobs_process": JobTable(),
    "salon_jobs_ended_process": JobTable(),
    "salon_jobs_limit": JobTable(operator=("INSERT", "UPDATE", "DELETE")),
    "salon_jobs_rate": JobTable(operator=("DELETE",)),
    "salon_jobs_cron_entry": JobTable(operator=("UPDATE",)),
    "salon_jobs_cron_tick": JobTable(),
    # Each tick is a new version with another place in the index of those that are due.
    "salon_jobs_schedule": JobTable(
        operator=("UPDATE", "DELETE"),
        web=_READ,
        storage={
            "autovacuum_vacuum_scale_factor": 0.02,
            "autovacuum_vacuum_threshold": 5000,
            "autovacuum_vacuum_cost_delay": 0,
        },
    ),
    "salon_jobs_schedule_tick": JobTable(operator=("DELETE",), web=_READ),
    # Each row of the current minute is updated by every process every few seconds, and never afterwards. No indexed
    # column changes: with free space in its page such an update touches no index and leaves nothing to vacuum.
    "salon_jobs_task_minute": JobTable(storage={"fillfactor": 70}),
    "salon_jobs_queue_minute": JobTable(),
    "salon_jobs_message": JobTable(
        operator=("INSERT", "UPDATE", "DELETE"),
        web=_READ,
        # A message is two row versions within milliseconds: written, published.
        storage={
            "autovacuum_vacuum_scale_factor": 0,
            "autovacuum_vacuum_threshold": 20000,
            "autovacuum_vacuum_cost_delay": 0,
            "autovacuum_vacuum_insert_scale_factor": 0,
            "autovacuum_vacuum_insert_threshold": 100000,
            "autovacuum_analyze_scale_factor": 0.02,
        },
    ),
    "salon_jobs_blocked_aggregate": JobTable(operator=("INSERT", "UPDATE", "DELETE"), web=_READ),
    # One row per partition or destination, updated every few seconds.
    "salon_jobs_partition": JobTable(storage={"fillfactor": 50}),
    "salon_jobs_destination": JobTable(operator=("INSERT", "UPDATE"), storage={"fillfactor": 50}),
    "salon_jobs_replay": JobTable(operator=("INSERT",)),
    "salon_jobs_inbox": JobTable(operator=("INSERT", "UPDATE", "DELETE")),
}
# One file each in ``db/sql``: its definition, and the roles and triggers that call it.
FUNCTIONS: Final = tuple(f"salon_jobs_{name.removesuffix('_function')}" for name in statements.files("*_function"))


def table_access(table: str, roles: Roles) -> TableAccess:
    """Return the declared access to one of ``TABLES``.

    The web role reaches its current store's jobs, by row-level security. It adds jobs only by functions, and updates
    the columns that cancelling and retrying change; it never changes a running job, and leaves no job in a state other
    than queued or cancelled. The worker may do everything, the operator see and change the jobs of all stores. The
    migrator owns the tables, for data migrations. One database user owns them and needs nothing.
    """
    if roles.one_user:
        return TableAccess(table=table, is_protected=False)
    declared, own = TABLES[table], store_condition("store_id")
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
