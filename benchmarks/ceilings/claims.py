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
    process_id = secrets.randbits(52)
    insert = (
        "INSERT INTO salon_jobs_process (id, kind, hostname, pid, concurrency) VALUES (%s, 'worker', 'ceiling', 1, 1)"
    )
    connection.execute(insert, [process_id])
    return process_id


def claim(connection: psycopg.Connection[Any], process_id: int, task: str) -> list[tuple[Any, ...]]:
    """Claim one batch of a task's due jobs; id first, then task and store."""
    parameters = {"process_id": process_id, "tasks": [task], "room": BATCH, "now": None, "queues": None, "clock": 0.0}
    parameters |= {"token": secrets.randbits(63), "left_out": "{}"}
    return connection.execute(statements.load("claim").encode(), parameters, prepare=False).fetchall()
