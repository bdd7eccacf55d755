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
# PostgreSQL quotes it: invalid input syntax for type uuid: "no store is set: …".
NO_STORE: Final = "no store is set: in a migration use RunForEachStore"
_TEXTS: Final = ("varchar", "text")
DEMAND_GUC: Final = "salon_jobs.no_store"


def store_condition(column: str) -> sql.Composed:
    """Return the condition that shows the current store's rows: none when no store is set."""
    return sql.SQL("{} = (SELECT {}::uuid)").format(sql.Identifier(column), _setting(conf.store_guc))


def guarded_condition(column: str, *, roles: Roles | None) -> sql.Composed:
    """Return the condition that fails, instead of showing no row of many, when a migration has set no store.

    What is no uuid takes the place of the store that is not set: with roles always, since only the migrator is held to
    this condition; with one database user what ``DEMAND_GUC`` says, which is nothing unless ``migrate`` runs.
    """
    otherwise = _setting(DEMAND_GUC) if roles is None else sql.Literal(NO_STORE)
    return sql.SQL("{} = (SELECT COALESCE({}, {})::uuid)").format(
        sql.Identifier(column), _setting(conf.store_guc), otherwise
    )


def user_condition(column: str, type_name: str) -> sql.Composed:
    """Return the condition that shows the signed-in user's rows; ``type_name`` is the PostgreSQL type of the key."""
    # Without a length, which would cut a longer key off until it is somebody else's; texts are texts already.
    kind = type_name.partition("(")[0]
    cast = sql.SQL("") if kind in _TEXTS else sql.SQL("::" + kind)  # pyright: ignore[reportArgumentType] - of Django's field, not of anybody's input
    return sql.SQL("{} = (SELECT {}{})").format(sql.Identifier(column), _setting(conf.user_guc), cast)


def _setting(name: str) -> sql.Composed:
    return sql.SQL("NULLIF(current_setting({}, true), '')").format(sql.Literal(name))


def store_access(
    table: str, column: str, *, roles: Roles | None, web: Privileges, worker: Privileges, is_store: bool = False
) -> TableAccess:
    """Return what lets each role at the current store's rows, by what it may do there, and at no others.

    The migrator is held to it as well: its data migrations go from store to store, and fail where they do not. With one
    database user the policies are TO PUBLIC and for all commands; the store table itself is then not FORCEd, since the
    fan-out function belongs to that user and must list the stores.
    """
    guarded = guarded_condition(column, roles=roles)
    if roles is None:
        everybody = policies_by_command(STORE_POLICY, guarded, dict.fromkeys(ALL_ROWS, ()))
        return TableAccess(table=table, policies=everybody, force=not is_store)
    return _for_roles(table, STORE_POLICY, store_condition(column), guarded, roles=roles, web=web, worker=worker)


def system_access(table: str, *, roles: Roles, web: Privileges, worker: Privileges) -> TableAccess:
    """Return what lets each role at all rows of a table without a store, by what it may do there."""
    everything = sql.SQL("true")
    return _for_roles(table, SYSTEM_POLICY, everything, everything, roles=roles, web=web, worker=worker)


def _for_roles(
    table: str,
    prefix: str,
    condition: sql.Composable,
    migrators: sql.Composable,
    *,
    roles: Roles,
    web: Privileges,
    worker: Privileges,
) -> TableAccess:
    may = {roles.web: web, roles.worker: worker}
    who: Mapping[Privilege, tuple[str, ...]] = {
        command: names for command in ALL_ROWS if (names := tuple(role for role in may if command in may[role]))
    }
    return TableAccess(
        table=table,
        policies=(
            *policies_by_command(prefix, condition, who),
            Policy(name=f"{prefix}_migrator", command="ALL", roles=(roles.migrator,), using=migrators, check=migrators),
        ),
        grants=(*grants_of(roles.web, web), *grants_of(roles.worker, worker)),
    )
