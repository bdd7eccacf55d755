"""The SQL files in ``db/sql``, and functions that run them on Django's connections."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import ClientCursor, OperationalError
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

from salon_jobs.conf import settings as conf
from salon_jobs.db.connections import raw_cursor
from salon_jobs.db.instants import UtcLoader
from salon_jobs.db.internals import execute_steps

_FOLDER: Final = Path(__file__).with_name("sql")
_NAME: Final = "-- name: "
_PLACEHOLDER: Final = re.compile(r"%\((\w+)\)s")


@cache
def load(name: str) -> str:
    """Return a statement without its header comment, cached for the process."""
    # A web process that enqueues its first job reads only the file of that name.
    file = _FOLDER / f"{name}.sql"
    return (_read(file) if file.is_file() else {}).get(name) or _statements()[name]


def files(pattern: str) -> list[str]:
    """Return the names of the files that match, in order."""
    return sorted(file.stem for file in _FOLDER.glob(f"{pattern}.sql"))


@cache
def _statements() -> dict[str, str]:
    return {name: statement for file in _FOLDER.iterdir() for name, statement in _read(file).items()}


def _read(file: Path) -> dict[str, str]:
    """Read the statements of one file. A statement before the first ``-- name:`` has the file's name."""
    found: dict[str, str] = {}
    name, lines = file.name.removesuffix(".sql"), list[str]()
    for line in [*file.read_text(encoding="utf-8").splitlines(), _NAME]:
        if not line.startswith(_NAME):
            lines.append(line)
            continue
        if statement := "\n".join(text for text in lines if not text.startswith("--")).strip():
            found[name] = statement
        name, lines = line.removeprefix(_NAME), []
    return found


_SUCCESS = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


def in_one_trip(connection: BaseDatabaseWrapper, statements: str) -> PGresult:
    """Run statements separated by semicolons and return the last one's result; the first failure ends them.

    Values are inlined as literals, and libpq gets the text as it is: neither psycopg's nor Django's cursors see the
    statements or begin a transaction for them. Raises database errors as Django's.
    """
    raw: Any = connection.connection
    with connection.wrap_database_errors:
        return _run(raw, raw.pgconn.exec_, statements.encode())


def _run(raw: Any, call: Callable[..., PGresult], *arguments: Any, **options: Any) -> PGresult:
    """Call a function of libpq on a psycopg connection and return its result, or raise the error it holds."""
    with raw.lock:
        if raw.closed:
            raise OperationalError("the connection is closed")
        return succeeded(raw, call(*arguments, **options))


def succeeded(raw: Any, result: PGresult) -> PGresult:
    """Return a result, or raise the error it holds."""
    if result.status not in _SUCCESS:
        error = error_from_result(result, encoding=raw.info.encoding)
        if raw.closed and error.sqlstate is None:  # libpq's own error, which has no class
            raise OperationalError(str(error))
        raise error
    return result


def results_in_one_trip(connection: BaseDatabaseWrapper, statements: str) -> list[PGresult]:
    """Run statements as ``in_one_trip``; return the results of all, of which the last may be an error.

    It waits as psycopg does: other greenlets run meanwhile, and an interrupt cancels the statement.
    """
    raw: Any = connection.connection
    with connection.wrap_database_errors, raw.lock:
        raw.pgconn.send_query(statements.encode(raw.info.encoding))
        results: list[PGresult] = raw.wait(execute_steps(raw.pgconn))
        return results


def _in_binary(connection: BaseDatabaseWrapper, statement: str, make_row: Callable[[Sequence[Any]], Any]) -> list[Any]:
    """Run one statement as ``in_one_trip`` and return its rows, read in binary.

    Waits for the response and reads it without the GIL. A cursor takes the GIL again for every packet that arrives;
    while other threads are busy, each time costs the switch interval (5 ms): for a claim of 1,000 jobs, as long as the
    server takes. In binary, a claimed job is read in a fifth of the time, and the server formats no numbers; psycopg
    cannot read the types of extensions that way.
    """
    raw: Any = connection.connection
    with connection.wrap_database_errors:
        result = _run(raw, raw.pgconn.exec_params, statement.encode(), None, result_format=Format.BINARY)
    return converted(connection.connection, result, make_row)


class _Prepared:
    """What one psycopg connection has prepared: the names of our statements, and how to write and read their values.

    Finding that out takes as long as the call.
    """

    __slots__ = ("names", "raw", "transformer")

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.transformer = Transformer(raw)
        self.names: dict[str, bytes] = {}


# Keyed by Django's connection, like the plain cursors: a transformer references psycopg's.
_prepared: WeakKeyDictionary[BaseDatabaseWrapper, _Prepared] = WeakKeyDictionary()
_numbers: Final = itertools.count()


@cache
def _numbered(name: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a statement with the server's placeholders, and the names of its parameters in their order."""
    names = tuple(dict.fromkeys(_PLACEHOLDER.findall(load(name))))
    return _PLACEHOLDER.sub(lambda found: f"${names.index(found[1]) + 1}", load(name)).encode(), names


def _in_binary_prepared(
    connection: BaseDatabaseWrapper, statement: str, parameters: Mapping[str, Any], make_row: Callable[..., Any]
) -> list[Any]:
    """Run one of our statements, prepared on its first use, and return its rows, read in binary.

    A claim of one job takes two thirds of the time that it takes unprepared. After an error the next call prepares the
    statement again: a reset of the session may have removed it, or a migration may have changed what it returns.
    """
    with connection.wrap_database_errors:
        raw: Any = raw_cursor(connection).connection
        text, names = _numbered(statement)
        known = _prepared.get(connection)
        if known is None or known.raw is not raw:
            known = _prepared[connection] = _Prepared(raw)
        formats = [PyFormat.TEXT] * len(names)
        values = known.transformer.dump_sequence([parameters[each] for each in names], formats)
        if (name := known.names.pop(statement, None)) is None:
            name = f"{statement}_{next(_numbers)}".encode()
            _run(raw, raw.pgconn.prepare, name, text)
        result = _run(raw, raw.pgconn.exec_prepared, name, values, result_format=Format.BINARY)
        known.names[statement] = name
    return converted(known.transformer, result, make_row)


def converted(context: Any, result: PGresult, make_row: Callable[[Sequence[Any]], Any] = tuple) -> list[Any]:
    """Return the rows of a result, read with the types of a psycopg connection or cursor, or by a transformer."""
    transformer: Any = Transformer.from_context(context)
    transformer.set_pgresult(result)
    rows: list[Any] = transformer.load_rows(0, result.ntuples, make_row)
    return rows


def hot(
    statement: str,
    parameters: Mapping[str, Any],
    *,
    make_row: Callable[[Sequence[Any]], Any] = tuple,
    many: bool = False,
    prepare: bool = False,
    jit: bool = True,
    using: str | None = None,
) -> list[Any]:
    """Run one of our statements without Django's cursor wrappers, and return its rows, if it has any.

    For what runs per job or claim. ``many``: hundreds of rows, while other threads are busy. ``prepare``: in autocommit
    only, and never behind a pooler in transaction mode. ``jit`` False: its cost is overestimated; where JIT is on, the
    server would compile it each time, which takes a hundred times as long as running it. ``using`` defaults to the
    alias of the job tables. Raises database errors as Django's.
    """
    connection = connections[using or conf.database]
    if prepare:
        return _in_binary_prepared(connection, statement, parameters, make_row)
    with connection.wrap_database_errors:
        cursor: Any = raw_cursor(connection)
        if not jit:
            text = ClientCursor[Any](cursor.connection).mogrify(load(statement).encode(), parameters)
            return converted(cursor.connection, in_one_trip(connection, f"SET LOCAL jit = off; {text}"), make_row)
        if many and isinstance(cursor, ClientCursor) and cursor.connection.autocommit:
            return _in_binary(connection, cursor.mogrify(load(statement).encode(), parameters), make_row)
        cursor.execute(load(statement), parameters)
        found: list[Any] = [] if cursor.description is None else cursor.fetchall()
        return found if make_row is tuple else list(map(make_row, found))


def ping() -> None:
    """Ask the database for a sign of life, connecting first if needed. Raises database errors as Django's."""
    connection = connections[conf.database]
    connection.ensure_connection()
    in_one_trip(connection, "SELECT 1")


def rows(statement: str, parameters: Mapping[str, Any] | None = None, *, using: str | None = None) -> list[Any]:
    """Run a statement on Django's cursor and return its rows as tuples.

    ``using`` defaults to the alias of the job tables. Raises database errors as Django's.
    """
    connection = connections[using or conf.database]
    with connection.cursor() as cursor:
        if connection.timezone is None and connection.vendor == "postgresql":
            cursor.cursor.adapters.register_loader("timestamptz", UtcLoader)
        cursor.execute(load(statement), parameters)
        fetched: list[Any] = cursor.fetchall()
        return fetched


def execute(statement: str, parameters: Mapping[str, Any] | None = None, *, using: str | None = None) -> int:
    """Run a statement as ``rows`` does; return how many rows it changed."""
    with connections[using or conf.database].cursor() as cursor:
        cursor.execute(load(statement), parameters)
        count: int = cursor.rowcount
        return count
