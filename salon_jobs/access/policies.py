"""Conditions of policies, and the access to a table that ``StoreIsolation`` and ``SystemScope`` declare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from salon_jobs.access.declared_objects import PUBLIC, Policy, Right, TableAccess, identifier, literal
from salon_jobs.conf import Roles
from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_key
from salon_jobs.core.rights import ALL_ROWS, Privilege, Privileges

STORE_POLICY: Final = "salon_jobs_store"
SYSTEM_POLICY: Final = "salon_jobs_system"
MEMBERSHIP_POLICY: Final = "salon_jobs_membership"
NAMES_POLICY: Final = "salon_jobs_names"
SUPPORT_POLICY: Final = "salon_jobs_support"
OWNERS_POLICY: Final = "salon_jobs_owners"
FAN_OUT_POLICY: Final = "salon_jobs_fan_out"
# PostgreSQL quotes it: invalid input syntax for type uuid (or bigint): "no store is set: …".
NO_STORE: Final = "no store is set: in a migration use RunForEachStore"
_TEXTS: Final = ("varchar", "text")
DEMAND_GUC: Final = "salon_jobs.no_store"


@dataclass(frozen=True, slots=True)
class Parent:
    """A table through which rows belong to a store: ``column`` refers to ``key`` there. ``optional``: it may be NULL.

    The keys are read once per statement, as an array by which an index can find the rows. Row-level security of the
    table leaves only those of the store; without a store there are none, with any policies.
    """

    column: str
    table: str
    key: str
    optional: bool = False

    def condition(self, store: str) -> str:
        """Return the condition that shows the rows of the parents that ``store``, an expression, may see."""
        column, table = identifier(self.column), identifier(self.table)
        keys = f"SELECT {table}.{identifier(self.key)} FROM {table} WHERE (SELECT {store}) IS NOT NULL"
        theirs = f"{column} = ANY (ARRAY({keys}))"
        return f"({column} IS NULL OR {theirs})" if self.optional else theirs


def store_condition(column: str, through: Sequence[Parent] = ()) -> str:
    """Return the condition that shows the current store's rows, or none when no store is set."""
    return _condition(column, through, f"{_setting(conf.store_guc)}::{store_key().sql}")


def guarded_condition(column: str, through: Sequence[Parent] = (), *, roles: Roles) -> str:
    """Return a condition that fails, instead of showing no rows, if a migration has not set a store.

    An invalid key replaces the missing store: always with roles, since the condition applies only to the migrator; with
    one database user it is the value of ``DEMAND_GUC``, which is empty unless ``migrate`` runs.
    """
    otherwise = _setting(DEMAND_GUC) if roles.one_user else literal(NO_STORE)
    kind = store_key().sql
    if kind == "text":
        # Any text is a text, and the cast of a constant would fail when a statement is planned.
        otherwise = f"NULLIF(concat(current_setting({literal(conf.store_guc)}, true), {otherwise}), '')::bigint::text"
    return _condition(column, through, f"COALESCE({_setting(conf.store_guc)}, {otherwise})::{kind}")


def _condition(column: str, through: Sequence[Parent], store: str) -> str:
    own = [f"{identifier(column)} = (SELECT {store})"] if column else []
    return " AND ".join((*own, *(parent.condition(store) for parent in through)))


def user_condition(column: str, type_name: str) -> str:
    """Return the condition that shows the signed-in user's rows; ``type_name`` is the PostgreSQL type of the key."""
    # Without a length, which would truncate a longer key, perhaps to another user's. Texts need no cast.
    kind = type_name.partition("(")[0]
    return f"{identifier(column)} = (SELECT {_setting(conf.user_guc)}{'' if kind in _TEXTS else f'::{kind}'})"


def _setting(name: str) -> str:
    return f"NULLIF(current_setting({literal(name)}, true), '')"


def policies_by_command(prefix: str, condition: str, who: Mapping[Privilege, tuple[str, ...]]) -> tuple[Policy, ...]:
    """Return a policy for each command that any role may run."""
    return tuple(
        Policy(
            name=f"{prefix}_{command.lower()}",
            command=command,
            roles=roles,
            using=None if command == "INSERT" else condition,
            check=condition if command in ("INSERT", "UPDATE") else None,
        )
        for command, roles in who.items()
    )


def rights_of(role: str, may: Privileges) -> tuple[Right, ...]:
    return tuple(Right(role, privilege, column) for privilege, columns in may.items() for column in columns or ("",))


def store_access(
    table: str,
    column: str = "",
    through: Sequence[Parent] = (),
    *,
    roles: Roles,
    web: Privileges,
    worker: Privileges,
    is_store: bool = False,
    names: Sequence[str] = (),
) -> TableAccess:
    """Return the access that gives each role its privileges on the current store's rows, and on no others.

    The migrator is restricted too: its data migrations must go from store to store, and fail otherwise. With one
    database user the policies are TO PUBLIC and for all commands; the store table itself is then not FORCEd, since the
    fan-out function belongs to that user and must list the stores. ``column`` holds the store; a table without it
    belongs to stores through its parents, and no row to two stores. The operator reads the columns ``names`` of all
    stores, and support everything. Roles that add stores may take the next key of an identity column first, to open the
    context of that store.
    """
    guarded = guarded_condition(column, through, roles=roles)
    if roles.one_user:
        everybody = policies_by_command(STORE_POLICY, guarded, dict.fromkeys(ALL_ROWS, (PUBLIC,)))
        access = TableAccess(table=table, policies=everybody, force=not is_store)
    else:
        conditions = store_condition(column, through), guarded
        access = _for_roles(table, STORE_POLICY, conditions, roles=roles, web=web, worker=worker)
        access = replace(access, takes_keys=is_store)
        if names:
            access = _open_to(roles.operator, access, NAMES_POLICY, names)
        if roles.support is not None:
            access = _open_to(roles.support, access, SUPPORT_POLICY)
    return replace(access, reads=tuple(parent.table for parent in through))


def _open_to(role: str, access: TableAccess, policy: str, columns: Sequence[str] = ()) -> TableAccess:
    """Return the access with a role that reads these columns, or all of them, in all rows."""
    reads = Policy(name=policy, command="SELECT", roles=(role,), using="true")
    rights = rights_of(role, {"SELECT": tuple(columns)})
    return replace(access, policies=(*access.policies, reads), rights=(*access.rights, *rights))


# Policies of functions' owners that cannot bypass row-level security, for lack of a role that could let them.
BOUND_OWNERS: Final = (
    "ARRAY(SELECT rolname::text FROM pg_roles WHERE rolname = ANY (%s) AND NOT rolbypassrls ORDER BY 1)"
)


def open_to_owners(access: TableAccess, roles: Roles, bound: Sequence[str]) -> TableAccess:
    """Return the access with a policy for owners of the host's functions: all rows, within their rights."""
    names = tuple(name for name in bound if name in roles.extra_owners)
    if not names:
        return access
    policy = Policy(name=OWNERS_POLICY, command="ALL", roles=names, using="true", check="true")
    return replace(access, policies=(*access.policies, policy))


def system_access(table: str, *, roles: Roles, web: Privileges, worker: Privileges) -> TableAccess:
    """Return the access that gives each role its privileges on all rows of a table without a store.

    One database user owns it, and is not restricted.
    """
    if roles.one_user:
        return TableAccess(table=table, is_protected=False)
    return _for_roles(table, SYSTEM_POLICY, ("true", "true"), roles=roles, web=web, worker=worker)


def _for_roles(
    table: str, prefix: str, conditions: tuple[str, str], *, roles: Roles, web: Privileges, worker: Privileges
) -> TableAccess:
    """Return the access of both runtime roles under the first condition, and of the migrator under the second."""
    condition, migrators = conditions
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
        rights=(*rights_of(roles.web, web), *rights_of(roles.worker, worker)),
    )
