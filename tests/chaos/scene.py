"""Arguments of the disturbances: the server, the database, the workers, the load and the random generator."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

import psycopg

from benchmarks.server import Database
from project.local.postgres import EmbeddedPostgres
from tests.chaos.fleet import Fleet
from tests.chaos.load import Load
from tests.chaos.tasks import DONE
from tests.interpreter import alive

_POLL_S: Final = 0.02


class NotRecovered(RuntimeError):
    """Raised when something does not recover in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Arguments of every disturbance. ``suspend_s`` is longer than the workers' silence."""

    server: EmbeddedPostgres
    database: Database
    fleet: Fleet
    load: Load
    dice: random.Random
    suspend_s: float
    outage_s: float
    patience_s: float

    def connect(self) -> psycopg.Connection[Any]:
        """Connect as a superuser, for which the server reserves connections."""
        return self.database.connect()

    def newest_job(self) -> int:
        """Return an ID at least as high as that of the newest job."""
        with self.connect() as connection:
            return int(_only(connection, "SELECT last_value FROM salon_jobs_job_id_seq"))

    def wait_done(self, marker: str) -> None:
        """Wait until this marker has its row ``done``. Raises NotRecovered."""
        query = "SELECT count(*) FROM customer WHERE email = %s AND name = %s"
        self._wait(lambda connection: _only(connection, query, marker, DONE) > 0, f"{marker} is not done")

    def wait_ended(self, newest: int) -> None:
        """Wait until no job up to this id is queued or running. Raises NotRecovered."""
        query = "SELECT count(*) FROM salon_jobs_job WHERE id <= %s AND state IN ('queued', 'running')"
        self._wait(lambda connection: not _only(connection, query, newest), "jobs enqueued before have not ended")

    def wait_drained(self) -> datetime:
        """Wait until no job is left, and no row of a process that has ended; return until when ticks were waited for.

        Jobs of later ticks may be left, since schedules go on. Raises NotRecovered.
        """
        with self.connect() as connection:
            [(until,)] = connection.execute("SELECT clock_timestamp()").fetchall()
        due = "SELECT count(*) FROM salon_jobs_schedule WHERE next_at <= %s"
        self._wait(lambda connection: not _only(connection, due, until), "some ticks never fire")
        live = (
            "SELECT count(*) FROM salon_jobs_job WHERE state IN ('queued', 'running') AND task LIKE 'chaos-%%'"
            " AND NOT coalesce(tick > %s, false)"
        )
        self._wait(lambda connection: not _only(connection, live, until), "some jobs never end")
        pids = "SELECT pid FROM salon_jobs_process"
        self._wait(
            lambda connection: all(alive(row[0]) for row in connection.execute(pids.encode())),
            "the row of a dead process stays",
        )
        return cast("datetime", until)

    def wait_ready(self, children: int) -> None:
        """Wait until so many processes that run jobs are registered and alive. Raises NotRecovered."""
        pids = "SELECT pid FROM salon_jobs_process WHERE kind = 'worker'"
        self._wait(
            lambda connection: sum(alive(row[0]) for row in connection.execute(pids.encode())) >= children,
            f"there are no {children} worker processes",
        )

    def _wait(self, holds: Callable[[psycopg.Connection[Any]], bool], otherwise: str) -> None:
        deadline = time.monotonic() + self.patience_s
        with self.connect() as connection:
            while not holds(connection):
                if time.monotonic() > deadline:
                    raise NotRecovered(f"{otherwise} after {self.patience_s:.0f} s")
                time.sleep(_POLL_S)


def _only(connection: psycopg.Connection[Any], query: str, *parameters: object) -> int:
    [(value,)] = connection.execute(query.encode(), parameters).fetchall()
    return int(value)
