"""Claims as our worker does, on a bare connection."""

from __future__ import annotations

import secrets
from typing import Any

import psycopg

from project.settings import env
from salon_jobs.db import statements

BATCH = 500


def connect() -> psycopg.Connection[Any]:
    """Connect in autocommit to the database of ``DATABASE_URL``."""
    url: str = env.str("DATABASE_URL")
    return psycopg.connect(url, autocommit=True)


def register(connection: psycopg.Connection[Any]) -> int:
    """Insert the row of a process, without which nothing can be claimed; returns its id."""
    row = connection.execute(
        "INSERT INTO salon_jobs_process (kind, hostname, pid, concurrency) VALUES ('worker', 'ceiling', 1, 1)"
        " RETURNING id"
    ).fetchone()
    if row is None:
        raise LookupError("no row of a process was inserted")
    return int(row[0])


def claim(connection: psycopg.Connection[Any], process_id: int, task: str) -> list[tuple[Any, ...]]:
    """Claim one batch of a task's due jobs; id first, then task and store."""
    parameters = {"process_id": process_id, "tasks": [task], "room": BATCH, "now": None, "queues": None, "clock": 0.0}
    parameters["lease"] = secrets.randbits(63)
    return connection.execute(statements.load("claim_due").encode(), parameters, prepare=False).fetchall()
