"""Is a table whose rows belong to stores, as the catalogue and the current role see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, LiteralString
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model
from psycopg import sql

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.migration_ops.declared import declared_by_operations, declared_in_meta
from salon_jobs.tenancy.constraints import StoreIsolation


@dataclass(frozen=True, slots=True)
class Column:
    """Is a column and what the current role may do with it; ``type`` as SQL writes it."""

    name: str
    type: str
    selectable: bool
    insertable: bool
    updatable: bool
    nullable: bool

    @property
    def placeholder(self) -> sql.Composable:
        """Return a placeholder that turns a text into the column's type."""
        cast: Any = f"%s::{self.type}"  # as the catalogue writes it
        return sql.SQL(cast)


@dataclass(frozen=True, slots=True)
class StoreTable:
    """Names a table and the column that holds the store."""

    name: str
    column: str

    @classmethod
    def of(cls, model: type[Model], field: str | None) -> StoreTable:
        """Return the table of a model. Raises ConfigurationError when its store's column can not be told."""
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
        """Return the name as SQL."""
        return sql.Identifier(self.name)

    def sql(self, statement: LiteralString) -> sql.Composed:
        """Fill in ``{table}`` and ``{store}``."""
        return sql.SQL(statement).format(table=self.identifier, store=sql.Identifier(self.column))

    def assert_forced(self, connection: BaseDatabaseWrapper) -> None:
        """Assert that row-level security is enabled, and for the owner too."""
        [(enabled, forced)] = self._catalogue(
            connection, "SELECT relrowsecurity, relforcerowsecurity FROM pg_class WHERE oid = %s::regclass"
        )
        if not enabled:
            raise AssertionError(f"row-level security is not enabled on {self}")
        if not forced:
            raise AssertionError(f"row-level security is not forced on {self}: its owner sees and changes every row")

    def restricts(self, connection: BaseDatabaseWrapper) -> bool:
        """Tell whether the policies apply to the current role."""
        [(active,)] = self._catalogue(connection, "SELECT row_security_active(%s::regclass)")
        return bool(active)

    def used_by(self, connection: BaseDatabaseWrapper, role: str) -> bool:
        """Tell whether a role may do anything here, on some columns at least."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT has_any_column_privilege(%(role)s, %(table)s, 'SELECT, INSERT, UPDATE')"
                " OR has_table_privilege(%(role)s, %(table)s, 'DELETE, TRUNCATE')",
                {"role": role, "table": connection.ops.quote_name(self.name)},
            )
            return bool(cursor.fetchone()[0])

    def truncatable(self, connection: BaseDatabaseWrapper) -> bool:
        """Tell whether the current role may empty it at once, which no policy hinders."""
        [(allowed,)] = self._catalogue(connection, "SELECT has_table_privilege(%s::regclass, 'TRUNCATE')")
        return bool(allowed)

    def parts_in_reach(self, connection: BaseDatabaseWrapper) -> list[str]:
        """Return its partitions and children, to which its policies do not apply, that the current role may use."""
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
        """Return the columns that statements may give a value, with the rights of the current role."""
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
    """Return the field that StoreIsolation names; without one, those that look like it."""
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
