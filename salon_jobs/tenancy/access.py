"""Declares who may do what on a table, and writes it as SQL; migrations, checks and conversions derive from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from psycopg import sql

Privilege: TypeAlias = Literal["SELECT", "INSERT", "UPDATE", "DELETE"]
ALL_ROWS: tuple[Privilege, ...] = ("SELECT", "INSERT", "UPDATE", "DELETE")
# What a role may do, each on some of the columns or, where none are named, on all.
Privileges: TypeAlias = Mapping[Privilege, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Is one row-level security policy. ``roles`` empty: TO PUBLIC, with one database user."""

    name: str
    command: Literal["ALL", "SELECT", "INSERT", "UPDATE", "DELETE"]
    roles: tuple[str, ...]
    using: sql.Composable | None = None
    check: sql.Composable | None = None

    def create(self, table: sql.Identifier) -> sql.Composed:
        """Return CREATE POLICY."""
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
        """Return DROP POLICY, which does nothing where there is none."""
        return sql.SQL("DROP POLICY IF EXISTS {} ON {}").format(sql.Identifier(self.name), table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Gives one role privileges on a table, or on some of its columns alone."""

    role: str
    privileges: tuple[Privilege, ...]
    columns: tuple[str, ...] = ()

    def statement(self, table: sql.Identifier) -> sql.Composed:
        """Return GRANT."""
        columns: sql.Composable = sql.SQL("")
        if self.columns:
            columns = sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Identifier, self.columns)))
        what = sql.SQL(", ").join(sql.SQL(privilege) + columns for privilege in self.privileges)
        return sql.SQL("GRANT {} ON {} TO {}").format(what, table, sql.Identifier(self.role))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAccess:
    """Is all that is declared of one table under row-level security. ``force``: for its owner, too."""

    table: str
    policies: tuple[Policy, ...]
    grants: tuple[Grant, ...] = ()
    force: bool = True

    def protect(self) -> list[sql.Composed]:
        """Return the policies, then what switches row-level security on. Each policy is made anew."""
        table = sql.Identifier(self.table)
        statements = [make for policy in self.policies for make in (policy.drop(table), policy.create(table))]
        statements.append(sql.SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(table))
        if self.force:
            statements.append(sql.SQL("ALTER TABLE {} FORCE ROW LEVEL SECURITY").format(table))
        return statements

    def unprotect(self) -> list[sql.Composed]:
        """Return what switches row-level security off and drops the policies."""
        table = sql.Identifier(self.table)
        return [
            sql.SQL("ALTER TABLE {} NO FORCE ROW LEVEL SECURITY").format(table),
            sql.SQL("ALTER TABLE {} DISABLE ROW LEVEL SECURITY").format(table),
            *(policy.drop(table) for policy in self.policies),
        ]

    def give(self, roles: Sequence[str]) -> list[sql.Composed]:
        """Return what takes everything from PUBLIC and ``roles``, then grants what is declared."""
        inserting = [grant.role for grant in self.grants if "INSERT" in grant.privileges]
        statements = [*self.take(roles), *(grant.statement(sql.Identifier(self.table)) for grant in self.grants)]
        if inserting:
            # An identity column needs no more than INSERT; a serial one, of older tables, takes its numbers itself.
            to = sql.SQL(", ").join(map(sql.Identifier, inserting))
            statements.append(self._on_sequences("a", sql.SQL("GRANT USAGE"), sql.SQL("TO {}").format(to)))
        return statements

    def take(self, roles: Sequence[str]) -> list[sql.Composed]:
        """Return what takes everything on the table, and on its own sequences, from PUBLIC and ``roles``."""
        of = sql.SQL("FROM {}").format(sql.SQL(", ").join((sql.SQL("PUBLIC"), *map(sql.Identifier, roles))))
        return [
            sql.SQL("REVOKE ALL ON {} {}").format(sql.Identifier(self.table), of),
            self._on_sequences("ai", sql.SQL("REVOKE ALL"), of),
        ]

    def give_by_default(self, roles: Sequence[str]) -> list[sql.Composed]:
        """Return what grants again what default privileges give these roles on a new table and its sequences."""
        to = sql.SQL("TO {}").format(sql.SQL(", ").join(map(sql.Identifier, roles)))
        return [
            *(Grant(role=role, privileges=ALL_ROWS).statement(sql.Identifier(self.table)) for role in roles),
            self._on_sequences("ai", sql.SQL("GRANT USAGE, SELECT"), to),
        ]

    def _on_sequences(self, kinds: str, verb: sql.SQL, whom: sql.Composed) -> sql.Composed:
        """Return what grants or revokes on the sequences of columns: ``a`` of serial ones, ``i`` of identity ones."""
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


def grants_of(role: str, privileges: Privileges) -> tuple[Grant, ...]:
    """Return the grants that give a role exactly these privileges."""
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
    """Return one policy for each command that somebody may run; no roles: TO PUBLIC."""
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
