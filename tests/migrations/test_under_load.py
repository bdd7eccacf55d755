"""Migrates forwards and backwards while others read and write, and while somebody holds the tables for long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.core.management import call_command
from django.db import OperationalError, connections
from django.db.migrations.loader import MigrationLoader

from salon_jobs.migration_ops.migration import LOCKS_MS
from tests.conftest import manage
from tests.migrations.test_migrations import CATALOGUE, environment, fresh, rows
from tests.settings import PASSWORD, url_for

__all__ = ["fresh"]  # a fixture

ALIAS = "under_load"
STORE = uuid4()
# Who waits longer than a migration may is told so by the server, and fails the test.
PATIENCE = f"{LOCKS_MS + 1000}ms"
WRITES = (
    "INSERT INTO salon_jobs_job (task, store_id) SELECT 'x', id FROM store",
    "UPDATE salon_jobs_job SET priority = 1 WHERE id = (SELECT max(id) FROM salon_jobs_job)",
    "INSERT INTO salon_jobs_fan_out (task, digest) VALUES ('x', gen_random_uuid())",
    "UPDATE salon_jobs_task_minute SET succeeded = succeeded + 1",
    "UPDATE customer SET name = 'Hanako'",
    "INSERT INTO sale (id, store_id, sold_at, amount) SELECT gen_random_uuid(), id, now(), 1 FROM store",
    "DELETE FROM salon_jobs_job WHERE id < (SELECT max(id) - 100 FROM salon_jobs_job)",
)
READS = (
    "SELECT count(*) FROM customer JOIN store ON store.id = customer.store_id",
    "SELECT count(*) FROM sale",
    "SELECT count(*) FROM reservation",
    "SELECT count(*) FROM salon_jobs_job",
)
HELD = ("store", "customer", "sale", "salon_jobs_job", "salon_jobs_fan_out", "salon_jobs_task_minute")
# On the way back a table goes, with the rights on it.
EXPECTED = (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege)


class Load:
    """Runs statements over and over, each in a transaction of its own, on a connection a thread."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(role, statements))
            for role, statements in (
                ("worker_runtime", WRITES),
                ("worker_runtime", WRITES),
                ("app", READS),
                ("app", READS),
            )
        ]
        self.errors: list[BaseException] = []
        self.runs = 0

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, role: str, statements: tuple[str, ...]) -> None:
        try:
            with psycopg.connect(url_for(role, self._database), autocommit=True) as connection:
                connection.execute(f"SET lock_timeout = '{PATIENCE}'".encode())
                while not self._stop.is_set():
                    for statement in statements:
                        try:
                            with connection.transaction():
                                connection.execute("SELECT set_config('app.current_store_id', %s, true)", [str(STORE)])
                                connection.execute(statement.encode())
                        except EXPECTED:
                            continue
                        self.runs += 1
        except BaseException as error:  # told by the test's own thread
            self.errors.append(error)


@contextmanager
def long_transaction(database: str) -> Iterator[None]:
    """Read every table and leave the transaction open; the server ends it where a migration waits without end."""
    with psycopg.connect(url_for(None, database), options="-c idle_in_transaction_session_timeout=20s") as connection:
        for table in HELD:
            connection.execute(f"SELECT FROM {table} LIMIT 1".encode()) if _exists(connection, table) else None
        yield


def _exists(connection: psycopg.Connection[Any], table: str) -> bool:
    return connection.execute("SELECT to_regclass(%s)", [table]).fetchone() != (None,)


@pytest.fixture
def busy(migrated: None, fresh: str) -> Iterator[str]:
    """Give a migrated database with a store in it, reached as its owner by an alias."""
    urls = environment(fresh)
    for command in (("bootstrap_roles", "--database", fresh), ("migrate", "--verbosity", "0")):
        assert manage(*command, **urls).returncode == 0
    with psycopg.connect(url_for(None, fresh)) as connection:
        connection.execute("INSERT INTO store (id, name) VALUES (%s, 'Salon')", [STORE])
        connection.execute(
            "INSERT INTO customer (id, store_id, name, email) SELECT gen_random_uuid(), %s, 'x', ''"
            " FROM generate_series(1, 100)",
            [STORE],
        )
        connection.execute(
            "INSERT INTO salon_jobs_task_minute VALUES (now(), 'x', 'default', 0, 0, 0, 0, 0, 0, 0, 0, '{}', 0, '{}')"
        )
    owner = connections["owner"].settings_dict
    connections.databases[ALIAS] = {**owner, "NAME": fresh, "USER": "migrator", "PASSWORD": PASSWORD}
    with ExitStack() as stack:
        stack.callback(connections.databases.pop, ALIAS)
        stack.callback(connections.__delitem__, ALIAS)
        stack.callback(connections[ALIAS].close)
        yield fresh


def migrate(app: str, target: str) -> bool:
    """Migrate as the command does; False when a lock was not to be had."""
    try:
        call_command("migrate", app, target, database=ALIAS, verbosity=0)
    except OperationalError as error:
        if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
            return False
        raise
    return True


def steps(app: str, first: int) -> list[str]:
    """Return each target in turn: from the last migration down to number ``first``, and up again."""
    names = sorted(name for label, name in MigrationLoader(None).disk_migrations if label == app)[first - 1 :]
    return [*reversed(names[:-1]), *names[1:]]


# The tables are there, and in use, from these on.
@pytest.mark.parametrize(("app", "first"), [("salon_jobs", 3), ("salon", 1)])
def test_a_migration_gets_through_or_gives_up_and_nobody_waits_for_it_long(busy: str, app: str, first: int) -> None:
    catalogue = rows(busy, CATALOGUE)
    through: list[bool] = []
    with Load(busy) as load:
        for target in steps(app, first):
            with long_transaction(busy):
                found = rows(busy, CATALOGUE)
                through.append(migrate(app, target))
                assert through[-1] or rows(busy, CATALOGUE) == found
            assert any(migrate(app, target) for _ in range(10)), "it gets through once the long transaction has ended"
    assert load.errors == []
    assert load.runs > 100
    assert through.count(False) == 2
    assert rows(busy, CATALOGUE) == catalogue
