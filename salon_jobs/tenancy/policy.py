"""Builds the policies of the business's tables; nothing else writes their text.

The sub-select form is deliberate: the planner evaluates it once and keeps the index (a function or an OR'ed admin
policy made the same query 40 to 300 times slower on 500,000 rows), and a server-side cursor that outlives a change of
the setting goes on with the old store alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from psycopg import sql

from salon_jobs.conf import Roles
from salon_jobs.conf import settings as conf
from salon_jobs.tenancy.access import (
    ALL_ROWS,
    Policy,
    Privilege,
    Privileges,
    TableAccess,
    grants_of,
    policies_by_command,
)

STORE_POLICY: Final = "salon_jobs_store"
SYSTEM_POLICY: Final = "salon_jobs_system"
MEMBERSHIP_POLICY: Final = "salon_jobs_membership"


def store_condition(column: str) -> sql.Composed:
    """Return the condition that shows the current store's rows: none when no store is set."""
    return sql.SQL("{} = (SELECT NULLIF(current_setting({}, true), '')::uuid)").format(
        sql.Identifier(column), sql.Literal(conf.store_guc)
    )


def user_condition(column: str, type_name: str) -> sql.Composed:
    """Return the condition that shows the signed-in user's rows; ``type_name`` is the PostgreSQL type of the key."""
    return sql.SQL("{} = (SELECT NULLIF(current_setting({}, true), '')::{})").format(
        sql.Identifier(column),
        sql.Literal(conf.user_guc),
        sql.SQL(type_name),  # pyright: ignore[reportArgumentType] - of Django's field, not of anybody's input
    )


def store_access(
    table: str, column: str, *, roles: Roles | None, web: Privileges, worker: Privileges, is_store: bool = False
) -> TableAccess:
    """Return what lets each role at the current store's rows, by what it may do there, and at no others.

    The migrator is held to it as well: its data migrations go from store to store. With one database user the policies
    are TO PUBLIC and for all commands; the store table itself is then not FORCEd, since the fan-out function belongs to
    that user and must list the stores.
    """
    condition = store_condition(column)
    if roles is None:
        everybody = policies_by_command(STORE_POLICY, condition, dict.fromkeys(ALL_ROWS, ()))
        return TableAccess(table=table, policies=everybody, force=not is_store)
    return _for_roles(table, STORE_POLICY, condition, roles=roles, web=web, worker=worker)


def system_access(table: str, *, roles: Roles, web: Privileges, worker: Privileges) -> TableAccess:
    """Return what lets each role at all rows of a table without a store, by what it may do there."""
    return _for_roles(table, SYSTEM_POLICY, sql.SQL("true"), roles=roles, web=web, worker=worker)


def _for_roles(
    table: str, prefix: str, condition: sql.Composable, *, roles: Roles, web: Privileges, worker: Privileges
) -> TableAccess:
    may = {roles.web: web, roles.worker: worker}
    who: Mapping[Privilege, tuple[str, ...]] = {
        command: names for command in ALL_ROWS if (names := tuple(role for role in may if command in may[role]))
    }
    return TableAccess(
        table=table,
        policies=(
            *policies_by_command(prefix, condition, who),
            Policy(name=f"{prefix}_migrator", command="ALL", roles=(roles.migrator,), using=condition, check=condition),
        ),
        grants=(*grants_of(roles.web, web), *grants_of(roles.worker, worker)),
    )
