"""Migrates forwards and backwards while others read and write, and while somebody holds the tables for long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from uuid import UUID, uuid4

import psycopg
import pytest
from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.db import OperationalError, connections, models
from django.db.migrations import AddConstraint, AddField, RemoveConstraint
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.test import override_settings

from salon_jobs.access.operations import LocksBriefly
from salon_jobs.access.operations.access import InstallDeclared
from tests.databases import environment, rows, spare_database
from tests.interpreter import succeed
from tests.migrations.catalogue import CATALOGUE
from tests.settings import PASSWORD, url_for
from tests.waiting import LIMIT_S, eventually

pytestmark = pytest.mark.slow  # test_locks_briefly is the short proof

ALIAS = "under_load"
STORE = uuid4()
# Who waits much longer than a migration may, however slow the machine is, is told so by the server and fails the test.
PATIENCE = f"{LIMIT_S / 2:.0f}s"
WRITES = (
    "INSERT INTO salon_jobs_job (task, store_id) SELECT 'x', id FROM store",
    "UPDATE salon_jobs_job SET priority = 1 WHERE id = (SELECT max(id) FROM salon_jobs_job)",
    "INSERT INTO salon_jobs_fan_out (task, digest) VALUES ('x', gen_random_uuid())",
    "UPDATE salon_jobs_task_minute SET succeeded = succeeded + 1",
    # In one order, whatever the plan: two of these must not lock each other out.
    "UPDATE customer SET name = 'Hanako' WHERE id IN (SELECT id FROM customer ORDER BY id FOR UPDATE)",
    "INSERT INTO sale (id, store_id, sold_at, amount) SELECT gen_random_uuid(), id, now(), 1 FROM store",
    "DELETE FROM salon_jobs_job WHERE id < (SELECT max(id) - 100 FROM salon_jobs_job)",
)
READS = (
    "SELECT count(*) FROM customer JOIN store ON store.id = customer.store_id",
    "SELECT count(*) FROM sale",
    "SELECT count(*) FROM reservation",
    "SELECT count(*) FROM salon_jobs_job",
)
HELD = (
    "store",
    "customer",
    "sale",
    "salon_jobs_job",
    "salon_jobs_job_result",
    "salon_jobs_fan_out",
    "salon_jobs_task_minute",
    "salon_jobs_message",
    "salon_jobs_queue_minute",
    "salon_jobs_inbox",
)
# Later than a test gives up waiting, so that nothing gets through by it.
ENDS_BY_ITSELF = f"-c idle_in_transaction_session_timeout={2 * LIMIT_S:.0f}s"
# On the way back the rights on the tables go.
EXPECTED = psycopg.errors.InsufficientPrivilege


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
        self.renamed: list[int] = []

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
                                done = connection.execute(statement.encode())
                        except EXPECTED:
                            continue
                        self.runs += 1
                        if statement.startswith("UPDATE customer "):
                            self.renamed.append(done.rowcount)
        except BaseException as error:  # told by the test's own thread
            self.errors.append(error)


@contextmanager
def long_transaction(database: str) -> Iterator[None]:
    """Read every table and leave the transaction open; the server ends it where a migration waits without end."""
    with psycopg.connect(url_for(None, database), options=ENDS_BY_ITSELF) as connection:
        for table in HELD:
            if connection.execute("SELECT to_regclass(%s)", [table]).fetchone() != (None,):
                connection.execute(f"SELECT FROM {table} LIMIT 1".encode())
        yield


@pytest.fixture
def busy(migrated: None) -> Iterator[str]:
    """Give a migrated database with a store in it, reached as its owner by an alias."""
    with spare_database(copied=True) as name:
        succeed("bootstrap_roles", "--share-roles", "--database", name, **environment(name))
        yield from _filled(name)


def _filled(name: str) -> Iterator[str]:
    with psycopg.connect(url_for(None, name)) as connection:
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
    connections.databases[ALIAS] = {**owner, "NAME": name, "USER": "migrator", "PASSWORD": PASSWORD}
    with ExitStack() as stack:
        stack.callback(connections.databases.pop, ALIAS)
        stack.callback(connections.__delitem__, ALIAS)
        stack.callback(connections[ALIAS].close)
        yield name


def through(change: Callable[[], object]) -> bool:
    """Make a change; False when a lock was not to be had."""
    try:
        change()
    except OperationalError as error:
        if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
            return False
        raise
    return True


def migrate(target: str) -> None:
    """Migrate salon_jobs to a target, as the command of a project does whose jobs are in that database."""
    with override_settings(SALON_JOBS={**settings.SALON_JOBS, "DATABASE": ALIAS}):
        call_command("migrate", "salon_jobs", target, database=ALIAS, verbosity=0)


def later(app: str, operation: Operation, *, backwards: bool = False, state: ProjectState | None = None) -> None:
    """Apply or unapply an operation by a migration of its own, as one of a later release does."""
    state = state or ProjectState.from_apps(apps)
    migration = type("Migration", (LocksBriefly,), {"operations": [operation]})("later", app)
    with connections[ALIAS].schema_editor(atomic=True) as editor:
        (migration.unapply if backwards else migration.apply)(state, editor)


def isolate(on: bool) -> None:
    """Take the customers' isolation away or add it, as a host's later migration does."""
    state = ProjectState.from_apps(apps)
    constraint = state.models["salon", "customer"].get_constraint_by_name("customer_isolation")
    removal = RemoveConstraint("customer", "customer_isolation")
    if on:
        removal.state_forwards("salon", state)
        later("salon", AddConstraint("customer", constraint), state=state)
    else:
        later("salon", removal)


COLUMN = AddField("job", "note", models.UUIDField(null=True))
TRIGGERS = InstallDeclared(tables=(), functions=("salon_jobs_note",))


@pytest.mark.slow
def test_migration_gets_through_or_gives_up(busy: str) -> None:
    """Nobody waits for it long."""
    changes: dict[Callable[[], None], bool] = {
        # What changes a table's columns, drops its triggers, or puts it under policies or takes them away, gives up;
        # what installs a function, with triggers or without, is not in the way of who only reads.
        partial(later, "salon_jobs", COLUMN): False,
        partial(later, "salon_jobs", COLUMN, backwards=True): False,
        partial(later, "salon_jobs", TRIGGERS, backwards=True): False,
        partial(later, "salon_jobs", TRIGGERS): True,
        partial(migrate, "0009_validate_checks"): True,
        partial(migrate, "0002_protect"): False,
        partial(migrate, "0001_initial"): False,
        partial(migrate, "0002_protect"): False,
        partial(migrate, "0003_fan_out"): True,
        partial(migrate, "0004_flow_retry"): True,
        partial(migrate, "0005_expires_in"): True,
        partial(migrate, "0007_cheaper_jobs"): True,
        partial(migrate, "0008_shorter_checks"): False,
        partial(migrate, "0009_validate_checks"): True,
        # It finds no triggers of the release before, for which it would wait.
        partial(migrate, "0010_job_changes"): True,
        partial(migrate, "0011_ended_processes"): True,
        partial(migrate, "0012_run_of_own_job"): True,
        partial(migrate, "0013_unfinished_runs"): True,
        partial(isolate, False): False,
        partial(isolate, True): False,
    }
    catalogue = rows(busy, CATALOGUE)
    with Load(busy) as load:
        for change, expected in changes.items():
            with long_transaction(busy):
                before = rows(busy, CATALOGUE)
                if expected:
                    eventually(partial(through, change))  # it may meet a writer, whom it does not wait for either
                else:
                    assert not through(change), change
                    assert rows(busy, CATALOGUE) == before
            if not expected:
                eventually(partial(through, change))  # once the long transaction has ended
    assert load.errors == []
    assert load.runs > 100
    assert rows(busy, CATALOGUE) == catalogue


def seen_by(database: str, store: UUID | None) -> int:
    with psycopg.connect(url_for("app", database)) as connection:
        value = "" if store is None else str(store)
        connection.execute("SELECT set_config('app.current_store_id', %s, true)", [value])
        [(count,)] = connection.execute("SELECT count(*) FROM customer").fetchall()
        return int(count)


def test_busy_table_is_isolated_and_released(busy: str) -> None:
    other, isolated = uuid4(), rows(busy, CATALOGUE)
    isolate(False)
    released = rows(busy, CATALOGUE)
    with Load(busy) as load:
        for _ in range(3):
            eventually(partial(through, partial(isolate, False)))
            assert (seen_by(busy, None), seen_by(busy, other)) == (100, 100)
            assert rows(busy, CATALOGUE) == released
            eventually(partial(through, partial(isolate, True)))
            assert (seen_by(busy, None), seen_by(busy, other), seen_by(busy, STORE)) == (0, 0, 100)
            assert rows(busy, CATALOGUE) == isolated
    assert load.errors == []
    assert set(load.renamed) == {100}, "each write in a store's context reached its rows, with the policies and without"
