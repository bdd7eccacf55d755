"""Declarations of who may use the tables and functions of salon_jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from salon_jobs.access.functions import FunctionAccess, Trigger
from salon_jobs.access.policies import ALL_ROWS, Grant, Policy, Privilege, TableAccess, store_condition, unprotected
from salon_jobs.conf import Roles
from salon_jobs.conf import settings as conf
from salon_jobs.db import statements

# What the operator may do besides reading.
_OPERATOR: Final[dict[str, tuple[Privilege, ...]]] = {
    "salon_jobs_job": ("UPDATE", "DELETE"),
    "salon_jobs_job_error": ("DELETE",),
    "salon_jobs_process": (),
    "salon_jobs_cron_entry": (),
    "salon_jobs_cron_tick": (),
    "salon_jobs_superseded": (),
    "salon_jobs_limit": ("INSERT", "UPDATE", "DELETE"),
    "salon_jobs_fan_out": (),
    "salon_jobs_task_minute": (),
    "salon_jobs_queue_minute": (),
    "salon_jobs_message": ("INSERT", "UPDATE", "DELETE"),
    "salon_jobs_blocked_aggregate": ("INSERT", "UPDATE", "DELETE"),
    "salon_jobs_partition": (),
    "salon_jobs_destination": ("INSERT", "UPDATE"),
    "salon_jobs_inbox": ("INSERT", "UPDATE", "DELETE"),
    "salon_jobs_replay": ("INSERT",),
}
TABLES: Final = tuple(_OPERATOR)
# Rows of its current store. It emits and skips messages only through functions.
_WEB_READS: Final = ("salon_jobs_job_error", "salon_jobs_message", "salon_jobs_blocked_aggregate")
# Columns set by an enqueue. Not id, state, lease and others that the workers trust: with those, SQL injected into a web
# process could stop the workers for all stores.
_WEB_INSERTS: Final = (
    "task",
    "store_id",
    "queue",
    "priority",
    "max_attempts",
    "run_at",
    "expires_at",
    "payload",
    "tick",
    "job_key",
    "concurrency_key",
    "trace",
)
_WEB_UPDATES: Final = (
    "payload",
    "queue",
    "priority",
    "max_attempts",
    "run_at",
    "attempts",
    "expires_at",
    "tick",
    "state",
    "reason",
    "finished_at",
    "concurrency_key",
    "cancel_requested_at",
    "trace",
)


def table_access(table: str, roles: Roles) -> TableAccess:
    """Return what is declared for one of ``TABLES``.

    web: its current store's jobs, by row-level security; it inserts what an enqueue sets, updates what keys, cancelling
    and retrying change, never a running job, and leaves none in a state other than queued or cancelled. worker:
    everything. operator: see and change jobs of all stores. migrator: the owner, for data migrations.
    """
    everything = sql.SQL("true")
    everybody = (roles.worker, roles.operator, roles.migrator)
    policies, grants = _web(table, roles.web)
    return TableAccess(
        table=table,
        policies=(
            Policy(name="salon_jobs_all", command="ALL", roles=everybody, using=everything, check=everything),
            *policies,
        ),
        grants=(
            Grant(role=roles.worker, privileges=ALL_ROWS),
            Grant(role=roles.operator, privileges=("SELECT", *_OPERATOR[table])),
            *grants,
        ),
    )


def history_access(roles: Roles) -> TableAccess:
    """Return what is declared for Django's migration history, which has no row-level security.

    Runtime processes check whether migrations are pending; none may rewrite that history.
    """
    grants = tuple(Grant(role=role, privileges=("SELECT",)) for role in roles.runtime)
    return unprotected("django_migrations", grants)


def _web(table: str, web: str) -> tuple[tuple[Policy, ...], tuple[Grant, ...]]:
    own = store_condition("store_id")
    select = Policy(name="salon_jobs_web_select", command="SELECT", roles=(web,), using=own)
    if table in _WEB_READS:
        return (select,), (Grant(role=web, privileges=("SELECT",)),)
    if table != "salon_jobs_job":
        return (), ()
    resting = sql.SQL("{} AND state IN ('queued', 'failed', 'cancelled')").format(own)
    changed_to = sql.SQL("{} AND state IN ('queued', 'cancelled')").format(own)
    policies = (
        select,
        Policy(name="salon_jobs_web_insert", command="INSERT", roles=(web,), check=own),
        Policy(name="salon_jobs_web_update", command="UPDATE", roles=(web,), using=resting, check=changed_to),
    )
    grants = (
        Grant(role=web, privileges=("SELECT",)),
        Grant(role=web, privileges=("INSERT",), columns=_WEB_INSERTS),
        Grant(role=web, privileges=("UPDATE",), columns=_WEB_UPDATES),
    )
    return policies, grants


@dataclass(frozen=True, slots=True)
class _JobFunction:
    """One function: its file in ``salon_jobs/db/sql``, its arguments and the keys of the roles that call it."""

    file: str
    arguments: str
    callers: tuple[str, ...] = ()
    triggers: tuple[Trigger, ...] = ()


_ADD_JOB: Final = (
    "text, jsonb, uuid, text, smallint, smallint, timestamptz, timestamptz, timestamptz, text, text, text, jsonb"
)
_ADD_JOBS: Final = (
    "text, text[], uuid[], text, smallint, smallint, timestamptz, timestamptz, timestamptz, text[], text, text[],"
    " text[], timestamptz[], bigint"
)
_EMIT: Final = "text, text, text, json, json, text, uuid, boolean"
_EMIT_MANY: Final = "uuid[], text[], text[], text[], text[], text[], text"
_FUNCTIONS: Final[Mapping[str, _JobFunction]] = {
    "salon_jobs_add_job": _JobFunction("add_job_function", _ADD_JOB, ("web", "worker")),
    "salon_jobs_add_jobs": _JobFunction("add_jobs_function", _ADD_JOBS, ("web", "worker")),
    "salon_jobs_cancel": _JobFunction("cancel_function", "bigint[]", ("web", "worker", "operator")),
    "salon_jobs_claim": _JobFunction(
        "claim_function", "bigint, text[], integer, timestamptz, text[], float8", ("worker",)
    ),
    "salon_jobs_finish": _JobFunction("finish_function", "bigint, integer, bigint, boolean", ("worker",)),
    "salon_jobs_emit": _JobFunction("emit_function", _EMIT, ("web", "worker")),
    "salon_jobs_emit_many": _JobFunction("emit_many_function", _EMIT_MANY, ("web", "worker")),
    "salon_jobs_gate": _JobFunction("gate_function", "", ("worker", "operator")),
    "salon_jobs_skip_messages": _JobFunction("skip_messages_function", "bigint[]", ("web",)),
    # Trigger functions, which need no EXECUTE. Whoever writes messages holds the relay's gate; a new job supersedes the
    # runs under its key, and jobs without a key call nothing.
    "salon_jobs_hold_gate": _JobFunction(
        "hold_gate_function",
        "",
        triggers=(Trigger("salon_jobs_hold_gate", "BEFORE INSERT", "salon_jobs_message", "FOR EACH STATEMENT"),),
    ),
    "salon_jobs_supersede": _JobFunction(
        "supersede_function",
        "",
        triggers=(
            Trigger(
                "salon_jobs_supersede", "AFTER INSERT", "salon_jobs_job", "FOR EACH ROW WHEN (NEW.job_key IS NOT NULL)"
            ),
            Trigger(
                "salon_jobs_superseded",
                "AFTER UPDATE OF state",
                "salon_jobs_job",
                "FOR EACH ROW WHEN (OLD.state = 'running' AND NEW.state = 'queued' AND NEW.job_key IS NOT NULL)",
            ),
        ),
    ),
}
FUNCTIONS: Final = tuple(_FUNCTIONS)


def job_function(name: str, schema: str, roles: Roles | None) -> FunctionAccess:
    """Return what is declared for one of ``FUNCTIONS`` in the job tables' ``schema``."""
    declared = _FUNCTIONS[name]
    text = statements.load(declared.file).replace("__schema__", sql.Identifier(schema).as_string())
    definition = text.replace("__guc__", conf.store_guc)
    if "__statement__" in definition:
        definition = definition.replace("__statement__", _claim_statement())
    callers = () if roles is None else tuple(getattr(roles, key) for key in declared.callers)
    return FunctionAccess(
        schema=schema,
        name=name,
        arguments=declared.arguments,
        definition=definition,
        callers=callers,
        triggers=declared.triggers,
    )


def fan_out_function(*, table: str, table_schema: str, key: str, roles: Roles | None) -> FunctionAccess:
    """Return what is declared for the function that lists all stores: no arguments, and only ids.

    ``table`` and its ``key`` column are those of the store model. With roles it belongs to the fan-out role.
    """
    schema, name = conf.fan_out_function.split(".")
    create = sql.SQL(
        "CREATE OR REPLACE FUNCTION {function}() RETURNS TABLE (store_id uuid) LANGUAGE sql STABLE SECURITY DEFINER "
        "SET search_path = pg_catalog AS $body$ SELECT s.{key} FROM {table} AS s ORDER BY s.{key} $body$"
    ).format(function=sql.Identifier(schema, name), key=sql.Identifier(key), table=sql.Identifier(table_schema, table))
    return FunctionAccess(
        schema=schema,
        name=name,
        arguments="",
        definition=create.as_string(),
        callers=() if roles is None else (roles.worker,),
        owner=None if roles is None else roles.fan_out_owner,
    )


def fan_out_reads(*, key: str, roles: Roles) -> Grant:
    """Return the grant of that function's owner on the store table: reading the key, nothing more."""
    return Grant(role=roles.fan_out_owner, privileges=("SELECT",), columns=(key,))


def _claim_statement() -> str:
    parameters = ("process_id", "tasks", "room", "now", "queues", "clock")
    return re.sub(r"%\((\w+)\)s", lambda name: f"${parameters.index(name[1]) + 1}", statements.load("claim_due"))
