"""Holds how long a migration waits for locks: briefly, in all, whatever its operations are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.db import OperationalError, connections, migrations, models
from django.db.migrations.state import ProjectState

from salon_jobs.access.operations import LocksBriefly
from salon_jobs.access.operations.access import InstallDeclared
from salon_jobs.access.operations.base import LOCKS_MS
from tests.migrations.operations import migrate, sql_of
from tests.settings import url_for
from tests.support import seen
from tests.waiting import LIMIT_S, eventually

ADD_FIELD = migrations.AddField("customer", "nickname", models.TextField(null=True))
INSTALL = InstallDeclared(tables=("salon_jobs_job",), functions=())
COLUMNS = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'customer'::regclass"
ENDS_BY_ITSELF = f"-c idle_in_transaction_session_timeout={LIMIT_S:.0f}s"
POLICIES = "SELECT policyname FROM pg_policies WHERE tablename = 'salon_jobs_job' ORDER BY 1"


def run(*operations: Any, atomic: bool = True, base: type[migrations.Migration] = LocksBriefly) -> None:
    """Run operations as one migration of the demo, as its owner."""
    migrate(*operations, atomic=atomic, using="owner", base=base)


def sql_lines(*operations: Any, atomic: bool = True) -> list[str]:
    """Return the SQL of such a migration; nothing is run."""
    migration = type("Migration", (LocksBriefly,), {"operations": list(operations), "atomic": atomic})("later", "salon")
    with connections["owner"].schema_editor(atomic=atomic, collect_sql=True) as editor:
        migration.apply(ProjectState.from_apps(apps), editor, collect_sql=True)
    return list(editor.collected_sql)


@contextmanager
def reader(role: str | None = "app", options: str = "") -> Iterator[psycopg.Connection[Any]]:
    """Read customers and jobs in a transaction that stays open; the server ends it should somebody wait for it forever."""
    with psycopg.connect(url_for(role), options=ENDS_BY_ITSELF + options) as connection:
        connection.execute("SELECT FROM customer, salon_jobs_job")
        yield connection


def test_operations_of_django_wait_briefly(database: None) -> None:
    before = seen(COLUMNS)
    with reader(), pytest.raises(OperationalError, match="lock timeout"):
        run(ADD_FIELD)
    assert seen(COLUMNS) == before


def test_lock_timeout_is_for_all_statements(database: None) -> None:
    """What the first ones waited is taken from what the rest may wait."""
    timeouts_ms: list[float] = []

    class Patient(LocksBriefly):
        locks_ms = int(LIMIT_S * 1000)  # so long that the lock is released in time, however slow the machine is

    def read_timeout(_apps: Any, editor: Any) -> None:
        with editor.connection.cursor() as cursor:
            cursor.execute("SELECT extract(epoch FROM current_setting('lock_timeout')::interval)::float8 * 1000")
            timeouts_ms.append(cursor.fetchone()[0])

    def release(connection: psycopg.Connection[Any]) -> None:
        _when_waited_for("customer", "300 ms")
        connection.rollback()

    with reader() as connection, ThreadPoolExecutor() as pool:
        released = pool.submit(release, connection)
        run(migrations.RunSQL("LOCK TABLE customer"), migrations.RunPython(read_timeout), base=Patient)
        released.result(LIMIT_S)
    assert 0 < timeouts_ms[0] <= Patient.locks_ms - 300


def _when_waited_for(table: str, long: str) -> None:
    """Return when somebody has waited for a table so long."""
    waiting = (
        "SELECT clock_timestamp() - waitstart > %s::interval FROM pg_locks JOIN pg_database AS d ON d.oid = database"
        " WHERE datname = current_database() AND relation = %s::regclass AND NOT granted"
    )
    with psycopg.connect(url_for(None), autocommit=True) as observer:
        eventually(lambda: (True,) in observer.execute(waiting, (long, table)).fetchall())


def test_migration_gives_up_before_a_deadlock(database: None) -> None:
    """Each holds what the other one waits for; whoever has waited for ``deadlock_timeout`` first would be ended.

    That of the other is longer here, so that a slow machine ends none; by default it is longer than a migration waits.
    """
    [(default_ms,)] = seen("SELECT boot_val::int FROM pg_settings WHERE (name, unit) = ('deadlock_timeout', 'ms')")
    assert default_ms > LOCKS_MS
    locked = threading.Event()

    def cross(connection: psycopg.Connection[Any]) -> None:
        assert locked.wait(LIMIT_S)
        connection.execute("SELECT count(*) FROM sale")

    def until_it_waits(*_: Any) -> None:
        locked.set()
        _when_waited_for("sale", "0 ms")

    with reader(None, f" -c deadlock_timeout={LIMIT_S:.0f}s") as connection, ThreadPoolExecutor() as pool:
        crossing = pool.submit(cross, connection)
        with pytest.raises(OperationalError, match="lock timeout"):
            run(
                migrations.RunSQL("LOCK TABLE sale"),
                migrations.RunPython(until_it_waits),
                migrations.RunSQL("LOCK TABLE customer"),
            )
        crossing.result(LIMIT_S)


def test_sqlmigrate_sets_the_lock_timeout_once(database: None) -> None:
    """The session is left alone."""
    lines = sql_lines(INSTALL, ADD_FIELD)
    assert [line for line in lines if "lock_timeout" in line] == [f"SET LOCAL lock_timeout = {LOCKS_MS};"]
    assert "lock_timeout" in lines[0]
    with connections["owner"].cursor() as cursor:
        cursor.execute("SELECT current_setting('lock_timeout')")
        assert cursor.fetchone() == ("0",)


def test_lock_timeout_of_the_session_stands(database: None) -> None:
    """Without a transaction nothing changes."""
    assert "lock_timeout" not in "".join(sql_lines(ADD_FIELD, atomic=False))
    with connections["owner"].cursor() as cursor:
        cursor.execute("SET lock_timeout = '10s'")
        try:
            assert "lock_timeout" not in "".join(sql_lines(ADD_FIELD))
            assert "lock_timeout" not in sql_of(INSTALL, using="owner", app_label="salon_jobs")
        finally:
            cursor.execute("RESET lock_timeout")


def test_operation_opens_its_own_transaction(database: None) -> None:
    before = seen(POLICIES)
    with reader(), pytest.raises(OperationalError, match="lock timeout"):
        run(INSTALL, atomic=False, base=migrations.Migration)
    assert seen(POLICIES) == before
