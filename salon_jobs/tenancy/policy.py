"""Builds the policies of store-owned tables; nothing else writes their text.

The sub-select form is deliberate: the planner evaluates it once and keeps the index (a function or an OR'ed admin
policy made the same query 40 to 300 times slower on 500,000 rows), and a server-side cursor that outlives a change of
the setting goes on with the old store alone.
"""

from __future__ import annotations

from psycopg import sql

from salon_jobs.conf import settings as conf
from salon_jobs.tenancy.access import Policy, TableAccess

POLICY_NAME = "salon_jobs_store"


def store_condition(column: str) -> sql.Composed:
    """Return the condition that shows the current store's rows: none when no store is set."""
    return sql.SQL("{} = (SELECT NULLIF(current_setting({}, true), '')::uuid)").format(
        sql.Identifier(column), sql.Literal(conf.store_guc)
    )


def store_access(table: str, column: str, *, force: bool = True) -> TableAccess:
    """Return what lets the web and worker roles (with one database user: everybody) at the current store's rows."""
    condition = store_condition(column)
    roles = () if conf.roles is None else (conf.roles.web, conf.roles.worker)
    policy = Policy(name=POLICY_NAME, command="ALL", roles=roles, using=condition, check=condition)
    return TableAccess(table=table, policies=(policy,), force=force)
