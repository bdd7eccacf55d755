"""Times the emptying of a queue from outside, in the same way for whoever empties it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from benchmarks.processes import ProcessFailed, Running
from benchmarks.server import Database

_LOOK_S: Final = 0.01
_TAIL: Final = 64
_PATIENCE_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Queue:
    """Says where the jobs of one contestant are; ``unfinished`` is a condition, and ``key`` an indexed number."""

    table: str
    unfinished: str = "true"
    key: str = "id"


class Drain:
    """Watches one queue. Make it when the queue is filled and nobody works; ``rate`` waits until it is empty.

    The clock starts at the last look that found every job unfinished, so that nobody's start counts, and stops when
    none is left. Meanwhile only the last jobs are looked up, by the index: counting all would slow the worker down.
    """

    def __init__(self, database: Database, queue: Queue) -> None:
        self._database = database
        self._count = f"SELECT count(*) FROM {queue.table} WHERE {queue.unfinished}"
        self._tail = f"SELECT count(*) FROM {queue.table} WHERE {queue.key} > %s AND {queue.unfinished}"
        self._middle = f"SELECT count(*) FROM {queue.table} WHERE {queue.key} = %s + %s AND {queue.unfinished}"
        with database.connect() as connection:
            self._jobs = _number(connection, self._count)
            self._last = _number(connection, f"SELECT max({queue.key}) FROM {queue.table}")

    def rate(self, worker: Running, *, at_half: Callable[[], None] | None = None) -> float:
        """Return the jobs finished per second. Raises ProcessFailed when the worker ends, or gets nowhere.

        ``at_half`` is called once when about half of them are.
        """
        deadline = time.monotonic() + _PATIENCE_S
        with self._database.connect() as connection:
            began = time.monotonic()
            while _number(connection, self._count) == self._jobs:
                began = time.monotonic()
                _wait(worker, deadline)
            if at_half is not None:
                while _number(connection, self._middle, self._last - self._jobs // 2, 1):
                    _wait(worker, deadline)
                at_half()
            while True:
                while _number(connection, self._tail, self._last - min(_TAIL, self._jobs)):
                    _wait(worker, deadline)
                if not _number(connection, self._count):
                    return self._jobs / (time.monotonic() - began)
                _wait(worker, deadline)


def _wait(worker: Running, deadline: float) -> None:
    worker.check()
    if time.monotonic() > deadline:
        raise ProcessFailed(f"the queue was not empty after {_PATIENCE_S:.0f} s")
    time.sleep(_LOOK_S)


def _number(connection: psycopg.Connection[Any], statement: str, *parameters: object) -> int:
    row = connection.execute(statement.encode(), parameters).fetchone()
    return 0 if row is None else int(row[0])
