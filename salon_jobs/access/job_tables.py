"""Declarations of who may use the tables and functions of salon_jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from salon_jobs.access.objects import (
    ALL_ROWS,
    FunctionAccess,
    Policy,
    Privilege,
    Right,
    TableAccess,
    Trigger,
    identifier,
)
from salon_jobs.access.policies import rights_of, store_condition
from salon_jobs.conf import Roles
from salon_jobs.conf import settings as conf
from salon_jobs.db import statements

# What the operator may do in addition to reading.
_OPERATOR: Final[dict[str, tuple[Privilege, ...]]] = {
    "salon_jobs_job": ("UPDATE", "DELETE"),
    "salon_jobs_job_error": ("DELETE",),
    "salon_jobs_job_result": ("DELETE",),
    "salon_jobs_process": (),
    "salon_jobs_cron_entry": (),
    "salon_jobs_cron_tick": (),
    "salon_jobs_superseded": (),
    "salon_jobs_limit": ("INSERT", "UPDATE", "DELETE"),
    "salon_jobs_fan_out": (),
    "salon_jobs_follow_up": ("DELETE",),
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
# Tables that only functions write.
_WORKER_READS: Final = ("salon_jobs_follow_up",)
# Tables of which the web role reads its current store's rows. It emits and skips messages only through functions.
_WEB_READS: Final = (
    "salon_jobs_job_error",
    "salon_jobs_job_result",
    "salon_jobs_message",
    "salon_jobs_blocked_aggregate",
)
# Not id, lease and others that the workers trust: with those, SQL injected into a web process could stop the workers
# for all stores.
_WEB_UPDATES: Final = (
    "queue",
    "priority",
    "max_attempts",
    "run_at",
    "expires_at",
    "state",
    "reason",
    "finished_at",
    "cancel_requested_at",
    "begun_once_at",
)


def table_access(table: str, roles: Roles) -> TableAccess:
    """Return what is declared for one of ``TABLES``.

    The web role reaches its current store's jobs, by row-level security. It adds jobs by functions alone, and updates
    what cancelling and retrying change; it never changes a running job, and leaves none in a state other than queued or
    cancelled. The worker may do everything, the operator see and change the jobs of all stores. The migrator
    owns the tables, for data migrations.
    """
    everybody = (roles.worker, roles.operator, roles.migrator)
    policies, web = _web(table, roles.web)
    return TableAccess(
        table=table,
        policies=(Policy(name="salon_jobs_all", command="ALL", roles=everybody, using="true", check="true"), *policies),
        rights=(
            *(Right(roles.worker, each) for each in (("SELECT",) if table in _WORKER_READS else ALL_ROWS)),
            *(Right(roles.operator, privilege) for privilege in ("SELECT", *_OPERATOR[table])),
            *web,
        ),
    )


def history_access(roles: Roles) -> TableAccess:
    """Return what is declared for Django's migration history, which has no row-level security.

    Runtime processes check whether migrations are pending; none may change the history.
    """
    rights = tuple(Right(role, "SELECT") for role in roles.runtime)
    return TableAccess(table="django_migrations", rights=rights, is_protected=False)


def _web(table: str, web: str) -> tuple[tuple[Policy, ...], tuple[Right, ...]]:
    own = store_condition("store_id")
    select = Policy(name="salon_jobs_web_select", command="SELECT", roles=(web,), using=own)
    if table in _WEB_READS:
        return (select,), (Right(web, "SELECT"),)
    if table != "salon_jobs_job":
        return (), ()
    resting = f"{own} AND state IN ('queued', 'failed', 'cancelled')"
    changed_to = f"{own} AND state IN ('queued', 'cancelled')"
    policies = (
        select,
        Policy(name="salon_jobs_web_update", command="UPDATE", roles=(web,), using=resting, check=changed_to),
    )
    return policies, rights_of(web, {"SELECT": (), "UPDATE": _WEB_UPDATES})


class _JobFunction(NamedTuple):
    """One function, whose file in ``db/sql`` has its name: its arguments, the roles that call it, and its triggers."""

    arguments: str = ""
    callers: tuple[str, ...] = ()
    triggers: tuple[Trigger, ...] = ()


_ADD_JOB: Final = (
    "text, jsonb, uuid, text, smallint, smallint, timestamptz, timestamptz, timestamptz, text, text, text, jsonb,"
    " uuid, interval"
)
_ADD_JOBS: Final = (
    "text, text[], uuid[], text, smallint, smallint, timestamptz, timestamptz, timestamptz, text[], text, text[],"
    " text[], timestamptz[], bigint, uuid, interval"
)
_ENQUEUE: Final = (
    "text, text, uuid, text, smallint, smallint, timestamptz, timestamptz, timestamptz, text, text, uuid, interval"
)
_ADD_FOLLOW_UP: Final = "bigint[], text, text, uuid, text, smallint, smallint, text, text, text, text, uuid, interval"
_CLAIM_GROUPS: Final = (
    "bigint, integer, float8, uuid[], bigint[], integer[], bigint[], bigint[], text[], uuid[], integer[], bigint,"
    " bigint[]"
)
_EMIT: Final = "text, text, text, json, json, text, uuid, boolean"
_EMIT_MANY: Final = "uuid[], text[], text[], text[], text[], text[], text"
_AT_COMMIT: Final = "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
_FUNCTIONS: Final[Mapping[str, _JobFunction]] = {
    "salon_jobs_add_job": _JobFunction(_ADD_JOB, ("web", "worker")),
    "salon_jobs_add_jobs": _JobFunction(_ADD_JOBS, ("web", "worker")),
    "salon_jobs_enqueue": _JobFunction(_ENQUEUE, ("web", "worker")),
    "salon_jobs_add_follow_up": _JobFunction(_ADD_FOLLOW_UP, ("web", "worker")),
    "salon_jobs_enqueue_follow_up": _JobFunction("bigint", ("worker",)),
    "salon_jobs_get_result": _JobFunction("uuid", ("web", "worker")),
    "salon_jobs_cancel": _JobFunction("bigint[]", ("web", "worker", "operator")),
    "salon_jobs_claim": _JobFunction(
        "bigint, text[], integer, timestamptz, text[], float8, bigint, bigint[]", ("worker",)
    ),
    "salon_jobs_claim_groups": _JobFunction(_CLAIM_GROUPS, ("worker",)),
    "salon_jobs_finish": _JobFunction("bigint[], bigint[], bigint, boolean, float8, boolean", ("worker",)),
    "salon_jobs_unheld": _JobFunction("bigint[]", ("worker",)),
    "salon_jobs_unclaimable": _JobFunction("bigint[]", ("worker",)),
    "salon_jobs_emit": _JobFunction(_EMIT, ("web", "worker")),
    "salon_jobs_emit_many": _JobFunction(_EMIT_MANY, ("web", "worker")),
    "salon_jobs_gate": _JobFunction("", ("worker", "operator")),
    "salon_jobs_skip_messages": _JobFunction("bigint[]", ("web",)),
    # Trigger functions, which need no EXECUTE. Writing messages holds the relay's gate; a new job supersedes the runs
    # under its key (jobs without a key call nothing); a tick records the end of its job, whose row goes; jobs of a
    # follow-up are counted at the commit.
    "salon_jobs_hold_gate": _JobFunction(
        triggers=(Trigger("salon_jobs_hold_gate", "BEFORE INSERT", "salon_jobs_message", "FOR EACH STATEMENT"),)
    ),
    "salon_jobs_supersede": _JobFunction(
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
        )
    ),
    "salon_jobs_record_tick": _JobFunction(
        triggers=(
            Trigger(
                "salon_jobs_record_tick",
                "AFTER DELETE",
                "salon_jobs_job",
                "FOR EACH ROW WHEN (OLD.tick IS NOT NULL AND OLD.fan_out_id IS NULL)",
            ),
        )
    ),
    "salon_jobs_follow_up": _JobFunction(
        triggers=(
            Trigger(
                "salon_jobs_follow_up_ended",
                "AFTER UPDATE OF finished_at",
                "salon_jobs_job",
                f"{_AT_COMMIT} WHEN (NEW.follow_up_id IS NOT NULL"
                " AND (OLD.finished_at IS NULL) <> (NEW.finished_at IS NULL))",
                is_constraint=True,
            ),
            Trigger(
                "salon_jobs_follow_up_deleted",
                "AFTER DELETE",
                "salon_jobs_job",
                f"{_AT_COMMIT} WHEN (OLD.follow_up_id IS NOT NULL AND OLD.finished_at IS NULL)",
                is_constraint=True,
            ),
        )
    ),
}
FUNCTIONS: Final = tuple(_FUNCTIONS)


def job_function(name: str, schema: str, roles: Roles | None) -> FunctionAccess:
    """Return what is declared for one of ``FUNCTIONS`` in the job tables' ``schema``."""
    declared = _FUNCTIONS[name]
    text = statements.load(f"{name.removeprefix('salon_jobs_')}_function").replace("__schema__", identifier(schema))
    definition = text.replace("__guc__", conf.store_guc)
    if "__statement__" in definition:
        definition = definition.replace("__statement__", _statement(name, identifier(schema)))
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
    column = identifier(key)
    definition = (
        f"CREATE OR REPLACE FUNCTION {identifier(schema, name)}() RETURNS TABLE (store_id uuid) LANGUAGE sql STABLE "
        f"SECURITY DEFINER SET search_path = pg_catalog AS $body$ SELECT s.{column} "
        f"FROM {identifier(table_schema, table)} AS s ORDER BY s.{column} $body$"
    )
    return FunctionAccess(
        schema=schema,
        name=name,
        arguments="",
        definition=definition,
        callers=() if roles is None else (roles.worker,),
        owner=None if roles is None else roles.fan_out_owner,
    )


def fan_out_reads(*, key: str, roles: Roles) -> Right:
    """Return the only right that the function's owner has on the store table: to read the key."""
    return Right(roles.fan_out_owner, "SELECT", key)


# What replaces ``__statement__`` in a function's file: a statement, and its parameters in the order of the function's.
_STATEMENTS: Final = {
    "salon_jobs_claim": ("claim_due", "process_id tasks room now queues clock lease left_out"),
    "salon_jobs_claim_groups": (
        "claim_by_group",
        "process_id room clock stores numbers quotas lows_us low_ids keys each_store store_quotas lease left_out",
    ),
    "salon_jobs_get_result": ("job_record", "public_id"),
}


def _statement(function: str, schema: str) -> str:
    statement, parameters = _STATEMENTS[function]
    numbers = {name: f"${number}" for number, name in enumerate(parameters.split(), 1)}
    text = re.sub(r"%\((\w+)\)s", lambda found: numbers.get(found[1], "NULL"), statements.load(statement))
    return re.sub(r"\b(FROM|JOIN|UPDATE) (salon_jobs_)", rf"\1 {schema}.\2", text)
