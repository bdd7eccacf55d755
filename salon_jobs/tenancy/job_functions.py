"""Declares the functions of salon_jobs: what each is made of, and which roles call it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from salon_jobs import sql as statements
from salon_jobs.conf import Roles
from salon_jobs.conf import settings as conf
from salon_jobs.tenancy.access import Grant
from salon_jobs.tenancy.functions import FunctionAccess


@dataclass(frozen=True, slots=True)
class _JobFunction:
    """Names its file in ``salon_jobs/sql``, its arguments and the keys of the roles that call it."""

    file: str
    arguments: str
    callers: tuple[str, ...] = ()


_ADD_JOB: Final = (
    "text, jsonb, uuid, text, smallint, smallint, timestamptz, timestamptz, timestamptz, text, text, text, jsonb"
)
_ADD_JOBS: Final = "text, text[], text, smallint, smallint, timestamptz, timestamptz, timestamptz, text[], text[]"
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
    # Of triggers, which need no EXECUTE.
    "salon_jobs_hold_gate": _JobFunction("hold_gate_function", ""),
    "salon_jobs_supersede": _JobFunction("supersede_function", ""),
}
FUNCTIONS: Final = tuple(_FUNCTIONS)


def job_function(name: str, schema: str, roles: Roles | None, *, file: str | None = None) -> FunctionAccess:
    """Return what is declared of one of ``FUNCTIONS`` beside the job tables of ``schema``.

    ``file`` names an earlier definition in ``salon_jobs/sql``.
    """
    declared = _FUNCTIONS[name]
    text = statements.load(file or declared.file).replace("__schema__", sql.Identifier(schema).as_string())
    definition = text.replace("__guc__", conf.store_guc)
    if "__statement__" in definition:
        definition = definition.replace("__statement__", _claim_statement())
    callers = () if roles is None else tuple(getattr(roles, key) for key in declared.callers)
    return FunctionAccess(
        schema=schema, name=name, arguments=declared.arguments, definition=definition, callers=callers
    )


def fan_out_function(*, table: str, table_schema: str, key: str, roles: Roles | None) -> FunctionAccess:
    """Return what is declared of the one function that lists all stores: no arguments, ids alone.

    ``table`` and its ``key`` column are those of the store model. With roles it belongs to the fan-out role.
    """
    schema, name = conf.fan_out_function.split(".")
    create = sql.SQL(
        "CREATE OR REPLACE FUNCTION {function}() RETURNS TABLE (store_id uuid) LANGUAGE sql STABLE SECURITY DEFINER "
        "SET search_path = pg_catalog AS $body$ SELECT s.{key} FROM {table} AS s ORDER BY s.{key} $body$"
    ).format(function=sql.Identifier(schema, name), key=sql.Identifier(key), table=sql.Identifier(table_schema, table))
    return FunctionAccess(
        schema=schema, name=name, arguments="", definition=create.as_string(),
        callers=() if roles is None else (roles.worker,), owner=None if roles is None else roles.fan_out_owner,
    )  # fmt: skip


def fan_out_reads(*, key: str, roles: Roles) -> Grant:
    """Return what the owner of that function may do on the store's table: read the key, no more."""
    return Grant(role=roles.fan_out_owner, privileges=("SELECT",), columns=(key,))


def _claim_statement() -> str:
    given = ("process_id", "tasks", "room", "now", "queues", "clock")
    return re.sub(r"%\((\w+)\)s", lambda name: f"${given.index(name[1]) + 1}", statements.load("claim_due"))
