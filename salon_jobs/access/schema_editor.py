"""Schema changes of isolated tables, which have policies and hidden rows that Django's own statements do not expect.

An ordinary migration drops and adds foreign keys, fills NULLs, changes types. PostgreSQL checks a key by a query that
obeys forced row-level security; so does an UPDATE; and it alters no column that a policy reads. ``install`` mixes
``IsolatedTables`` into the schema editors of PostgreSQL; where nothing is isolated, its statements are Django's own.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.db import ProgrammingError, connections, transaction
from django.db.backends.ddl_references import Statement
from django.db.backends.postgresql.schema import DatabaseSchemaEditor
from django.db.models import Model

from salon_jobs.access.constraints import AccessConstraint, DatabaseForeignKey, row_by_row, row_security_of
from salon_jobs.access.declared_objects import PUBLIC, Policy, identifier, literal
from salon_jobs.access.operations.access import InstallFanOutFunction
from salon_jobs.access.policies import MEMBERSHIP_POLICY, user_condition
from salon_jobs.conf import settings as conf
from salon_jobs.tenancy.active import expect_no_rows

_UNFORCED: Final = (
    "ALTER TABLE %(table)s NO FORCE ROW LEVEL SECURITY; {}; ALTER TABLE %(table)s FORCE ROW LEVEL SECURITY"
)
# Keys other than Django's, which it drops itself: PostgreSQL would re-create them, check them by its query, and refuse
# keys with another column that is altered only later.
_KEYS: Final = """
SELECT c.conrelid::regclass::text, c.conname, pg_get_constraintdef(c.oid),
       CASE WHEN c.conrelid = c.confrelid THEN (SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute
            WHERE attrelid = c.confrelid AND attnum = ANY (c.confkey)) ELSE '' END
  FROM pg_constraint c JOIN pg_attribute a ON (a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey))
                                           OR (a.attrelid = c.confrelid AND a.attnum = ANY (c.confkey))
 WHERE c.contype = 'f' AND c.conparentid = 0 AND a.attrelid = to_regclass(%s) AND a.attname = %s
   AND (row_security_active(c.conrelid) OR row_security_active(c.confrelid) OR c.conname = ANY (%s)) ORDER BY 1, 2
"""
# Or an attempt without a transaction left it for the new target, when it failed to validate it.
_REFERS_ELSEWHERE: Final = """
SELECT FROM pg_constraint c WHERE conrelid = to_regclass(%s) AND conname = %s AND (confrelid <> to_regclass(%s)
   OR NOT convalidated AND confrelid <> to_regclass(%s)
   OR %s <> ARRAY(SELECT a.attname::text FROM unnest(c.confkey) WITH ORDINALITY AS n (number, position)
                    JOIN pg_attribute a ON a.attrelid = c.confrelid AND a.attnum = n.number ORDER BY n.position))
"""
_HAS_FUNCTION: Final = "SELECT WHERE to_regprocedure(%s) IS NOT NULL"
_HIDES_ROWS: Final = "SELECT row_security_active(oid) FROM pg_class WHERE oid = to_regclass(%s)"
_COMMANDS: Final[dict[str, Any]] = {"*": "ALL", "r": "SELECT", "a": "INSERT", "w": "UPDATE", "d": "DELETE"}
_POLICIES: Final = """
SELECT p.polrelid::regclass::text, p.polname, p.polpermissive, p.polcmd::text,
       ARRAY(SELECT coalesce(r.rolname, %s) FROM unnest(p.polroles) AS o (oid) LEFT JOIN pg_roles r ON r.oid = o.oid),
       pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid),
       obj_description(p.oid, 'pg_policy')
  FROM pg_policy p
 WHERE EXISTS (SELECT FROM pg_depend d JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
                WHERE d.classid = 'pg_policy'::regclass AND d.objid = p.oid AND d.refclassid = 'pg_class'::regclass
                  AND a.attrelid = to_regclass(%s) AND a.attname = %s)
 ORDER BY 1, 2
"""


class IsolatedTables(DatabaseSchemaEditor):
    """Schema editor with the same effect on isolated tables as on others, in the rows of all stores."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Objects that a field's alteration has dropped, by kind, table and name, with the SQL that re-creates them.
        self._dropped: dict[tuple[str, str, str], list[str]] = {}
        # Names of keys that models declare, among those that Django has looked up.
        self._declared_keys: set[str] = set()
        self._alteration = ExitStack()

    def execute(self, sql: Any, params: Any = ()) -> None:
        """Run or collect a statement; check a foreign key row by row if its query would not see all rows."""
        if isinstance(sql, Statement) and sql.template == self.sql_create_fk:
            table, to_table = str(sql.parts["table"]), str(sql.parts["to_table"])
            if self._hides_rows(table, to_table):
                check = row_by_row(sql.template, keys="%(to_column)s" if table == to_table else "")
                sql = Statement(check, **sql.parts, row_security=row_security_of(self.connection))
        super().execute(sql, params)

    def add_field(self, model: type[Model], field: Any) -> None:
        """Add a column; PostgreSQL looks up its default if the field is a foreign key."""
        if field.remote_field is None or field.many_to_many or not field.db_constraint:
            super().add_field(model, field)
            return
        to: Any = field.remote_field.model
        table, to_table = self.quote_name(model._meta.db_table), self.quote_name(to._meta.db_table)
        if not self._hides_rows(table, to_table):
            super().add_field(model, field)
            return
        column = to._meta.get_field(field.remote_field.field_name).column
        check = row_by_row(
            self.sql_create_column, keys=self.quote_name(column).replace("%", "%%") if table == to_table else ""
        )
        own = self.sql_create_column
        self.sql_create_column = check.replace("%(row_security)s", row_security_of(self.connection))
        try:
            super().add_field(model, field)
        finally:
            self.sql_create_column = own

    def alter_field(self, model: type[Model], old_field: Any, new_field: Any, strict: bool = False) -> None:
        """Alter a column, in all rows, with the policies that read it or a column that refers to it.

        Dropped policies are re-created before it ends, in the same transaction.
        """
        fills = old_field.null and not new_field.null and (new_field.has_default() or new_field.has_db_default())
        own = self.sql_update_with_default
        if fills and self._hides_rows(self.quote_name(model._meta.db_table)):
            self.sql_update_with_default = _UNFORCED.format(own)
        outer = self._dropped, self._alteration
        try:
            with ExitStack() as self._alteration:
                if fills:  # in the rows of all stores, also in strict mode
                    self._alteration.enter_context(expect_no_rows())
                self._dropped = {}
                super().alter_field(model, old_field, new_field, strict)
                self._restore()
                if old_field.name == new_field.name:
                    self._follow(model, new_field.model, new_field.name)
                if new_field.primary_key and old_field.column != new_field.column:
                    self._list_stores_of(new_field.model)
        finally:
            self.sql_update_with_default = own
            self._dropped, self._alteration = outer

    def alter_db_table(self, model: type[Model], old_db_table: str, new_db_table: str) -> None:
        """Give a table another name."""
        super().alter_db_table(model, old_db_table, new_db_table)
        if old_db_table != new_db_table:
            self._list_stores_of(model)

    def _list_stores_of(self, model: type[Model]) -> None:
        """Reinstall the function that lists the stores if the model is theirs: its text names table and key."""
        if conf.store_model is None or model._meta.label_lower != conf.store_model.lower():
            return
        if not self._rows(_HAS_FUNCTION, f"{identifier(*conf.fan_out_function.split('.'))}()"):
            return  # a later migration creates it
        with ExitStack() as stack:
            if not self.atomic_migration and not self.collect_sql:
                stack.enter_context(transaction.atomic(self.connection.alias))
            InstallFanOutFunction.install(self, model)

    def _alter_column_type_sql(
        self, model: type[Model], old_field: Any, new_field: Any, new_type: str, *collations: Any
    ) -> Any:
        """Drop the objects that keep the next statement from altering the column, which already has its new name."""
        table, column = self.quote_name(model._meta.db_table), new_field.column
        self._drop_policies(table, column, new_type)
        self._drop_keys(table, column)
        django: Any = super()  # its types leave it out
        return django._alter_column_type_sql(model, old_field, new_field, new_type, *collations)

    def _drop_policies(self, table: str, column: str, new_type: str) -> None:
        """Drop the policies that read the column."""
        for of, name, is_permissive, command, roles, using, check, comment in self._rows(
            _POLICIES, PUBLIC, table, column
        ):
            policy = Policy(
                name=name,
                command=_COMMANDS[command],
                roles=tuple(roles),
                # Only the membership policy casts to the type of a column.
                using=user_condition(column, new_type) if name == MEMBERSHIP_POLICY else using,
                check=check,
                is_permissive=is_permissive,
            )
            remark = f"COMMENT ON POLICY {identifier(name)} ON {of} IS {literal(comment)}" if comment else ""
            self._drop(("policy", of, name), policy.drop(of), policy.create(of), *([remark] if remark else []))

    def _drop_keys(self, table: str, column: str) -> None:
        """Drop the foreign keys from or to the column between tables that hide rows."""
        for of, name, definition, keys in self._rows(_KEYS, table, column, [*self._declared_keys]):
            alter = f"ALTER TABLE {of} %s CONSTRAINT {identifier(name)}"
            add = row_by_row(f"{alter % 'ADD'} {definition}".replace("%", "%%"), keys=keys.replace("%", "%%"))
            values = {"table": of, "row_security": row_security_of(self.connection)}
            self._drop(("foreign key", of, name), f"SET CONSTRAINTS ALL IMMEDIATE; {alter % 'DROP'}", add % values)

    def _drop(self, what: tuple[str, str, str], drop: str, *again: str) -> None:
        """Drop an object until the end of the alteration, in a transaction."""
        if what in self._dropped:
            return
        if not self._dropped and not self.atomic_migration:
            if self.collect_sql:
                self.execute("BEGIN", None)
                self._alteration.callback(self.execute, "COMMIT", None)
            else:
                self._alteration.enter_context(transaction.atomic(self.connection.alias))
        self._dropped[what] = [*again]
        self.execute(drop, None)

    def _restore(self) -> None:
        # Keys are dropped after policies, and both return in this order.
        for (kind, table, name), statements in self._dropped.items():
            try:
                for statement in statements:
                    self.execute(statement, None)
            except ProgrammingError as error:
                error.add_note(
                    f"The {kind} {name} of {table} compares the column with what has its old type. Write"
                    " RemoveConstraint before this operation and AddConstraint after it (for a model of another app"
                    " ReleaseModel and ProtectModel), with what that table declares"
                )
                raise

    def _follow(self, model: type[Model], new_model: type[Model], name: str) -> None:
        """Re-create the model's declarations about the field that are different now: another target, NULL."""
        before = {each.name: each for each in model._meta.constraints}
        for declared in new_model._meta.constraints:
            if before.get(declared.name) != declared:  # another operation changes it
                continue
            if isinstance(declared, AccessConstraint) and name in declared.fields:
                was, now = (declared.declares(each, using=self.connection.alias) for each in (model, new_model))
                if was != now:
                    declared.forget_deferred(model, self)
                    self.execute(declared.create_sql(new_model, self), None)
            elif isinstance(declared, DatabaseForeignKey) and declared.field == name:
                (_, before_to, _), (_, to, columns) = map(declared.reference, (model, new_model))
                of, target, old = (self.quote_name(each._meta.db_table) for each in (new_model, to, before_to))
                if self._rows(_REFERS_ELSEWHERE, of, declared.name, target, old, columns):
                    self.execute(declared.remove_sql(model, self), None)
                    self.execute(declared.create_sql(new_model, self), None)

    def _constraint_names(self, model: type[Model], *arguments: Any, **options: Any) -> list[str]:
        """Find no declared key when Django looks for its own: Django would not re-create it."""
        django: Any = super()  # its types leave it out
        names: list[str] = django._constraint_names(model, *arguments, **options)
        if not options.get("foreign_key"):
            return names
        declared = {each.name for each in model._meta.constraints if isinstance(each, DatabaseForeignKey)}
        self._declared_keys |= declared.intersection(names)
        return [name for name in names if name not in declared]

    def _rows(self, query: str, *parameters: Any) -> list[Any]:
        with self.connection.cursor() as cursor:
            cursor.execute(query, parameters)
            rows: list[Any] = cursor.fetchall()
        return rows

    def _hides_rows(self, *tables: str) -> bool:
        """Return whether policies hide rows of any of these tables (quoted names) from the migrating role."""
        return any(hides for table in tables for (hides,) in self._rows(_HIDES_ROWS, table))


def install() -> None:
    """Mix ``IsolatedTables`` into the schema editors of all PostgreSQL backends. Idempotent."""
    for alias in connections:
        try:
            backend: Any = type(connections[alias])
        except ImproperlyConfigured:  # its driver is not installed, as users of the alias will learn
            continue
        editor = backend.SchemaEditorClass or object  # a default of {} has none
        if issubclass(editor, DatabaseSchemaEditor) and not issubclass(editor, IsolatedTables):
            backend.SchemaEditorClass = type("DatabaseSchemaEditor", (IsolatedTables, editor), {})
