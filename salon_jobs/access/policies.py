"""Declarations of policies and grants on a table, and their SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from psycopg import sql

from salon_jobs.conf import Roles
from salon_jobs.conf import settings as conf

Privilege: TypeAlias = Literal["SELECT", "INSERT", "UPDATE", "DELETE"]
ALL_ROWS: tuple[Privilege, ...] = ("SELECT", "INSERT", "UPDATE", "DELETE")
# What a role may do, each on some of the columns or, if none are listed, on all.
Privileges: TypeAlias = Mapping[Privilege, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One row-level security policy. Empty ``roles``: TO PUBLIC, with one database user."""

    name: str
    command: Literal["ALL", "SELECT", "INSERT", "UPDATE", "DELETE"]
    roles: tuple[str, ...]
    using: sql.Composable | None = None
    check: sql.Composable | None = None

    def create(self, table: sql.Identifier) -> sql.Composed:
        to = sql.SQL(", ").join(map(sql.Identifier, self.roles)) if self.roles else sql.SQL("PUBLIC")
        statement = sql.SQL("CREATE POLICY {} ON {} FOR {} TO {}").format(
            sql.Identifier(self.name), table, sql.SQL(self.command), to
        )
        if self.using is not None:
            statement += sql.SQL(" USING ({})").format(self.using)
        if self.check is not None:
            statement += sql.SQL(" WITH CHECK ({})").format(self.check)
        return statement

    def drop(self, table: sql.Identifier) -> sql.Composed:
        return sql.SQL("DROP POLICY IF EXISTS {} ON {}").format(sql.Identifier(self.name), table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Privileges of one role on a table, or on some of its columns."""

    role: str
    privileges: tuple[Privilege, ...]
    columns: tuple[str, ...] = ()

    def statement(self, table: sql.Identifier) -> sql.Composed:
        columns: sql.Composable = sql.SQL("")
        if self.columns:
            columns = sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Identifier, self.columns)))
        what = sql.SQL(", ").join(sql.SQL(privilege) + columns for privilege in self.privileges)
        return sql.SQL("GRANT {} ON {} TO {}").format(what, table, sql.Identifier(self.role))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAccess:
    """Everything declared for one table. ``force`` applies row-level security to the owner too."""

    table: str
    policies: tuple[Policy, ...]
    grants: tuple[Grant, ...] = ()
    is_protected: bool = True
    force: bool = True

    def protect(self) -> list[sql.Composed]:
        """Return the statements that recreate each policy, then enable row-level security."""
        table = sql.Identifier(self.table)
        statements = [make for policy in self.policies for make in (policy.drop(table), policy.create(table))]
        statements.append(sql.SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(table))
        if self.force:
            statements.append(sql.SQL("ALTER TABLE {} FORCE ROW LEVEL SECURITY").format(table))
        return statements

    def unprotect(self) -> list[sql.Composed]:
        """Return the statements that disable row-level security and drop the policies."""
        table = sql.Identifier(self.table)
        return [
            sql.SQL("ALTER TABLE {} NO FORCE ROW LEVEL SECURITY").format(table),
            sql.SQL("ALTER TABLE {} DISABLE ROW LEVEL SECURITY").format(table),
            *(policy.drop(table) for policy in self.policies),
        ]

    def grant(self, roles: Sequence[str]) -> list[sql.Composed]:
        """Return the statements that revoke everything from PUBLIC and ``roles``, then grant what is declared."""
        inserting = [grant.role for grant in self.grants if "INSERT" in grant.privileges]
        statements = [*self.revoke(roles), *(grant.statement(sql.Identifier(self.table)) for grant in self.grants)]
        if inserting:
            # An identity column needs only INSERT; a serial one, in older tables, also needs its sequence.
            to = sql.SQL(", ").join(map(sql.Identifier, inserting))
            statements.append(self._on_sequences("a", sql.SQL("GRANT USAGE"), sql.SQL("TO {}").format(to)))
        return statements

    def revoke(self, roles: Sequence[str]) -> list[sql.Composed]:
        """Return the statements that revoke everything on the table and its own sequences from PUBLIC and ``roles``."""
        of = sql.SQL("FROM {}").format(sql.SQL(", ").join((sql.SQL("PUBLIC"), *map(sql.Identifier, roles))))
        return [
            sql.SQL("REVOKE ALL ON {} {}").format(sql.Identifier(self.table), of),
            self._on_sequences("ai", sql.SQL("REVOKE ALL"), of),
        ]

    def grant_defaults(self, roles: Sequence[str]) -> list[sql.Composed]:
        """Return the statements that restore these roles' default privileges on a new table and its sequences."""
        to = sql.SQL("TO {}").format(sql.SQL(", ").join(map(sql.Identifier, roles)))
        return [
            *(Grant(role=role, privileges=ALL_ROWS).statement(sql.Identifier(self.table)) for role in roles),
            self._on_sequences("ai", sql.SQL("GRANT USAGE, SELECT"), to),
        ]

    def _on_sequences(self, kinds: str, verb: sql.SQL, whom: sql.Composed) -> sql.Composed:
        """Return a grant or revoke on the sequences of columns: ``a`` for serial, ``i`` for identity columns."""
        # Without a percent sign: Django removes constraints with (empty) parameters.
        return sql.SQL(
            "DO $$ DECLARE s regclass; BEGIN FOR s IN SELECT c.oid FROM pg_depend d JOIN pg_class c ON c.oid = d.objid "
            "WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND c.relkind = 'S' "
            "AND d.refobjid = {}::regclass AND strpos({}, d.deptype::text) > 0 LOOP "
            "EXECUTE '{} ON SEQUENCE ' || s || {}; END LOOP; END $$"
        ).format(
            sql.Literal(sql.Identifier(self.table).as_string()),
            sql.Literal(kinds),
            verb,
            sql.Literal(" " + whom.as_string()),
        )


def unprotected(table: str, grants: tuple[Grant, ...] = ()) -> TableAccess:
    return TableAccess(table=table, policies=(), grants=grants, is_protected=False)


def grants_of(role: str, privileges: Privileges) -> tuple[Grant, ...]:
    whole: tuple[Privilege, ...] = tuple(privilege for privilege, columns in privileges.items() if not columns)
    by_column = tuple(
        Grant(role=role, privileges=(privilege,), columns=columns)
        for privilege, columns in privileges.items()
        if columns
    )
    return (Grant(role=role, privileges=whole), *by_column) if whole else by_column


def policies_by_command(
    prefix: str, condition: sql.Composable, who: Mapping[Privilege, tuple[str, ...]]
) -> tuple[Policy, ...]:
    """Return a policy for each command that any role may run; no roles: TO PUBLIC."""
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


STORE_POLICY: Final = "salon_jobs_store"
SYSTEM_POLICY: Final = "salon_jobs_system"
MEMBERSHIP_POLICY: Final = "salon_jobs_membership"
# PostgreSQL quotes it: invalid input syntax for type uuid: "no store is set: …".
NO_STORE: Final = "no store is set: in a migration use RunForEachStore"
_TEXTS: Final = ("varchar", "text")
DEMAND_GUC: Final = "salon_jobs.no_store"


def store_condition(column: str) -> sql.Composed:
    """Return the condition that shows the current store's rows, or none when no store is set."""
    return sql.SQL("{} = (SELECT {}::uuid)").format(sql.Identifier(column), _setting(conf.store_guc))


def guarded_condition(column: str, *, roles: Roles | None) -> sql.Composed:
    """Return a condition that fails, instead of showing no rows, when a migration has not set a store.

    An invalid UUID replaces the missing store: with roles always, since only the migrator is subject to this condition;
    with one database user the value of ``DEMAND_GUC``, which is empty unless ``migrate`` runs.
    """
    otherwise = _setting(DEMAND_GUC) if roles is None else sql.Literal(NO_STORE)
    return sql.SQL("{} = (SELECT COALESCE({}, {})::uuid)").format(
        sql.Identifier(column), _setting(conf.store_guc), otherwise
    )


def user_condition(column: str, type_name: str) -> sql.Composed:
    """Return the condition that shows the signed-in user's rows; ``type_name`` is the PostgreSQL type of the key."""
    # Without a length, which would truncate a longer key to what may be another user's; texts need no cast.
    kind = type_name.partition("(")[0]
    cast = sql.SQL("") if kind in _TEXTS else sql.SQL("::" + kind)  # pyright: ignore[reportArgumentType] - of Django's field, not of anybody's input
    return sql.SQL("{} = (SELECT {}{})").format(sql.Identifier(column), _setting(conf.user_guc), cast)


def _setting(name: str) -> sql.Composed:
    return sql.SQL("NULLIF(current_setting({}, true), '')").format(sql.Literal(name))


def store_access(
    table: str, column: str, *, roles: Roles | None, web: Privileges, worker: Privileges, is_store: bool = False
) -> TableAccess:
    """Return the access that gives each role its privileges on the current store's rows, and on no others.

    The migrator is restricted too: its data migrations must go from store to store, and fail otherwise. With one
    database user the policies are TO PUBLIC and for all commands; the store table itself is then not FORCEd, since the
    fan-out function belongs to that user and must list the stores.
    """
    guarded = guarded_condition(column, roles=roles)
    if roles is None:
        everybody = policies_by_command(STORE_POLICY, guarded, dict.fromkeys(ALL_ROWS, ()))
        return TableAccess(table=table, policies=everybody, force=not is_store)
    return _for_roles(table, STORE_POLICY, store_condition(column), guarded, roles=roles, web=web, worker=worker)


def system_access(table: str, *, roles: Roles, web: Privileges, worker: Privileges) -> TableAccess:
    """Return the access that gives each role its privileges on all rows of a table without a store."""
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
