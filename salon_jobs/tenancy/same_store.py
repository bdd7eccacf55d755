"""Declares in a model's ``Meta.constraints`` that a row and the row it refers to are of one store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.ddl_references import Columns, Statement, Table
from django.db.models import BaseConstraint, ForeignKey, Model

from salon_jobs.tenancy.brief_locks import brief_locks
from salon_jobs.tenancy.constraints import column_of

_ADD: Final = (
    "%(before)sALTER TABLE %(table)s ADD CONSTRAINT %(name)s FOREIGN KEY (%(columns)s) REFERENCES %(to_table)s "
    "(%(to_columns)s) DEFERRABLE INITIALLY DEFERRED NOT VALID%(after)s"
)
# VALIDATE first tries one query, with the caller's rights, and that query obeys FORCEd row-level security: it passes
# over rows that violate the constraint and refuses rows that do not. Without SELECT on the table PostgreSQL checks row
# by row instead, without row-level security; and should it ever try the query all the same, row_security = off makes
# that an error, never a lie. Nobody else sees the owner without its right: the transaction gives it back. Unlike
# taking FORCE off for the while, this blocks nobody who reads or writes.
VALIDATE: Final = (
    "SET LOCAL row_security = off;\nREVOKE SELECT ON %(table)s FROM CURRENT_USER;\n"
    "ALTER TABLE %(table)s VALIDATE CONSTRAINT %(name)s;\n"
    "GRANT SELECT ON %(table)s TO CURRENT_USER;\nSET LOCAL row_security = %(row_security)s"
)
_VALIDATE: Final = f"%(before)s{VALIDATE}%(after)s"
_DROP: Final = "%(before)sALTER TABLE %(table)s DROP CONSTRAINT %(name)s%(after)s"


def row_security_of(connection: BaseDatabaseWrapper) -> str:
    """Return what ``VALIDATE`` sets ``row_security`` back to."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW row_security")
        row: tuple[str] = cursor.fetchone()
    return row[0]


class SameStoreForeignKey(BaseConstraint):
    """Is the composite foreign key ``(store, field)`` to a row of the same store, checked at the end of a transaction.

    PostgreSQL checks foreign keys without row-level security: a plain one lets a row refer to another store's, and
    tells that it exists. ``field`` names the model's ForeignKey, which says ``db_constraint=False``; ``store_field``
    the field that holds the store, in this model and (unless ``to_store_field`` says otherwise) in the other one, which
    needs a UniqueConstraint on (store, key). A row without a reference is fine.

    The key is added at the end of the migration, NOT VALID, and then validated truthfully, whatever row-level security
    shows the migrator. In a migration with ``atomic = False`` writers wait for neither.
    """

    default_violation_error_message = "This refers to a row of another store, or to none."

    def __init__(
        self, *, field: str, name: str, store_field: str = "store", to_store_field: str | None = None, **messages: Any
    ) -> None:
        super().__init__(name=name, **messages)
        self.field, self.store_field = field, store_field
        self.to_store_field = to_store_field or store_field

    def constraint_sql(self, model: Any, schema_editor: Any) -> Any:
        """Leave CREATE TABLE as it is: the other table's unique constraint may come later in the migration."""
        self._add_at_the_end(model, schema_editor)

    def create_sql(self, model: Any, schema_editor: Any) -> Any:
        """Return what checks now the rows that wait for it: no table with such can be altered."""
        self._add_at_the_end(model, schema_editor)
        return Statement("SET CONSTRAINTS ALL IMMEDIATE")

    def remove_sql(self, model: Any, schema_editor: Any) -> Any:
        """Return what drops the key; one that this migration was to add at its end is not added."""
        drop = self._statement(_DROP, model, schema_editor)
        waiting: list[Any] = schema_editor.deferred_sql
        others = [statement for statement in waiting if not _adds(statement, drop)]
        if len(others) == len(waiting):
            return drop
        waiting[:] = others
        return Statement("SELECT")

    def _add_at_the_end(self, model: type[Model], schema_editor: BaseDatabaseSchemaEditor) -> None:
        schema_editor.deferred_sql += [
            self._statement(_ADD, model, schema_editor),
            self._statement(_VALIDATE, model, schema_editor),
        ]  # fmt: skip

    def reference(self, model: type[Model]) -> tuple[list[str], type[Model], list[str]]:
        """Return the key's columns, the model it refers to, and the columns there."""
        key = cast("ForeignKey[Any]", model._meta.get_field(self.field))
        to: type[Model] = key.remote_field.model
        to_columns = [column_of(to, self.to_store_field), column_of(to, key.target_field.name)]
        return [column_of(model, self.store_field), key.column], to, to_columns

    def _statement(self, template: str, model: type[Model], schema_editor: BaseDatabaseSchemaEditor) -> Statement:
        quote, meta = schema_editor.quote_name, model._meta
        columns, to, to_columns = self.reference(model)
        before, after = brief_locks(schema_editor.connection)
        return Statement(
            template,
            before="".join(f"{each.as_string()};\n" for each in before),
            after="".join(f";\n{each.as_string()}" for each in after),
            name=quote(self.name),
            table=Table(meta.db_table, quote),
            columns=Columns(meta.db_table, columns, quote),
            to_table=Table(to._meta.db_table, quote),
            to_columns=Columns(to._meta.db_table, to_columns, quote),
            row_security=row_security_of(schema_editor.connection),
        )

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        """Return how to write it; the public name is shorter than the module's."""
        path, arguments, keywords = super().deconstruct()
        keywords["field"] = self.field
        if self.store_field != "store":
            keywords["store_field"] = self.store_field
        if self.to_store_field != self.store_field:
            keywords["to_store_field"] = self.to_store_field
        return path.replace(f"{__name__}.", "salon_jobs."), arguments, keywords

    def validate(
        self, model: type[Model], instance: Model, exclude: Iterable[str] | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> None:
        """Refuse an instance whose reference has no row in its store. Raises ValidationError."""
        meta: Any = model._meta
        key, store = meta.get_field(self.field), meta.get_field(self.store_field)
        to: Any = key.remote_field.model
        wanted = {
            key.target_field.attname: getattr(instance, key.attname),
            to._meta.get_field(self.to_store_field).attname: getattr(instance, store.attname),
        }
        if None in wanted.values() or {self.field, self.store_field} & set(exclude or ()):
            return
        if not to._base_manager.using(using).filter(**wanted).exists():
            raise ValidationError(cast("Any", self.get_violation_error_message()), code=self.violation_error_code)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SameStoreForeignKey):
            return NotImplemented
        return self.deconstruct() == other.deconstruct()

    def __hash__(self) -> int:
        return hash((type(self), self.name))


def _adds(statement: object, drop: Statement) -> bool:
    """Tell whether a statement adds or validates the key that ``drop`` drops."""
    return (
        isinstance(statement, Statement)
        and statement.template in (_ADD, _VALIDATE)
        and all(str(statement.parts[part]) == str(drop.parts[part]) for part in ("table", "name"))
    )
