"""Exchanges with the server below psycopg's cursors, which cost more than a small or frequent statement itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from psycopg import OperationalError
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

from salon_jobs.db.internals import execute_steps, fetch_many

_SUCCESS: Final = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
_numbers: Final = itertools.count()


def exchange(raw: Any, call: Callable[..., PGresult], *arguments: Any, **options: Any) -> PGresult:
    """Call a function of libpq on a psycopg connection and return its result, or raise the error it holds.

    No cursor sees the statement or begins a transaction for it. It waits without the GIL: a cursor takes that again for
    every packet that arrives, and while other threads are busy, each time costs the switch interval (5 ms).
    """
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


def results_of(raw: Any, statements: str) -> list[PGresult]:
    """Run statements separated by semicolons; return the results of all. The last one may be an error.

    It waits as psycopg does: other greenlets run during the wait, and an interrupt cancels the statement.
    """
    with raw.lock:
        raw.pgconn.send_query(statements.encode(raw.info.encoding))
        results: list[PGresult] = raw.wait(execute_steps(raw.pgconn))
        return results


def send(raw: Any, statements: str) -> None:
    """Send statements, without waiting for the answer."""
    with raw.lock:
        raw.pgconn.send_query(statements.encode())


def last_answer(raw: Any) -> PGresult:
    """Wait for the answer to the statements sent; return the last result, or raise the error it holds."""
    with raw.lock:
        return succeeded(raw, raw.wait(fetch_many(raw.pgconn))[-1])


def converted(context: Any, result: PGresult, make_row: Callable[[Sequence[Any]], Any] = tuple) -> list[Any]:
    """Return the rows of a result, read with the types of a psycopg connection or cursor, or by a transformer."""
    transformer: Any = Transformer.from_context(context)
    transformer.set_pgresult(result)
    rows: list[Any] = transformer.load_rows(0, result.ntuples, make_row)
    return rows


class PreparedStatements:
    """The statements that one psycopg connection has prepared, and how to write and read their values.

    Finding that out takes as long as the call. A statement that a reset of the session has removed is prepared again at
    once; after any other error the next call prepares it, since a migration may have changed its result.
    """

    __slots__ = ("_names", "_transformer", "raw")

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self._transformer = Transformer(raw)
        self._names: dict[str, bytes] = {}

    def run(self, name: str, text: bytes, values: Sequence[Any], make_row: Callable[[Sequence[Any]], Any]) -> list[Any]:
        """Run a statement with the server's placeholders, and return its rows, read in binary."""
        pgconn = self.raw.pgconn
        dumped = self._transformer.dump_sequence(values, [PyFormat.TEXT] * len(values))
        result: PGresult | None = None
        if (prepared := self._names.pop(name, None)) is not None:
            with suppress(InvalidSqlStatementName):
                result = exchange(self.raw, pgconn.exec_prepared, prepared, dumped, result_format=Format.BINARY)
        if prepared is None or result is None:
            prepared = f"{name}_{next(_numbers)}".encode()
            exchange(self.raw, pgconn.prepare, prepared, text)
            result = exchange(self.raw, pgconn.exec_prepared, prepared, dumped, result_format=Format.BINARY)
        self._names[name] = prepared
        return converted(self._transformer, result, make_row)
