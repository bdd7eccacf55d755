"""Fills and empties our own queue as the superuser, unmeasured, and knows the stores."""

from __future__ import annotations

from typing import Final

import psycopg

from benchmarks.server import Database

STORES: Final = 100
TABLE: Final = "salon_jobs_job"
# As store_id() writes it.
_STORE: Final = "('00000000-0000-4000-8000-' || lpad(to_hex({n}), 12, '0'))::uuid"


def store_id(number: int) -> str:
    """Return the id of a store."""
    return f"00000000-0000-4000-8000-{number:012x}"


def create_stores(database: Database, first: int, last: int) -> None:
    """Add the stores of these numbers; those that exist stay."""
    numbers = "generate_series(%s::bigint, %s::bigint) n"
    statement = f"INSERT INTO store (id, name) SELECT {_STORE.format(n='n')}, 'Salon ' || n FROM {numbers}"
    database.execute(f"{statement} ON CONFLICT DO NOTHING", first, last)


def drop_stores(database: Database, above: int) -> None:
    """Remove the stores above a number."""
    with database.connect() as connection:
        connection.execute("SET session_replication_role = replica")  # no foreign key of the demo's is looked up
        connection.execute(f"DELETE FROM store WHERE id > {_STORE.format(n=str(int(above)))}".encode())


def empty(database: Database) -> None:
    """Remove every job."""
    database.execute(f"TRUNCATE {TABLE}, salon_jobs_job_error")


def fill(database: Database, task: str, jobs: int) -> None:
    """Add jobs of a task without store."""
    with database.connect() as connection:
        add(connection, task, jobs)


def add(connection: psycopg.Connection[tuple[object, ...]], task: str, jobs: int) -> None:
    """Add jobs of a task without store, over a connection that is open."""
    connection.execute(f"INSERT INTO {TABLE} (task) SELECT %s FROM generate_series(1, %s::bigint)", (task, jobs))


def fill_stores(database: Database, task: str, jobs: int, *, stores: int = STORES) -> None:
    """Add jobs of a store task, one store after the other in turn, over the first ``stores`` stores."""
    store = _STORE.format(n="1 + n %% %s::bigint")
    numbers = "generate_series(1, %s::bigint) n"
    database.execute(f"INSERT INTO {TABLE} (task, store_id) SELECT %s, {store} FROM {numbers}", task, stores, jobs)
