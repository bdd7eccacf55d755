"""Tries, as the current role, what isolation forbids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias
from uuid import UUID

from django.db import DatabaseError, IntegrityError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import errors, sql

from salon_jobs.conf import settings as conf
from salon_jobs.tenancy import guc
from salon_jobs.testing.store_table import Column, StoreTable

_MALFORMED: Final = "no uuid"
_Template: TypeAlias = dict[Column, str | None]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Tells what became of a statement that was rolled back: the rows it touched, or its error.

    ``left`` is how many rows the store saw afterwards, where that was asked.
    """

    touched: int = 0
    left: int = 0
    error: DatabaseError | None = None

    @property
    def is_refused(self) -> bool:
        """Tell whether privileges or a policy refused it, or the setting that is no uuid did."""
        cause = self.error.__cause__ if self.error else None
        return isinstance(cause, errors.InsufficientPrivilege | errors.InvalidTextRepresentation)

    def __str__(self) -> str:
        """Return what became of it, for messages."""
        return f"{self.touched} rows" if self.error is None else str(self.error).strip()


@dataclass(frozen=True, slots=True)
class Probe:
    """Tries one role on one table. ``rows``: how many each store has, None where nobody could count them."""

    connection: BaseDatabaseWrapper
    table: StoreTable
    role: str
    rows: dict[UUID, int | None]

    def run(self) -> None:
        """Try everything, inside a transaction, as the role that is current. Raises AssertionError."""
        self._look_at_rights()
        for store in self.rows:
            self._read(store)
        one, other, *_ = self.rows
        for store, victim in ((one, other), (other, one)):
            self._set(str(store))
            template = self._template()
            self._change(store)
            self._delete(store)
            self._move(store, victim)
            self._insert(self._of(victim, template), f"as store {store} a row of store {victim}")
            if any(column.nullable for column in self._columns() if column.name == self.table.column):
                # Nobody's rows are everybody's where a policy says so.
                self._insert(self._of(None, template), f"as store {store} a row of no store")
                self._move(store, None)
            for value, how in (("", "without a store"), (_MALFORMED, f"with {_MALFORMED!r} as the store")):
                self._set(value)
                self._do_nothing(template, how)

    def _look_at_rights(self) -> None:
        columns = {column.name: column for column in self._columns()}
        if not columns[self.table.column].selectable:
            self._fail(f"may not read {self.table.column!r} and proves nothing: name the roles that use it, roles=…")
        if not self.table.restricts(self.connection):
            self._fail("is not under its policies: it is a superuser or has BYPASSRLS")
        if conf.roles is not None and self.role != conf.roles.migrator and self.table.truncatable(self.connection):
            self._fail("may TRUNCATE it, and no policy hinders that")
        if parts := self.table.parts_in_reach(self.connection):
            self._fail(f"reaches its partitions or children past its policies: {', '.join(parts)}")

    def _read(self, store: UUID) -> None:
        self._set(str(store))
        seen = self.table.visible(self.connection)
        if others := set(seen) - {store}:
            self._fail(f"sees, as store {store}, rows of {sorted(map(str, others))}")
        if store not in seen or self.rows[store] not in (None, seen[store]):
            self._fail(
                f"sees, as store {store}, {seen.get(store, 0)} of its {self.rows[store] or 'own'} rows: "
                "no policy shows them to this role"
            )

    def _template(self) -> _Template:
        """Return the values of one of the current store's rows, as texts, in the columns that the role may insert."""
        columns = [column for column in self._columns() if column.selectable and column.insertable]
        if not columns:
            return {}
        texts = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(column.name)) for column in columns)
        with self.connection.cursor() as cursor:
            cursor.execute(sql.SQL("SELECT {} FROM {} LIMIT 1").format(texts, self.table.identifier))
            return dict(zip(columns, cursor.fetchone(), strict=True))

    def _change(self, store: UUID) -> None:
        """Change rows without a condition: with one, SELECT policies would stand in for a missing UPDATE policy."""
        own = self.table.visible(self.connection)[store]
        if self._may_update_store():
            # Rows of others would become this store's own.
            tried = self._attempt(self.table.sql("UPDATE {table} SET {store} = %s"), store, look=True)
        else:
            tried = self._touch(look=True)
        if not tried.is_refused and (tried.error or tried.touched > own or tried.left != own):
            self._fail(f"changes, as store {store} with {own} rows, more than those: {tried}", tried)

    def _delete(self, store: UUID) -> None:
        own = self.table.visible(self.connection)[store]
        tried = self._attempt(self.table.sql("DELETE FROM {table}"), look=True)
        if isinstance(tried.error, IntegrityError):  # rows elsewhere hold on to them
            tried = self._attempt(self.table.sql("DELETE FROM {table} WHERE {store} <> %s"), store, look=True)
        if not tried.is_refused and (tried.error or tried.left != own - tried.touched):
            self._fail(f"deletes, as store {store} with {own} rows, others than those: {tried}", tried)

    def _move(self, store: UUID, victim: UUID | None) -> None:
        tried = self._attempt(self.table.sql("UPDATE {table} SET {store} = %s"), victim)
        by_trigger = tried.error is not None and isinstance(tried.error.__cause__, errors.RaiseException)
        if not tried.is_refused and not by_trigger and (tried.error or tried.touched):
            self._fail(
                f"moves, as store {store}, rows to {f'store {victim}' if victim else 'no store'}: {tried}", tried
            )

    def _of(self, store: UUID | None, template: _Template) -> _Template:
        """Return the values of a row of another store."""
        value = None if store is None else str(store)
        return {column: value if column.name == self.table.column else old for column, old in template.items()}

    def _insert(self, values: _Template, what: str) -> None:
        """Insert a row. The policy is asked before any constraint."""
        if not values:
            return
        statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
            self.table.identifier,
            sql.SQL(", ").join(sql.Identifier(column.name) for column in values),
            sql.SQL(", ").join(column.placeholder for column in values),
        )
        tried = self._attempt(statement, *values.values())
        if not tried.is_refused:
            self._fail(f"inserts {what}, and no policy stopped it: {tried}", tried)

    def _do_nothing(self, template: _Template, how: str) -> None:
        """Require that nothing is seen, changed, deleted and inserted now."""
        for verb, tried in (
            ("sees", self._attempt(self.table.sql("SELECT {store} FROM {table}"))),
            ("changes", self._touch()),
            ("deletes", self._attempt(self.table.sql("DELETE FROM {table}"))),
        ):
            if not tried.is_refused and (tried.error or tried.touched):
                self._fail(f"{verb} {how} what it should not: {tried}", tried)
        self._insert(template, f"{how} a row of another")

    def _may_update_store(self) -> bool:
        return any(column.updatable for column in self._columns() if column.name == self.table.column)

    def _touch(self, *, look: bool = False) -> _Attempt:
        """Write a column's own value into it, the first that the role may change; none: the store's, and be refused."""
        names = [column.name for column in self._columns() if column.updatable] or [self.table.column]
        name = sql.Identifier(names[0])
        return self._attempt(sql.SQL("UPDATE {} SET {} = {}").format(self.table.identifier, name, name), look=look)

    def _columns(self) -> list[Column]:
        return self.table.columns(self.connection)

    def _set(self, value: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(guc.SET_LOCAL, [conf.store_guc, value])

    def _attempt(self, statement: sql.Composed, *parameters: Any, look: bool = False) -> _Attempt:
        try:
            with transaction.atomic(using=self.connection.alias):
                with self.connection.cursor() as cursor:
                    cursor.execute(statement, parameters)
                    touched = cursor.rowcount
                left = sum(self.table.visible(self.connection).values()) if look else 0
                transaction.set_rollback(True, using=self.connection.alias)
            return _Attempt(touched, left)
        except DatabaseError as error:
            return _Attempt(error=error)

    def _fail(self, what: str, tried: _Attempt | None = None) -> NoReturn:
        error = tried.error if tried is not None else None
        raise AssertionError(f"{self.table} is not isolated: role {self.role!r} {what}") from error
