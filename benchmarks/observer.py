"""Times the emptying of a queue from outside, in the same way for whoever empties it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import psycopg

from benchmarks.processes import ProcessFailed, Running
from benchmarks.redis import RedisDatabase, RedisQueue
from benchmarks.server import Database

# By which its connections are told from those of whom it watches.
OBSERVER: Final = "benchmark"
_LOOK_S: Final = 0.01
_PATIENCE_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Queue:
    """Says where the jobs of one contestant are; ``unfinished`` is a condition, and ``key`` an indexed number.

    Without such a number all jobs are counted each time.
    """

    table: str
    unfinished: str = "true"
    key: str | None = "id"

    def watch(self, url: str) -> _TableWatch:
        """Return what counts them."""
        return _TableWatch(url, self)

    def empty(self, url: str) -> None:
        """Remove every job."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"TRUNCATE {self.table} CASCADE".encode())


class _TableWatch:
    """Counts the unfinished jobs of one queue, over one connection."""

    def __init__(self, url: str, queue: Queue) -> None:
        self._connection = psycopg.connect(url, autocommit=True, application_name=OBSERVER)
        self._key = queue.key
        self._count = f"SELECT count(*) FROM {queue.table} WHERE {queue.unfinished}"
        left = f"FROM {queue.table} WHERE {queue.unfinished} AND {queue.key} <= %s"
        self._newest = f"SELECT {queue.key} {left} ORDER BY {queue.key} DESC LIMIT 1"
        self._middle = f"{self._count} AND {queue.key} = %s"
        self.jobs = self.unfinished()
        self._last = self._newest_left = self._number(f"SELECT max({queue.key}) FROM {queue.table}") if queue.key else 0

    def unfinished(self) -> int:
        """Return how many are left."""
        return self._number(self._count)

    def any_unfinished(self) -> bool:
        """Tell whether any is left, by the index: counting all would slow the worker down.

        Each look begins at the newest that the one before found, so that it passes over each finished one once.
        """
        if self._key is not None:
            self._newest_left = self._number(self._newest, self._newest_left)
            if self._newest_left:
                return True
        return self.unfinished() > 0

    def is_half_unfinished(self) -> bool:
        """Tell whether the one in the middle is left."""
        return bool(self._number(self._middle, self._last - self.jobs // 2 + 1))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _number(self, statement: str, *parameters: object) -> int:
        row = self._connection.execute(statement.encode(), parameters).fetchone()
        return 0 if row is None else int(row[0])


class Drain:
    """Watches one queue. Make it when the queue is filled and nobody works; ``rate`` waits until it is empty.

    The clock starts at the last look that found every job unfinished, so that nobody's start counts, and stops when
    none is left. Meanwhile only the newest of those left is looked up.
    """

    def __init__(self, database: Database | RedisDatabase, queue: Queue | RedisQueue) -> None:
        self._watch = queue.watch(database.superuser_url)

    def rate(
        self, worker: Running, *, at_first: Callable[[], None] | None = None, at_half: Callable[[], None] | None = None
    ) -> float:
        """Return the jobs finished per second. Raises ProcessFailed when the worker ends, or gets nowhere.

        ``at_first`` is called once when the first are, ``at_half`` when about half of them are.
        """
        deadline = time.monotonic() + _PATIENCE_S
        watch = self._watch
        try:
            began = time.monotonic()
            while watch.unfinished() == watch.jobs:
                began = time.monotonic()
                _wait(worker, deadline)
            if at_first is not None:
                at_first()
            if at_half is not None:
                while watch.is_half_unfinished():
                    _wait(worker, deadline)
                at_half()
            while watch.any_unfinished():
                _wait(worker, deadline)
            return watch.jobs / (time.monotonic() - began)
        finally:
            watch.close()


def _wait(worker: Running, deadline: float) -> None:
    worker.check()
    if time.monotonic() > deadline:
        raise ProcessFailed(f"the queue was not empty after {_PATIENCE_S:.0f} s")
    time.sleep(_LOOK_S)
