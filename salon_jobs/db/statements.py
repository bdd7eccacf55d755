"""The SQL files in ``db/sql``, and functions that run them on Django's connections."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from django.db import DataError, Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import ClientCursor, InterfaceError, OperationalError
from psycopg import Error as DriverError
from psycopg.errors import DeadlockDetected, LockNotAvailable
from psycopg.pq import Format
from psycopg.pq.abc import PGresult

from salon_jobs.conf.store_key import StoreKey, store_key
from salon_jobs.db.connections import raw_cursor
from salon_jobs.db.instants import UtcLoader
from salon_jobs.db.libpq import PreparedStatements, converted, exchange

_FOLDER: Final = Path(__file__).with_name("sql")
_PARTS: Final = _FOLDER / "parts.sql"
_NAME: Final = "-- name: "
_INCLUDE: Final = "-- include: "
_PLACEHOLDER: Final = re.compile(r"%\((\w+)\)s")
# With these psycopg reports that it lost the connection, or never had one.
_LOST: Final = (OperationalError, InterfaceError)
# Long enough for a transaction that is about to commit.
_SHORTLY: Final = timedelta(milliseconds=250)


def load(name: str) -> str:
    """Return a statement without its header comment, for the type of the stores' keys. Cached for the process."""
    return _load(name, store_key())


@cache
def _load(name: str, key: StoreKey) -> str:
    # A web process that enqueues its first job reads only the file of that name.
    file = _FOLDER / f"{name}.sql"
    statement = (_read(file) if file.is_file() else {}).get(name) or _statements()[name]
    return statement.replace("__store_type__", key.sql).replace("__no_store__", key.none_sql)


def array(values: Iterable[object]) -> str:
    """Return an array of numbers or plain words in PostgreSQL's text; psycopg would convert them one by one."""
    return f"{{{','.join([str(value) for value in values])}}}"


def files(pattern: str) -> list[str]:
    """Return the names of the files that match, in order."""
    return sorted(file.stem for file in _FOLDER.glob(f"{pattern}.sql"))


@cache
def _statements() -> dict[str, str]:
    return {name: text for file in _FOLDER.iterdir() if file != _PARTS for name, text in _read(file).items()}


@cache
def _parts() -> dict[str, str]:
    return _read(_PARTS)


def _read(file: Path) -> dict[str, str]:
    """Read the statements of one file. A statement before the first ``-- name:`` has the file's name."""
    found: dict[str, str] = {}
    name, lines = file.name.removesuffix(".sql"), list[str]()
    for line in [*file.read_text(encoding="utf-8").splitlines(), _NAME]:
        if not line.startswith(_NAME):
            if line.startswith(_INCLUDE):
                part, _, column = line.removeprefix(_INCLUDE).partition(" ")
                line = _parts()[part].replace("__column__", column)  # noqa: PLW2901
            lines.append(line)
            continue
        if statement := "\n".join(text for text in lines if not text.startswith("--")).strip():
            found[name] = statement
        name, lines = line.removeprefix(_NAME), []
    return found


class StatementRefused(DataError):
    """psycopg cannot write a statement's parameters, or read its result: not an outage, but a bug of ours."""

    def __init__(self, statement: str, parameters: Mapping[str, Any] | None, error: Error) -> None:
        kinds = ", ".join(f"{name} {_kind(value)}" for name, value in (parameters or {}).items())
        super().__init__(f"{statement} failed in psycopg, not in the server: {error} (its parameters: {kinds})")
        self.statement = statement


def _kind(value: Any) -> str:
    """Return the type of a parameter, never its value."""
    if not isinstance(value, list):
        return type(value).__name__
    items = cast("list[object]", value)
    return f"list[{' | '.join(sorted({type(each).__name__ for each in items}))}]"


def is_of_driver(error: BaseException) -> bool:
    """Return whether a database error is psycopg's own: it has no SQLSTATE, and the connection is not lost."""
    cause = error.__cause__
    return isinstance(cause, DriverError) and cause.sqlstate is None and not isinstance(cause, _LOST)


def _refuse(statement: str, parameters: Mapping[str, Any] | None, error: Error) -> None:
    if is_of_driver(error):
        raise StatementRefused(statement, parameters, error) from error.__cause__


def rows(statement: str, parameters: Mapping[str, Any] | None = None, *, using: str) -> list[Any]:
    """Run a statement on Django's cursor and return its rows as tuples. Raises database errors as Django's."""
    connection = connections[using]
    with connection.cursor() as cursor:
        if connection.timezone is None and connection.vendor == "postgresql":
            cursor.cursor.adapters.register_loader("timestamptz", UtcLoader)
        _execute(cursor, statement, parameters)
        fetched: list[Any] = cursor.fetchall()
        return fetched


def execute(statement: str, parameters: Mapping[str, Any] | None = None, *, using: str) -> int:
    """Run a statement as ``rows`` does; return how many rows it changed."""
    with connections[using].cursor() as cursor:
        _execute(cursor, statement, parameters)
        count: int = cursor.rowcount
        return count


def _execute(cursor: Any, statement: str, parameters: Mapping[str, Any] | None) -> None:
    try:
        cursor.execute(load(statement), parameters)
    except Error as error:
        _refuse(statement, parameters, error)
        raise


def in_one_trip(connection: BaseDatabaseWrapper, statements: str) -> PGresult:
    """Run statements separated by semicolons and return the last one's result; the first failure ends them.

    Values are inlined as literals, and libpq gets the text as it is: neither psycopg's nor Django's cursors see the
    statements or begin a transaction for them. Raises database errors as Django's.
    """
    raw: Any = connection.connection
    with connection.wrap_database_errors:
        return exchange(raw, raw.pgconn.exec_, statements.encode())


def ping(*, using: str) -> None:
    """Query the database for a sign of life, connecting first if needed. Raises database errors as Django's."""
    connection = connections[using]
    connection.ensure_connection()
    in_one_trip(connection, "SELECT 1")


def run_raw(
    statement: str,
    parameters: Mapping[str, Any],
    *,
    using: str,
    make_row: Callable[[Sequence[Any]], Any] = tuple,
    many: bool = False,
    prepare: bool = False,
    jit: bool = True,
) -> list[Any]:
    """Run one of our statements without Django's cursor wrappers, and return its rows, if it has any.

    For statements per job or claim. ``many``: hundreds of rows, while other threads are busy. ``prepare``: in
    autocommit only, and never behind a pooler in transaction mode. ``jit`` False: its cost is overestimated; where JIT
    is on, the server would compile it each time, which takes a hundred times as long as running it. Raises database
    errors as Django's, and StatementRefused, one of them, if psycopg cannot write the parameters or read the result.
    """
    connection = connections[using]
    try:
        with connection.wrap_database_errors:
            cursor: Any = raw_cursor(connection)
            raw: Any = cursor.connection
            if prepare:
                text, names = _numbered(load(statement))
                known = _prepared.get(connection)
                if known is None or known.raw is not raw:
                    known = _prepared[connection] = PreparedStatements(raw)
                return known.run(statement, text, [parameters[name] for name in names], make_row)
            if not jit:
                inlined = ClientCursor[Any](raw).mogrify(load(statement).encode(), parameters)
                return converted(raw, in_one_trip(connection, f"SET LOCAL jit = off; {inlined}"), make_row)
            # Not isinstance: it would narrow the type of the cursor below.
            if many and issubclass(type(cursor), ClientCursor) and raw.autocommit:
                # A claimed job is read in a fifth of the time, and the server formats no numbers; psycopg cannot read
                # the types of extensions that way.
                inlined = cursor.mogrify(load(statement).encode(), parameters)
                result = exchange(raw, raw.pgconn.exec_params, inlined.encode(), None, result_format=Format.BINARY)
                return converted(raw, result, make_row)
            cursor.execute(load(statement), parameters)
            found: list[Any] = [] if cursor.description is None else cursor.fetchall()
            return found if make_row is tuple else list(map(make_row, found))
    except Error as error:
        _refuse(statement, parameters, error)
        raise


# Keyed by Django's connection, like the plain cursors: they reference psycopg's. A claim of one job takes two thirds of
# the time that it takes unprepared.
_prepared: WeakKeyDictionary[BaseDatabaseWrapper, PreparedStatements] = WeakKeyDictionary()


@cache
def _numbered(text: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a statement with the server's placeholders, and the names of its parameters in their order."""
    names = tuple(dict.fromkeys(_PLACEHOLDER.findall(text)))
    return _PLACEHOLDER.sub(lambda found: f"${names.index(found[1]) + 1}", text).encode(), names


@contextmanager
def short_lock_timeout(longest: timedelta = _SHORTLY, *, using: str) -> Generator[None]:
    """Open a transaction that waits at most ``longest`` for each lock; inside another, a savepoint that does so.

    Then it raises an error for which ``is_lock_conflict`` is true. The rest of an outer transaction waits as before.
    """
    is_outermost = not connections[using].in_atomic_block
    with transaction.atomic(using=using):
        patience = f"{longest / timedelta(milliseconds=1):.0f}ms"
        [(before, _)] = run_raw("wait_briefly", {"patience": patience}, using=using)
        yield
        if not is_outermost:
            run_raw("wait_briefly", {"patience": before}, using=using)


def is_lock_conflict(error: BaseException) -> bool:
    """Return whether a statement gave up because another transaction holds a row, or the key of a job."""
    return isinstance(error.__cause__, LockNotAvailable | DeadlockDetected)
