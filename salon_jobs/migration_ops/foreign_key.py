"""Drops foreign keys by the table and the columns they are on, whatever they are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.utils import truncate_name
from django.db.migrations.state import ProjectState
from psycopg import sql

from salon_jobs.migration_ops.base import DatabaseOperation, execute
from salon_jobs.tenancy.same_store import VALIDATE, row_security_of

_DROP: Final = sql.SQL(
    "DO $$ DECLARE k name; found boolean := false; BEGIN FOR k IN SELECT c.conname FROM pg_constraint AS c "
    "WHERE c.contype = 'f' AND c.conparentid = 0 AND c.conrelid = {table}::regclass "
    "AND ({to}::text IS NULL OR c.confrelid = {to}::regclass) AND ARRAY(SELECT a.attname::text "
    "FROM unnest(c.conkey) AS n JOIN pg_attribute AS a ON a.attrelid = c.conrelid AND a.attnum = n "
    'ORDER BY a.attname COLLATE "C") = ARRAY[{columns}]::text[] LOOP '
    "found := true; EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', {table}::regclass, k); END LOOP; "
    "IF NOT found THEN RAISE undefined_object USING MESSAGE = {missing}; END IF; END $$"
)


class DropForeignKey(DatabaseOperation):
    """Drop the foreign keys on just these columns of a table, by the names that the catalogue holds.

    For keys that Django did not make. ``to`` names the table they refer to: then others are left alone. With
    ``to_columns`` as well the operation is reversible: backwards the key is there again, deferrable, validated
    truthfully, and called as we call it. Fails with 42704 (a ProgrammingError) where there is no such key.
    """

    locks_tables: ClassVar[bool] = True

    def __init__(
        self, table: str, columns: Sequence[str], *, to: str | None = None, to_columns: Sequence[str] = ()
    ) -> None:
        self.table, self.columns, self.to, self.to_columns = table, tuple(columns), to, tuple(to_columns)

    @property
    def reversible(self) -> bool:  # type: ignore[override]
        """Tell whether the key can be made again."""
        return self.to is not None and bool(self.to_columns)

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Drop what is found when it runs."""
        columns = sql.SQL(", ").join(map(sql.Literal, sorted(self.columns)))
        missing = f"no foreign key on {self.table} ({', '.join(self.columns)}), as DropForeignKey expects"
        to = None if self.to is None else sql.Identifier(self.to).as_string()
        table = sql.Literal(sql.Identifier(self.table).as_string())
        drop = _DROP.format(table=table, to=sql.Literal(to), columns=columns, missing=sql.Literal(missing))
        execute(schema_editor, drop)

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Make a key again, NOT VALID, and validate it: a query that obeys row-level security would not do."""
        name = sql.Identifier(truncate_name(f"{self.table}_{'_'.join(self.columns)}_fk", 63, hash_len=8))
        table, to = sql.Identifier(self.table), sql.Identifier(str(self.to))
        add = sql.SQL(
            "ALTER TABLE {} ADD CONSTRAINT {} FOREIGN KEY ({}) REFERENCES {} ({}) "
            "DEFERRABLE INITIALLY DEFERRED NOT VALID"
        ).format(table, name, _listed(self.columns), to, _listed(self.to_columns))
        execute(schema_editor, add)
        words = {"table": table.as_string(), "name": name.as_string()}
        validate = VALIDATE % {**words, "row_security": row_security_of(schema_editor.connection)}
        schema_editor.execute(validate, params=None)

    def describe(self) -> str:
        """Describe the operation."""
        return f"Drop the foreign key of {self.table} ({', '.join(self.columns)})"


def _listed(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))
