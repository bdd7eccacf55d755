"""Declares who may do what on the tables of salon_jobs."""

from __future__ import annotations

from typing import Final

from psycopg import sql

from salon_jobs.conf import Roles
from salon_jobs.tenancy.access import ALL_ROWS, Grant, Policy, Privilege, TableAccess
from salon_jobs.tenancy.policy import store_condition

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
# Its current store's rows. It emits and skips messages by functions alone.
_WEB_READS: Final = ("salon_jobs_job_error", "salon_jobs_message", "salon_jobs_blocked_aggregate")
# What an enqueue gives. Not id, state, lease and what else the workers trust: SQL smuggled into a web process could
# stop them with it, for all stores.
_WEB_INSERTS: Final = (
    "task", "store_id", "queue", "priority", "max_attempts", "run_at", "expires_at", "payload", "tick", "job_key",
    "concurrency_key", "trace",
)  # fmt: skip
_WEB_UPDATES: Final = (
    "payload", "queue", "priority", "max_attempts", "run_at", "attempts", "expires_at", "tick", "state", "reason",
    "finished_at", "concurrency_key", "cancel_requested_at", "trace",
)  # fmt: skip


def table_access(table: str, roles: Roles) -> TableAccess:
    """Return what is declared of one of ``TABLES``.

    web: its current store's jobs, by row-level security; it gives what an enqueue gives, changes what keys, cancelling
    and retrying change, never a running job, and leaves none in another state than queued or cancelled.
    worker: everything. operator: see and change jobs of all stores. migrator: the owner, for data migrations.
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
    """Return what is declared of Django's history of migrations, which has no row-level security.

    Runtimes look whether migrations are pending; none may rewrite that history.
    """
    grants = tuple(Grant(role=role, privileges=("SELECT",)) for role in roles.runtime)
    return TableAccess(table="django_migrations", policies=(), grants=grants, force=False)


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
