"""``MATRIX``, compared with what every role reaches, logged in as itself, on tables that are not empty."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, Literal, TypeAlias, get_args
from uuid import UUID

import psycopg
import pytest
from psycopg import errors, sql

from salon_jobs.access.roles import ROLE_SPECS
from salon_jobs.conf import settings as conf
from salon_jobs.conf.store_key import store_key
from tests.settings import url_for
from tests.support import new_store_id
from tests.tenancy import canaries
from tests.tenancy.matrix import COMMANDS, LETTERS, LOGINS, MATRIX, OWNERS, Command, Table

Connection: TypeAlias = psycopg.Connection[Any]
# The rows a statement reached, or what stopped it.
Outcome: TypeAlias = int | str
# In this order, since a setting that was made once in a session is never again as if it had not been.
Mode = Literal["never set", "no store", "own store", "other store", "malformed"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
REFUSED, MALFORMED, NOT_UNDER_RLS, EMPTIED = "refused", "malformed", "not under row-level security", "emptied"
PRIVILEGES: Final = {letter: command for command, letter in reversed(LETTERS.items())}


@dataclass(frozen=True, slots=True)
class Scene:
    """The stores, and how many rows of theirs each table has, as the superuser sees it."""

    own: UUID
    other: UUID
    rows: dict[str, dict[UUID | None, int]]

    def count(self, table: str, store: UUID) -> int:
        """Count the rows of a store, or of the whole table where rows have none."""
        of_stores = self.rows[table]
        return of_stores[store] if MATRIX[table].store else of_stores[None]

    def total(self, table: str) -> int:
        return sum(self.rows[table].values())


def counted(connection: Connection) -> dict[str, dict[UUID | None, int]]:
    counts: dict[str, dict[UUID | None, int]] = {}
    for name, table in MATRIX.items():
        store = sql.Identifier(table.store) if table.store else sql.SQL("NULL")
        query = sql.SQL("SELECT {}, count(*) FROM {} GROUP BY 1").format(store, sql.Identifier(name))
        counts[name] = dict(connection.execute(query).fetchall())
    return counts


@pytest.fixture(scope="module")
def scene(migrated: None) -> Iterator[Scene]:
    """Fill every table with rows of three stores, and look at the end that they are all still there."""
    stores = [new_store_id() for _ in range(3)]
    with psycopg.connect(url_for(None), autocommit=True) as superuser:
        canaries.clear(superuser)
        for _ in range(2):
            canaries.fill(superuser, stores)
        before = counted(superuser)
        yield Scene(stores[0], stores[1], before)
        after = counted(superuser)
        canaries.clear(superuser)
    assert after == before, "every attempt was rolled back"


@contextmanager
def logged_in(role: str) -> Iterator[Connection]:
    """Log in as a role; as the owner of a function, whom no one can be, through the superuser."""
    with psycopg.connect(url_for(None if role in OWNERS else role)) as connection:
        if role in OWNERS:
            connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        [(name, can_login, is_super, session)] = connection.execute(
            "SELECT rolname, rolcanlogin, rolsuper, session_user FROM pg_roles WHERE rolname = current_user"
        ).fetchall()
        assert (name, can_login, is_super) == (role, role in LOGINS, False)
        assert session == role or role in OWNERS
        connection.commit()
        yield connection


def test_every_table_and_role_is_declared(scene: Scene) -> None:
    with psycopg.connect(url_for(None)) as superuser:
        relations = superuser.execute(
            "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE relkind IN ('r', 'p', 'v', 'm', 'f') AND nspname !~ '^pg_' AND nspname <> 'information_schema'"
        ).fetchall()
    assert {name for (name,) in relations} == set(MATRIX), "a new table (or view) needs an entry in MATRIX"
    assert {spec.name(conf.roles) for spec in ROLE_SPECS} | set(conf.roles.extra_owners) == {*LOGINS, *OWNERS}


def test_every_table_has_rows_of_each_store(scene: Scene) -> None:
    for name, table in MATRIX.items():
        for store in (scene.own, scene.other):
            assert scene.count(name, store) >= (1 if name == "store" else 2), name
        assert not table.store or len(scene.rows[name]) == 3, name


@pytest.mark.parametrize("role", [*LOGINS, *OWNERS])
def test_role_reaches_exactly_what_is_declared(scene: Scene, role: str) -> None:
    """What is refused for want of a privilege is tried once, and TRUNCATE: neither gets as far as the policies."""
    with logged_in(role) as connection:
        tables = {name: Attempts(connection, name, table, scene) for name, table in MATRIX.items()}
        each: list[tuple[Mode, str, Command]] = [
            (mode, name, command)
            for mode, name, command in product(MODES, tables, COMMANDS)
            if mode == "own store" or (MATRIX[name].right(role).may(command) and command != "TRUNCATE")
        ]
        seen = {(mode, name, command): tables[name].outcome(mode, command) for mode, name, command in each}
    assert seen == {
        (mode, name, command): expected(scene, name, role, mode, command, by_store=tables[name].by_store)
        for mode, name, command in each
    }


@pytest.mark.parametrize("role", LOGINS)
def test_no_row_moves_to_another_store(scene: Scene, role: str) -> None:
    # Where scope is `all`, the role reaches the rows of every store.
    names = [name for name, table in MATRIX.items() if table.store and table.right(role).scope != "all"]
    with logged_in(role) as connection:
        for name in names:
            move = sql.SQL("UPDATE {} SET {} = %s").format(
                sql.Identifier(name), sql.Identifier(str(MATRIX[name].store))
            )
            connection.execute("SELECT set_config(%s, %s, true)", [conf.store_guc, str(scene.own)])
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute(move, [scene.other])
            connection.rollback()


def test_privileges_and_forced_policies_are_as_declared(scene: Scene) -> None:
    with psycopg.connect(url_for(None)) as superuser:
        for name, table in MATRIX.items():
            [(enabled, forced, public)] = superuser.execute(
                "SELECT relrowsecurity, relforcerowsecurity,"
                " (SELECT count(*) FROM aclexplode(relacl) WHERE grantee = 0)"
                " FROM pg_class WHERE oid = to_regclass(%s)",
                [name],
            ).fetchall()
            assert (enabled, forced, public) == (table.rls, table.rls, 0), f"{name}: nothing is granted to everybody"
            for role in (*LOGINS, *OWNERS):
                assert granted(superuser, role, name) == set(table.right(role).letters), (name, role)


def granted(connection: Connection, role: str, table: str) -> set[str]:
    """Return the letters of a role's privileges, in lower case where it has them on some columns alone."""
    letters: set[str] = set()
    for letter, privilege in PRIVILEGES.items():
        arguments = [role, table, privilege]
        if connection.execute("SELECT has_table_privilege(%s, %s, %s)", arguments).fetchone() == (True,):
            letters.add(letter)
        elif letter not in "DT":  # these are never of columns
            part = connection.execute("SELECT has_any_column_privilege(%s, %s, %s)", arguments).fetchone()
            letters |= {letter.lower()} if part == (True,) else set()
    return letters


def expected(scene: Scene, name: str, role: str, mode: Mode, command: Command, *, by_store: bool) -> Outcome:
    """Return what the declaration says of one attempt. ``by_store``: the role may name the store's column."""
    right = MATRIX[name].right(role)
    if not right.may(command):
        return REFUSED
    if command == "TRUNCATE":
        return EMPTIED
    if command == "COPY FROM":
        return NOT_UNDER_RLS if MATRIX[name].rls else 1
    unnamed = right.scope == "named" and mode in ("never set", "no store")
    # Of texts, each could be a key: it is that of no store.
    is_malformed = mode == "malformed" and store_key().sql != "text"
    if unnamed or (right.scope in ("own", "named") and is_malformed):
        return MALFORMED
    if right.scope != "all" and mode != "own store":
        return REFUSED if command == "INSERT" else 0
    if command == "INSERT":
        return 1
    if mode == "other store" and by_store:
        return scene.count(name, scene.other)
    return scene.total(name) if right.scope == "all" else scene.count(name, scene.own)


class Attempts:
    """Commands on one table over one role's connection, each in a transaction that is rolled back."""

    def __init__(self, connection: Connection, name: str, table: Table, scene: Scene) -> None:
        self._connection, self._name, self._table, self._scene = connection, name, table, scene
        rights = connection.execute(
            "SELECT attname, has_column_privilege(attrelid, attnum, 'SELECT'),"
            " has_column_privilege(attrelid, attnum, 'INSERT'), has_column_privilege(attrelid, attnum, 'UPDATE')"
            " FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
            " AND attgenerated = '' AND (attidentity = '' OR attname = %s) ORDER BY attnum",
            [name, table.store],
        ).fetchall()
        connection.rollback()
        connection.autocommit = True  # an attempt's BEGIN goes with its settings, in one trip
        every = [column for column, *_ in rights]
        # A role without any such column tries them all, and must be refused.
        self._selects = [column for column, may, _, _ in rights if may] or every
        self._inserts = [column for column, _, may, _ in rights if may] or every
        self._updates = [column for column, _, _, may in rights if may] or every
        self.by_store = table.store in self._selects

    def outcome(self, mode: Mode, command: Command) -> Outcome:
        """Try one command: on other stores' rows in that mode, on all that are within reach in the others."""
        values = {"no store": "", "malformed": "no key"}
        begin = "BEGIN; SET CONSTRAINTS ALL DEFERRED"
        if mode != "never set":
            begin += f"; SET LOCAL {conf.store_guc} = '{values.get(mode, self._scene.own)}'"
        try:
            self._connection.execute(begin.encode())
            return self._try(mode, command)
        except errors.InsufficientPrivilege:
            return REFUSED
        except errors.InvalidTextRepresentation:
            return MALFORMED
        except errors.FeatureNotSupported:
            return NOT_UNDER_RLS
        finally:
            self._connection.rollback()

    def _try(self, mode: Mode, command: Command) -> Outcome:
        table, selected = sql.Identifier(self._name), sql.SQL(", ").join(map(sql.Identifier, self._selects))
        of_other = mode == "other store"
        where = sql.SQL(" WHERE {} = %s").format(sql.Identifier(str(self._table.store)))
        condition, parameters = (where, [self._scene.other]) if of_other and self.by_store else (sql.SQL(""), [])
        select = sql.SQL("SELECT {} FROM {}").format(selected, table) + condition
        row = canaries.make(self._name, self._scene.other if of_other else self._scene.own)
        row = {column: value for column, value in row.items() if column in self._inserts}
        column = sql.Identifier(self._updates[0])
        match command:
            case "INSERT":
                return self._insert(row)
            case "COPY TO":
                what = sql.SQL("({})").format(select) if of_other else sql.SQL("{} ({})").format(table, selected)
                with self._connection.cursor().copy(sql.SQL("COPY {} TO STDOUT").format(what), parameters) as copy:
                    return sum(1 for _ in copy.rows())
            case "COPY FROM":
                columns = sql.SQL(", ").join(map(sql.Identifier, row))
                with self._connection.cursor() as cursor:
                    with cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(table, columns)) as copy:
                        copy.write_row(list(row.values()))
                    return cursor.rowcount
            case "TRUNCATE":
                self._connection.execute(sql.SQL("TRUNCATE {} CASCADE").format(table))
                return EMPTIED
            case "SELECT":
                statement = select
            case "UPDATE":
                statement = sql.SQL("UPDATE {} SET {} = {}").format(table, column, column) + condition
            case "DELETE":
                statement = sql.SQL("DELETE FROM {}").format(table) + condition
        return self._connection.execute(statement, parameters).rowcount

    def _insert(self, row: dict[str, Any]) -> int:
        try:
            return self._connection.execute(*canaries.insert(self._name, row)).rowcount
        except errors.UniqueViolation:
            # Policies are checked first: they allowed this second row of the store.
            assert self._name == "store"
            return 1
