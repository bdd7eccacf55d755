"""Holds how tables are stored and vacuumed."""

from __future__ import annotations

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState
from psycopg import sql

from salon_jobs.migration_ops.base import DatabaseOperation, execute


class SetStorageParameters(DatabaseOperation):
    """Set a table's storage parameters (fillfactor, autovacuum); backwards they get the server's defaults again.

    SHARE UPDATE EXCLUSIVE: it waits for a VACUUM of that table, but nobody who reads or writes waits for it.
    """

    def __init__(self, table: str, parameters: dict[str, float]) -> None:
        self.table = table
        self.parameters = parameters

    def apply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Set them."""
        settings = sql.SQL(", ").join(
            sql.SQL("{} = {}").format(_name(name), sql.Literal(value)) for name, value in self.parameters.items()
        )
        execute(schema_editor, sql.SQL("ALTER TABLE {} SET ({})").format(sql.Identifier(self.table), settings))

    def unapply(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, state: ProjectState) -> None:
        """Reset them."""
        names = sql.SQL(", ").join(map(_name, self.parameters))
        execute(schema_editor, sql.SQL("ALTER TABLE {} RESET ({})").format(sql.Identifier(self.table), names))

    def describe(self) -> str:
        """Describe the operation."""
        return f"Set storage parameters of {self.table}"


def _name(parameter: str) -> sql.Composable:
    """Return a parameter as SQL; that of the TOAST table has a namespace."""
    return sql.SQL(".").join(map(sql.Identifier, parameter.split(".")))
