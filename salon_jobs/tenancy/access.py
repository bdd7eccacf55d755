"""Declares who may do what on a table, and writes it as SQL; migrations, checks and conversions derive from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from psycopg import sql

Privilege: TypeAlias = Literal["SELECT", "INSERT", "UPDATE", "DELETE"]
ALL_ROWS: tuple[Privilege, ...] = ("SELECT", "INSERT", "UPDATE", "DELETE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Is one row-level security policy. ``roles`` empty: TO PUBLIC, with one database user."""

    name: str
    command: Literal["ALL", "SELECT", "INSERT", "UPDATE", "DELETE"]
    roles: tuple[str, ...]
    using: sql.Composable | None = None
    check: sql.Composable | None = None

    def create(self, table: str) -> sql.Composed:
        """Return CREATE POLICY."""
        to = sql.SQL(", ").join(map(sql.Identifier, self.roles)) if self.roles else sql.SQL("PUBLIC")
        statement = sql.SQL("CREATE POLICY {} ON {} FOR {} TO {}").format(
            sql.Identifier(self.name), sql.Identifier(table), sql.SQL(self.command), to
        )
        if self.using is not None:
            statement += sql.SQL(" USING ({})").format(self.using)
        if self.check is not None:
            statement += sql.SQL(" WITH CHECK ({})").format(self.check)
        return statement

    def drop(self, table: str) -> sql.Composed:
        """Return DROP POLICY, which does nothing where there is none."""
        return sql.SQL("DROP POLICY IF EXISTS {} ON {}").format(sql.Identifier(self.name), sql.Identifier(table))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Gives one role privileges on a table, or on some of its columns alone."""

    role: str
    privileges: tuple[Privilege, ...]
    columns: tuple[str, ...] = ()

    def statement(self, table: str) -> sql.Composed:
        """Return GRANT."""
        columns: sql.Composable = sql.SQL("")
        if self.columns:
            columns = sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Identifier, self.columns)))
        what = sql.SQL(", ").join(sql.SQL(privilege) + columns for privilege in self.privileges)
        return sql.SQL("GRANT {} ON {} TO {}").format(what, sql.Identifier(table), sql.Identifier(self.role))


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
        statements = [make for policy in self.policies for make in (policy.drop(self.table), policy.create(self.table))]
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
            *(policy.drop(self.table) for policy in self.policies),
        ]

    def give(self, roles: Sequence[str]) -> list[sql.Composed]:
        """Return what takes everything from PUBLIC and ``roles``, then grants what is declared."""
        return [*self.take(roles), *(grant.statement(self.table) for grant in self.grants)]

    def take(self, roles: Sequence[str]) -> list[sql.Composed]:
        """Return what takes everything on the table, and on its own sequence, from PUBLIC and ``roles``."""
        of = sql.SQL(", ").join((sql.SQL("PUBLIC"), *map(sql.Identifier, roles)))
        return [
            sql.SQL("REVOKE ALL ON {} FROM {}").format(sql.Identifier(self.table), of),
            sql.SQL(
                "DO $$ BEGIN IF to_regclass({0}) IS NOT NULL THEN EXECUTE format('REVOKE ALL ON SEQUENCE %s FROM {1}', "
                "to_regclass({0})); END IF; END $$"
            ).format(sql.Literal(f"{self.table}_id_seq"), of),
        ]
