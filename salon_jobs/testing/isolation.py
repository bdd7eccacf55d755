"""Acting as a database role or a store, and a proof, as the real roles, that a table keeps stores apart."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, LiteralString, NamedTuple, NoReturn, TypeAlias

from django.db import DatabaseError, IntegrityError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model
from psycopg import errors, sql

from salon_jobs.access.constraints import StoreIsolation, column_of
from salon_jobs.access.declared_objects import identifier
from salon_jobs.access.operations.access import declared_by_operations, declared_in_meta
from salon_jobs.access.store_paths import StorePaths
from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_model
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.core.records import GivenStore, StoreId
from salon_jobs.db.connections import alias_of, can_run
from salon_jobs.tenancy import expect_no_rows, guc
from salon_jobs.tenancy.context import tenant_context

_KEYS: Final = ("web", "worker", "operator", "migrator")


@contextmanager
def as_role(role: str, *, using: str | None = None) -> Generator[None]:
    """Run a block as a database role: web, worker, operator or migrator of SALON_JOBS['ROLES'], or any role's name.

    Opens a transaction (or a savepoint) and sets the role locally in it, so that the role's privileges and policies
    apply; the previous role is set again at the end. The connection's login must be a superuser or a member of the
    role. Raises ConfigurationError if it is not, or if there is no such role.
    """
    connection = connections[alias_of(using)]
    name = _role_name(role)
    with transaction.atomic(using=connection.alias):
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('role'), session_user")
            before, login = cursor.fetchone()
            try:
                cursor.execute("SELECT set_config('role', %s, true)", [name])
            except DatabaseError as error:
                raise _refusal(name, login, error) from error
        yield
        # RELEASE SAVEPOINT keeps a local setting. After an error, rolling back to the savepoint reverts the role too.
        if can_run(connection):
            with connection.cursor() as cursor:
                cursor.execute("SELECT set_config('role', %s, true)", [before])


@contextmanager
def as_store(store: GivenStore | Model, *, using: str | None = None) -> Generator[None]:
    """Run a block as a store, given as a row of the store model or its id: ``tenant_context`` in a transaction."""
    store_id: Any = store.pk if isinstance(store, Model) else store
    with tenant_context(store_id, using=using):
        yield


def _role_name(role: str) -> str:
    """Return the name of a role in this deployment. Raises ConfigurationError for a key of ROLES if that is not set."""
    if role not in _KEYS:
        return role
    if conf.roles.one_user:
        raise ConfigurationError(
            f"there is no role {role!r}: SALON_JOBS['ROLES'] is not set, so one database user does everything"
        )
    name: str = getattr(conf.roles, role)
    return name


def _refusal(name: str, login: str, error: DatabaseError) -> ConfigurationError:
    if isinstance(error.__cause__, errors.InsufficientPrivilege):
        return ConfigurationError(
            f"the test's connection logs in as {login!r}, which may not become {name!r}: "
            f'let the tests log in as a superuser, or GRANT "{name}" TO "{login}" on the test server'
        )
    return ConfigurationError(f"the test's connection cannot become {name!r}: {error}")


class Column(NamedTuple):
    """A column and the current role's privileges on it; ``type`` is in SQL notation."""

    name: str
    type: str
    selectable: bool
    insertable: bool
    updatable: bool
    nullable: bool


@dataclass(frozen=True, slots=True)
class StoreTable:
    """A table of a connection, and the columns that determine the store.

    ``store`` is the store of its row ``t``, in SQL. ``keys`` has, for each column, a value that each store may have
    there: the store itself, or the key of one of its parents. The first column always has one.
    """

    connection: BaseDatabaseWrapper
    name: str
    store: str
    keys: dict[str, dict[StoreId, Any]]

    def __str__(self) -> str:
        """Return the name, for messages."""
        return f"table {self.name!r}"

    def sql(self, statement: LiteralString, column: str = "") -> sql.Composed:
        """Fill in ``{table}``, ``{store}`` and ``{column}``."""
        store = sql.SQL(self.store)  # pyright: ignore[reportArgumentType]
        return sql.SQL(statement).format(table=sql.Identifier(self.name), store=store, column=sql.Identifier(column))

    def ask(self, query: LiteralString) -> list[tuple[Any, ...]]:
        """Return the rows of a query of the catalogue, with the table's name as ``%(table)s``."""
        with self.connection.cursor() as cursor:
            cursor.execute(query, {"table": self.connection.ops.quote_name(self.name)})
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def assert_forced(self) -> None:
        """Assert that row-level security is enabled, and forced for the owner."""
        [(enabled, forced)] = self.ask(
            "SELECT relrowsecurity, relforcerowsecurity FROM pg_class WHERE oid = %(table)s::regclass"
        )
        if not enabled:
            raise AssertionError(f"row-level security is not enabled on {self}")
        if not forced:
            raise AssertionError(f"row-level security is not forced on {self}: its owner sees and changes every row")

    def restricts(self) -> bool:
        """Return whether the policies apply to the current role."""
        return self.ask("SELECT row_security_active(%(table)s::regclass)") == [(True,)]

    def truncatable(self) -> bool:
        """Return whether the current role may TRUNCATE it, which no policy prevents."""
        return self.ask("SELECT has_table_privilege(%(table)s::regclass, 'TRUNCATE')") == [(True,)]

    def parts_in_reach(self) -> list[str]:
        """Return the partitions and children that the current role may use, and to which its policies do not apply."""
        rows = self.ask(
            "WITH RECURSIVE parts AS (SELECT inhrelid AS part FROM pg_inherits WHERE inhparent = %(table)s::regclass"
            " UNION SELECT inhrelid FROM pg_inherits JOIN parts ON inhparent = part) SELECT part::regclass::text"
            " FROM parts WHERE has_any_column_privilege(part, 'SELECT, INSERT, UPDATE')"
            " OR has_table_privilege(part, 'DELETE, TRUNCATE') ORDER BY 1"
        )
        return [name for (name,) in rows]

    def visible(self) -> dict[StoreId | None, int]:
        """Count the rows that the current role sees, by store."""
        with self.connection.cursor() as cursor:
            cursor.execute(self.sql("SELECT {store}, count(*) FROM {table} AS t GROUP BY 1"))
            return dict(cursor.fetchall())

    def columns(self) -> list[Column]:
        """Return the columns to which statements may assign a value, with the current role's privileges."""
        rows = self.ask(
            "SELECT attname, format_type(atttypid, atttypmod), has_column_privilege(attrelid, attnum, 'SELECT'),"
            " has_column_privilege(attrelid, attnum, 'INSERT'), has_column_privilege(attrelid, attnum, 'UPDATE'),"
            " NOT attnotnull"
            " FROM pg_attribute WHERE attrelid = %(table)s::regclass AND attnum > 0 AND NOT attisdropped"
            " AND attgenerated = '' AND attidentity <> 'a' ORDER BY attnum"
        )
        return [Column(*row) for row in rows]


def _table_of(model: type[Model], field: str | None, connection: BaseDatabaseWrapper) -> StoreTable:
    """Return the table of a model. Raises ConfigurationError if its store column cannot be determined."""
    meta = model._meta
    declared = {**declared_by_operations(), **declared_in_meta()}
    isolation = declared.get(model)
    through: list[str] = []
    if field is None and isinstance(isolation, StoreIsolation):
        field, through = isolation.field, [column_of(model, name) for name in isolation.through]
        store = StorePaths(declared, lambda model: identifier(model._meta.db_table)).of(model, "t")
        if not field and store is not None:
            return StoreTable(connection, meta.db_table, store, {column: {} for column in through})
    of_stores = store_model()
    candidates = [
        f.column
        for f in meta.local_concrete_fields
        if (
            f.attname == "store_id" or (f.related_model is not None and f.related_model is of_stores)
            if field is None
            else field in (f.name, f.attname)
        )
    ]
    [column] = candidates if len(candidates) == 1 else [None]
    if column is None:
        raise ConfigurationError(
            f"{meta.label} has {len(candidates)} fields of its own table that may hold the store: "
            "declare StoreIsolation, or name the field with field=…"
        )
    return StoreTable(
        connection, meta.db_table, f"t.{identifier(column)}", {column: {} for column in (column, *through)}
    )


_MALFORMED: Final = "no key"
_Template: TypeAlias = dict[Column, str | None]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Result of a statement that was rolled back: the number of rows it touched, or its error.

    ``visible`` is how many rows the store saw afterwards, if that was counted.
    """

    touched: int = 0
    visible: int = 0
    error: DatabaseError | None = None

    @property
    def is_refused(self) -> bool:
        """Whether privileges, a policy or an invalid key in the setting caused an error."""
        cause = self.error.__cause__ if self.error else None
        return isinstance(cause, errors.InsufficientPrivilege | errors.InvalidTextRepresentation)

    def __str__(self) -> str:
        """Return the result in readable form."""
        return f"{self.touched} rows" if self.error is None else str(self.error).strip()


@dataclass(frozen=True, slots=True)
class IsolationProbe:
    """Test of one role on one table. ``rows`` is how many rows each store has, None if they could not be counted."""

    table: StoreTable
    role: str
    rows: dict[StoreId, int | None]

    def run(self) -> None:
        """Try everything, inside a transaction, as the current role. Raises AssertionError."""
        columns = self.table.columns()
        deciding = [column for name in self.table.keys for column in columns if column.name == name]
        store_column, *_ = deciding
        self._check_privileges(store_column)
        for store in self.rows:
            self._read(store)
        one, other, *_ = self.rows
        for store, victim in ((one, other), (other, one)):
            self._set(str(store))
            template = self._template(columns)
            touch = self._touch([column.name for column in columns if column.updatable])
            own = {each.name: self.table.keys[each.name].get(store) for each in deciding if each.updatable}
            self._change(store, touch, {name: key for name, key in own.items() if key is not None})
            self._delete(store)
            for column in deciding:
                if (key := self.table.keys[column.name].get(victim)) is not None:
                    self._move(store, column, key, f"store {victim}")
                    self._insert(_with(key, template, column), f"as store {store} a row of store {victim}")
            if store_column.nullable:
                # Rows of no store are visible to every store if a policy says so.
                self._insert(_with(None, template, store_column), f"as store {store} a row of no store")
                self._move(store, store_column, None, "no store")
            for value, how in (("", "without a store"), (_MALFORMED, f"with {_MALFORMED!r} as the store")):
                self._set(value)
                self._do_nothing(touch, template, how)

    def _check_privileges(self, store_column: Column) -> None:
        if not store_column.selectable:
            self._fail(f"may not read {store_column.name!r}, so it proves nothing: pass roles=… with the roles that do")
        if not self.table.restricts():
            self._fail("is not under its policies: it is a superuser or has BYPASSRLS")
        if not conf.roles.one_user and self.role != conf.roles.migrator and self.table.truncatable():
            self._fail("may TRUNCATE it, and no policy prevents that")
        if parts := self.table.parts_in_reach():
            self._fail(f"reaches its partitions or children past its policies: {', '.join(parts)}")

    def _read(self, store: StoreId) -> None:
        self._set(str(store))
        visible = self.table.visible()
        if others := set(visible) - {store}:
            self._fail(f"sees, as store {store}, rows of {sorted(map(str, others))}")
        if store not in visible or self.rows[store] not in (None, visible[store]):
            self._fail(
                f"sees, as store {store}, {visible.get(store, 0)} of its {self.rows[store] or 'own'} rows: "
                "no policy shows them to this role"
            )

    def _template(self, columns: Sequence[Column]) -> _Template:
        """Return the values of one of the current store's rows, as texts, in the columns that the role may insert."""
        copied = [column for column in columns if column.selectable and column.insertable]
        if not copied:
            return {}
        texts = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(column.name)) for column in copied)
        with self.table.connection.cursor() as cursor:
            cursor.execute(sql.SQL("SELECT {} FROM {} LIMIT 1").format(texts, sql.Identifier(self.table.name)))
            return dict(zip(copied, cursor.fetchone(), strict=True))

    def _touch(self, updatable: Sequence[str]) -> sql.Composed:
        """Return an update that sets a column to its own value: the first updatable one, or else the store's.

        It has no condition: with one, SELECT policies would stand in for a missing UPDATE policy.
        """
        name = sql.Identifier(updatable[0] if updatable else next(iter(self.table.keys)))
        return sql.SQL("UPDATE {} SET {} = {}").format(sql.Identifier(self.table.name), name, name)

    def _change(self, store: StoreId, touch: sql.Composed, moves: dict[str, Any]) -> None:
        own = self.table.visible()[store]
        # With ``moves``, other stores' rows would become this store's own.
        attempt = self._move_all(moves, count=True) if moves else _Attempt(error=IntegrityError())
        if isinstance(attempt.error, IntegrityError):  # it may move none, or its rows would no longer be unique
            attempt = self._attempt(touch, count=True)
        if not attempt.is_refused and (attempt.error or attempt.touched > own or attempt.visible != own):
            self._fail(f"changes, as store {store} with {own} rows, more than those: {attempt}", attempt)

    def _delete(self, store: StoreId) -> None:
        own = self.table.visible()[store]
        attempt = self._attempt(self.table.sql("DELETE FROM {table}"), count=True)
        if isinstance(attempt.error, IntegrityError):  # other rows refer to them
            attempt = self._attempt(self.table.sql("DELETE FROM {table} AS t WHERE {store} <> %s"), store, count=True)
        if not attempt.is_refused and (attempt.error or attempt.visible != own - attempt.touched):
            self._fail(f"deletes, as store {store} with {own} rows, others than those: {attempt}", attempt)

    def _move_all(self, keys: dict[str, Any], *, count: bool = False) -> _Attempt:
        """Give all rows these keys."""
        to = sql.SQL(", ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in keys)
        update = sql.SQL("UPDATE {} SET {}").format(sql.Identifier(self.table.name), to)
        return self._attempt(update, *keys.values(), count=count)

    def _move(self, store: StoreId, column: Column, key: Any, where: str) -> None:
        attempt = self._move_all({column.name: key})
        by_trigger = attempt.error is not None and isinstance(attempt.error.__cause__, errors.RaiseException)
        if not attempt.is_refused and not by_trigger and (attempt.error or attempt.touched):
            self._fail(f"moves, as store {store}, rows to {where}: {attempt}", attempt)

    def _insert(self, values: _Template, what: str) -> None:
        """Insert a row. The policy is checked before any constraint."""
        if not values:
            return
        statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
            sql.Identifier(self.table.name),
            sql.SQL(", ").join(sql.Identifier(column.name) for column in values),
            sql.SQL(", ").join(sql.SQL("%s::" + column.type) for column in values),  # pyright: ignore[reportArgumentType]
        )
        attempt = self._attempt(statement, *values.values())
        if not attempt.is_refused:
            self._fail(f"inserts {what}, and no policy stopped it: {attempt}", attempt)

    def _do_nothing(self, touch: sql.Composed, template: _Template, how: str) -> None:
        """Assert that no row can be seen, changed, deleted or inserted now."""
        for verb, statement in (
            ("sees", self.table.sql("SELECT {store} FROM {table} AS t")),
            ("changes", touch),
            ("deletes", self.table.sql("DELETE FROM {table}")),
        ):
            attempt = self._attempt(statement)
            if not attempt.is_refused and (attempt.error or attempt.touched):
                self._fail(f"{verb} {how} what it should not: {attempt}", attempt)
        self._insert(template, f"{how} a row of another")

    def _set(self, value: str) -> None:
        with self.table.connection.cursor() as cursor:
            cursor.execute(guc.SET_LOCAL, [conf.store_guc, value])

    def _attempt(self, statement: sql.Composed, *parameters: Any, count: bool = False) -> _Attempt:
        """Run a statement and roll it back; with ``count``, count the visible rows before that."""
        connection = self.table.connection
        try:
            with transaction.atomic(using=connection.alias):
                with connection.cursor() as cursor:
                    cursor.execute(statement, parameters)
                    touched = cursor.rowcount
                visible = sum(self.table.visible().values()) if count else 0
                transaction.set_rollback(True, using=connection.alias)
            return _Attempt(touched, visible)
        except DatabaseError as error:
            return _Attempt(error=error)

    def _fail(self, what: str, attempt: _Attempt | None = None) -> NoReturn:
        error = attempt.error if attempt is not None else None
        raise AssertionError(f"{self.table} is not isolated: role {self.role!r} {what}") from error


def _with(key: Any, template: _Template, changed: Column) -> _Template:
    """Return the values with another key in a column, if the role may insert it."""
    value = None if key is None else str(key)
    return {column: value if column == changed else old for column, old in template.items()}


def assert_isolated(
    model: type[Model],
    *,
    roles: Sequence[str] | None = None,
    stores: Sequence[GivenStore] | None = None,
    field: str | None = None,
    using: str | None = None,
) -> None:
    """Assert that the database itself keeps each store from the other stores' rows in a model's table.

    The table must already hold rows of two stores or more (written in the same transaction, for example). Runs as each
    of ``roles`` (in the notation of ``as_role``; by default, web and worker if they have any privilege on the table, or
    without ROLES the connection's own user). Tries SELECT, INSERT, UPDATE and DELETE, with and without a condition, as
    one store on another's rows, without a store, and with a setting that is not a key; and checks that row-level
    security is forced. All of it is rolled back.

    ``stores`` are the stores to try, required if the connection itself is under row-level security and cannot find
    them. ``field`` is the field that holds the store, if StoreIsolation does not define it and it is not the only
    foreign key to STORE_MODEL. Raises AssertionError saying which role could do what, and ConfigurationError if the
    test cannot be done this way.
    """
    connection = connections[alias_of(using)]
    table = _table_of(model, field, connection)
    with expect_no_rows(), transaction.atomic(using=connection.alias):
        with connection.cursor() as cursor:
            # The test does not concern constraint errors at the end of the transaction.
            cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        table.assert_forced()
        rows = _rows_by_store(table, stores)
        _find_keys(table, rows)
        for role in _default_roles(table) if roles is None else roles:
            with as_role(role, using=connection.alias):
                IsolationProbe(table, _role_name(role), rows).run()
        transaction.set_rollback(True, using=connection.alias)


def _default_roles(table: StoreTable) -> Sequence[str]:
    """Return the roles to test by default: web and worker, without those that have no privilege on the table."""
    if conf.roles.one_user:
        return [role for (role,) in table.ask("SELECT current_user")]
    used = table.ask(
        "SELECT rolname FROM pg_roles"
        " WHERE has_any_column_privilege(oid, %(table)s::regclass, 'SELECT, INSERT, UPDATE')"
        " OR has_table_privilege(oid, %(table)s::regclass, 'DELETE, TRUNCATE')"
    )
    roles = [role for role in ("web", "worker") if (_role_name(role),) in used]
    if not roles:
        raise AssertionError(f"neither the web's nor the worker's role may do anything with {table}")
    return roles


def _find_keys(table: StoreTable, stores: Iterable[StoreId]) -> None:
    """Find a key of each store for each column, in its own rows."""
    with table.connection.cursor() as cursor:
        for store in stores:
            cursor.execute(guc.SET_LOCAL, [conf.store_guc, str(store)])
            for column, keys in table.keys.items():
                query: LiteralString = "SELECT {column} FROM {table} AS t WHERE {store} = %s AND {column} IS NOT NULL"
                cursor.execute(table.sql(f"{query} LIMIT 1", column), [store])
                keys.update((store, key) for (key,) in cursor.fetchall())


def _rows_by_store(table: StoreTable, stores: Sequence[GivenStore] | None) -> dict[StoreId, int | None]:
    """Return how many rows each store has, None if the connection cannot see them. Raises for fewer than two stores."""
    counts: dict[StoreId, int | None] = {}
    if not table.restricts():
        counts = {store: count for store, count in table.visible().items() if store is not None}
    elif stores is None:
        raise AssertionError(
            f"the connection is under row-level security itself and cannot find which stores have rows in {table}: "
            "pass two of them with stores=[…]"
        )
    else:
        counts = dict.fromkeys(map(guc.as_store, stores))
    if stores is not None:
        counts = {store: counts.get(store, 0) for store in map(guc.as_store, stores)}
    empty = [str(store) for store, count in counts.items() if count == 0]
    if not counts or empty:
        raise AssertionError(
            f"{table} has no row{f' of {empty}' if empty else ''}: an empty table always seems isolated"
        )
    if len(counts) == 1:
        raise AssertionError(
            f"only one store has rows in {table}, so it could see no other store's; add rows of another"
        )
    return counts
