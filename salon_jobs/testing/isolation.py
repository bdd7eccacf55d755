"""``assert_isolated``: proof that a table keeps stores apart, tested as the real roles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString, NoReturn, TypeAlias
from uuid import UUID

from django.db import DatabaseError, IntegrityError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model
from psycopg import errors, sql

from salon_jobs.access.constraints import StoreIsolation
from salon_jobs.access.operations.for_hosts import declared_by_operations, declared_in_meta
from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.tenancy import guc
from salon_jobs.testing.identity import as_role, role_name


@dataclass(frozen=True, slots=True)
class Column:
    """A column and the current role's privileges on it; ``type`` is in SQL notation."""

    name: str
    type: str
    selectable: bool
    insertable: bool
    updatable: bool
    nullable: bool

    @property
    def placeholder(self) -> sql.Composable:
        """Placeholder that casts a text to the column's type."""
        cast: Any = f"%s::{self.type}"  # as the catalogue writes it
        return sql.SQL(cast)


@dataclass(frozen=True, slots=True)
class StoreTable:
    """A table and the column that holds the store."""

    name: str
    column: str

    @classmethod
    def of(cls, model: type[Model], field: str | None) -> StoreTable:
        """Return the table of a model. Raises ConfigurationError when its store column cannot be determined."""
        meta = model._meta
        names = (field,) if field is not None else _declared(model)
        columns = [f.column for f in meta.local_concrete_fields if f.name in names or f.attname in names]
        [column] = columns if len(columns) == 1 else [None]
        if column is None:
            raise ConfigurationError(
                f"{meta.label} has {len(columns)} fields of its own table that may hold the store: "
                "declare StoreIsolation, or name it, field=…"
            )
        return cls(meta.db_table, column)

    def __str__(self) -> str:
        """Return the name, for messages."""
        return f"table {self.name!r}"

    @property
    def identifier(self) -> sql.Identifier:
        """Name as SQL."""
        return sql.Identifier(self.name)

    def sql(self, statement: LiteralString) -> sql.Composed:
        """Fill in ``{table}`` and ``{store}``."""
        return sql.SQL(statement).format(table=self.identifier, store=sql.Identifier(self.column))

    def assert_forced(self, connection: BaseDatabaseWrapper) -> None:
        """Assert that row-level security is enabled, and forced for the owner."""
        [(enabled, forced)] = self._catalogue(
            connection, "SELECT relrowsecurity, relforcerowsecurity FROM pg_class WHERE oid = %s::regclass"
        )
        if not enabled:
            raise AssertionError(f"row-level security is not enabled on {self}")
        if not forced:
            raise AssertionError(f"row-level security is not forced on {self}: its owner sees and changes every row")

    def restricts(self, connection: BaseDatabaseWrapper) -> bool:
        """Return whether the policies apply to the current role."""
        [(active,)] = self._catalogue(connection, "SELECT row_security_active(%s::regclass)")
        return bool(active)

    def used_by(self, connection: BaseDatabaseWrapper, role: str) -> bool:
        """Return whether a role may do anything here, at least on some columns."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT has_any_column_privilege(%(role)s, %(table)s, 'SELECT, INSERT, UPDATE')"
                " OR has_table_privilege(%(role)s, %(table)s, 'DELETE, TRUNCATE')",
                {"role": role, "table": connection.ops.quote_name(self.name)},
            )
            return bool(cursor.fetchone()[0])

    def truncatable(self, connection: BaseDatabaseWrapper) -> bool:
        """Return whether the current role may TRUNCATE it, which no policy prevents."""
        [(allowed,)] = self._catalogue(connection, "SELECT has_table_privilege(%s::regclass, 'TRUNCATE')")
        return bool(allowed)

    def parts_in_reach(self, connection: BaseDatabaseWrapper) -> list[str]:
        """Return its partitions and children that the current role may use; its policies do not apply to them."""
        rows = self._catalogue(
            connection,
            "WITH RECURSIVE parts AS (SELECT inhrelid AS part FROM pg_inherits WHERE inhparent = %s::regclass UNION"
            " SELECT inhrelid FROM pg_inherits JOIN parts ON inhparent = part) SELECT part::regclass::text FROM parts"
            " WHERE has_any_column_privilege(part, 'SELECT, INSERT, UPDATE')"
            " OR has_table_privilege(part, 'DELETE, TRUNCATE') ORDER BY 1",
        )
        return [name for (name,) in rows]

    def visible(self, connection: BaseDatabaseWrapper) -> dict[UUID | None, int]:
        """Count the rows that the current role sees, by store."""
        with connection.cursor() as cursor:
            cursor.execute(self.sql("SELECT {store}, count(*) FROM {table} GROUP BY 1"))
            return dict(cursor.fetchall())

    def columns(self, connection: BaseDatabaseWrapper) -> list[Column]:
        """Return the columns to which statements may assign a value, with the current role's privileges."""
        rows = self._catalogue(
            connection,
            "SELECT attname, format_type(atttypid, atttypmod), has_column_privilege(attrelid, attnum, 'SELECT'),"
            " has_column_privilege(attrelid, attnum, 'INSERT'), has_column_privilege(attrelid, attnum, 'UPDATE'),"
            " NOT attnotnull"
            " FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
            " AND attgenerated = '' AND attidentity <> 'a' ORDER BY attnum",
        )
        return [Column(*row) for row in rows]

    def _catalogue(self, connection: BaseDatabaseWrapper, query: str) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(query, [connection.ops.quote_name(self.name)])
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows


def _declared(model: type[Model]) -> tuple[str, ...]:
    """Return the field that StoreIsolation names; otherwise the fields that look like it."""
    declared = declared_in_meta().get(model) or declared_by_operations().get(model)
    if isinstance(declared, StoreIsolation):
        return (declared.field,)
    fields = model._meta.local_concrete_fields
    return tuple(f.attname for f in fields if f.attname == "store_id" or _is_store(f.related_model))


def _is_store(model: object) -> bool:
    return (
        isinstance(model, type)
        and issubclass(model, Model)
        and model._meta.label_lower == (conf.store_model or "").lower()
    )


_MALFORMED: Final = "no uuid"
_Template: TypeAlias = dict[Column, str | None]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Result of a statement that was rolled back: the number of rows it touched, or its error.

    ``left`` is how many rows the store saw afterwards, if that was queried.
    """

    touched: int = 0
    left: int = 0
    error: DatabaseError | None = None

    @property
    def is_refused(self) -> bool:
        """Whether privileges, a policy or an invalid UUID in the setting caused an error."""
        cause = self.error.__cause__ if self.error else None
        return isinstance(cause, errors.InsufficientPrivilege | errors.InvalidTextRepresentation)

    def __str__(self) -> str:
        """Return the result in readable form."""
        return f"{self.touched} rows" if self.error is None else str(self.error).strip()


@dataclass(frozen=True, slots=True)
class Probe:
    """Test of one role on one table. ``rows``: how many each store has, None if nobody could count them."""

    connection: BaseDatabaseWrapper
    table: StoreTable
    role: str
    rows: dict[UUID, int | None]

    def run(self) -> None:
        """Try everything, inside a transaction, as the current role. Raises AssertionError."""
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
                # Rows of no store are visible to every store if a policy says so.
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
            # Other stores' rows would become this store's own.
            tried = self._attempt(self.table.sql("UPDATE {table} SET {store} = %s"), store, look=True)
        else:
            tried = self._touch(look=True)
        if not tried.is_refused and (tried.error or tried.touched > own or tried.left != own):
            self._fail(f"changes, as store {store} with {own} rows, more than those: {tried}", tried)

    def _delete(self, store: UUID) -> None:
        own = self.table.visible(self.connection)[store]
        tried = self._attempt(self.table.sql("DELETE FROM {table}"), look=True)
        if isinstance(tried.error, IntegrityError):  # other rows refer to them
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
        """Return the values as a row of another store."""
        value = None if store is None else str(store)
        return {column: value if column.name == self.table.column else old for column, old in template.items()}

    def _insert(self, values: _Template, what: str) -> None:
        """Insert a row. The policy is checked before any constraint."""
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
        """Require that nothing can be seen, changed, deleted or inserted now."""
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
        """Write a column's own value into it: the first updatable one, or else the store's, which must be refused."""
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


def assert_isolated(
    model: type[Model],
    *,
    roles: Sequence[str] | None = None,
    stores: Sequence[UUID] | None = None,
    field: str | None = None,
    using: str | None = None,
) -> None:
    """Assert that the database itself keeps each store from the other stores' rows in a model's table.

    The table must already hold rows of two stores or more (written in the same transaction, for example). Runs as each
    of ``roles`` (in the notation of ``as_role``; by default, web and worker if they have any privilege on the table, or
    without ROLES the connection's own user). Tries SELECT, INSERT, UPDATE and DELETE, with and without a condition, as
    one store on another's rows, without a store, and with a setting that is not a UUID; and checks that row-level
    security is forced. All of it is rolled back.

    ``stores``: the stores to try, required if the connection itself is under row-level security and cannot find them.
    ``field``: the field that holds the store, if StoreIsolation does not define it and it is not the only foreign key
    to STORE_MODEL. Raises AssertionError saying which role could do what, and ConfigurationError if the test cannot be
    done this way.
    """
    connection = connections[using or conf.database]
    table = StoreTable.of(model, field)
    with transaction.atomic(using=connection.alias):
        with connection.cursor() as cursor:
            # Constraint errors at the end of the transaction are not what is tested here.
            cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        table.assert_forced(connection)
        rows = _rows_by_store(connection, table, stores)
        for role in _roles(connection, table) if roles is None else roles:
            with as_role(role, using=connection.alias):
                Probe(connection, table, role_name(role), rows).run()
        transaction.set_rollback(True, using=connection.alias)


def _roles(connection: BaseDatabaseWrapper, table: StoreTable) -> Sequence[str]:
    """Return the default roles to test. One without any privilege on the table is shut out by that alone."""
    if conf.roles is None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_user")
            return tuple(cursor.fetchone())
    used = [role for role in ("web", "worker") if table.used_by(connection, role_name(role))]
    if not used:
        raise AssertionError(f"neither the web's nor the worker's role may do anything with {table}")
    return used


def _rows_by_store(
    connection: BaseDatabaseWrapper, table: StoreTable, stores: Sequence[UUID] | None
) -> dict[UUID, int | None]:
    """Return how many rows each store has; None where the connection cannot see it. Raises for fewer than two."""
    found: dict[UUID, int | None] = {}
    if not table.restricts(connection):
        found = {store: count for store, count in table.visible(connection).items() if store is not None}
    elif stores is None:
        raise AssertionError(
            f"the connection is under row-level security itself and cannot look which stores have rows in {table}: "
            "name two of them, stores=[…]"
        )
    else:
        found = dict.fromkeys(map(guc.as_uuid, stores))
    if stores is not None:
        found = {store: found.get(store, 0) for store in map(guc.as_uuid, stores)}
    empty = [str(store) for store, count in found.items() if count == 0]
    if not found or empty:
        raise AssertionError(
            f"{table} has no row{f' of {empty}' if empty else ''}: an empty table isolates whatever its policies are"
        )
    if len(found) == 1:
        raise AssertionError(f"only one store has rows in {table}: nobody else's could have been seen; add another's")
    return found
