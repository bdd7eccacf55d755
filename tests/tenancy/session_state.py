"""State of a session, statements that change it for the connection's next user, and jobs in turn on one connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.db.utils import DatabaseError

from tests import tasks
from tests.settings import TEST_DATABASE
from tests.support import OneRunner, change, claim, running_on_a_thread
from tests.tenancy.probe import ask, visible

_STATE = """
    SELECT ARRAY[pg_backend_pid()::text, current_setting('role'), current_setting('search_path'),
           current_setting('row_security'), current_setting('statement_timeout'), current_user, session_user,
           current_setting('TimeZone'), current_setting('client_encoding'), current_setting('application_name'),
           coalesce(current_setting('app.note', true), ''), coalesce(current_setting('app.current_user_id', true), ''),
           current_setting('default_transaction_read_only'), (SELECT count(*)::text FROM pg_listening_channels()),
           (SELECT count(*)::text FROM pg_prepared_statements), current_setting('work_mem'),
           (SELECT count(*)::text FROM pg_cursors), to_regclass('pg_temp.left_behind')::text,
           (SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())]
"""
STATEMENTS = {
    "SET of the store": ["SET app.current_store_id = '{store}'"],
    "set_config of the store": ["SELECT set_config('app.current_store_id', '{store}', false)"],
    "set_config in a function": ["SELECT left_behind('{store}')"],
    "set_config of the user": ["SELECT set_config('app.current_user_id', '1', false)"],
    "SET of a name of one's own": ["SET app.note = 'x'"],
    "SET ROLE": ["SET ROLE {role}"],
    "SET SESSION AUTHORIZATION": ["SET SESSION AUTHORIZATION {role}", "SET ROLE {role}"],
    "SET search_path": ["SET search_path TO nowhere"],
    "SET row_security": ["SET row_security = off"],
    "SET statement_timeout": ["SET statement_timeout = '59s'"],
    "SET TIME ZONE": ["SET TIME ZONE 'Asia/Tokyo'"],
    "SET work_mem": ["SET work_mem = '99MB'"],
    "SET default_transaction_read_only": ["SET default_transaction_read_only = on"],
    "SET SESSION CHARACTERISTICS": ["SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY, DEFERRABLE"],
    "an advisory lock": ["SELECT pg_advisory_lock(4711)"],
    "LISTEN": ["LISTEN left_behind"],
    "PREPARE": ["PREPARE left_behind AS SELECT * FROM store"],
    "a cursor WITH HOLD": ["DECLARE left_behind CURSOR WITH HOLD FOR SELECT * FROM store"],
    "a temporary table": ["CREATE TEMP TABLE left_behind AS SELECT * FROM store"],
}
# Of the first fields of a state: the process of the server, role, search path, row security and timeout.
SETTINGS = slice(1, 5)
PREPARED = 14


def state(using: str = "default") -> list[Any]:
    """Return the state of a session, its last value of a sequence and the stores whose rows are visible."""
    values: list[Any] = ask(_STATE, using=using)
    last: object = None
    try:
        with transaction.atomic(using), connections[using].cursor() as cursor:
            cursor.execute("SELECT lastval()")
            last = cursor.fetchone()
    except DatabaseError:
        pass
    return [*values, last, visible(using)]


Body = Callable[[], object]
Kind = Callable[[UUID, Body], None]


def in_store(store: UUID, body: Body) -> None:
    """Run in the transaction of a store's job."""
    tasks.hooks.store = lambda **_: body()
    tasks.in_store.enqueue(store_id=store)


def outside(store: UUID, body: Body) -> None:
    """Run in a store's job that has no transaction."""
    tasks.hooks.store = lambda **_: body()
    tasks.outside.enqueue(store_id=store)


def in_system(_: UUID, body: Body) -> None:
    tasks.hooks.system = lambda **_: body()
    tasks.system.enqueue()


async def in_step(body: Body) -> None:
    await sync_to_async(body)()


def in_coroutine(store: UUID, body: Body, step: Callable[[Body], Awaitable[object]] = in_step) -> None:
    tasks.hooks.coroutine = lambda **_: step(body)
    tasks.async_store.enqueue(store_id=store)


def in_system_coroutine(_: UUID, body: Body, step: Callable[[Body], Awaitable[object]] = in_step) -> None:
    tasks.hooks.coroutine = lambda **_: step(body)
    tasks.async_system.enqueue()


KINDS = [in_store, outside, in_system, in_coroutine, in_system_coroutine]
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def function_and_right(stores: list[UUID]) -> Iterator[None]:
    """Let the worker make temporary tables, and call a function that sets the store while it seems to read."""
    change(f"GRANT TEMPORARY ON DATABASE {TEST_DATABASE} TO worker_runtime")
    change(
        "CREATE FUNCTION left_behind(store text) RETURNS text LANGUAGE sql "
        "AS $$ SELECT set_config('app.current_store_id', store, false) $$"
    )
    change("GRANT EXECUTE ON FUNCTION left_behind TO worker_runtime")
    yield
    change("DROP FUNCTION left_behind")
    change(f"REVOKE TEMPORARY ON DATABASE {TEST_DATABASE} FROM worker_runtime")


class JobSequence:
    """Jobs that run one after the other on one thread, each with a body of its own."""

    def __init__(self, process_id: int) -> None:
        self._process_id = process_id
        self._jobs: list[tuple[Kind, UUID, Body]] = []
        self.states: list[Any] = []
        self.runner: OneRunner | None = None

    def then(self, kind: Kind, store: UUID, body: Body) -> JobSequence:
        self._jobs.append((kind, store, body))
        return self

    def note(self, kind: Kind, store: UUID) -> JobSequence:
        """Add a job that notes the state of the session."""
        return self.then(kind, store, lambda: self.states.append(state()))

    def around(self, kind: Kind, store: UUID, body: Body) -> tuple[list[Any], list[Any]]:
        """Run a job between two that note the state; return what they noted."""
        before, after = self.note(in_system, store).then(kind, store, body).note(in_system, store).run()
        return before, after

    def run(self) -> list[Any]:
        """Run them all; return what was noted. A job that failed before is not run again."""
        bodies = iter([body for _, _, body in self._jobs])
        for kind, store, _ in self._jobs:
            kind(store, lambda: next(bodies)())  # noqa: PLW0108 - the next one when it runs
        change("UPDATE salon_jobs_job SET run_at = now() + interval '1 hour' WHERE attempts > 0 AND state = 'queued'")
        jobs = sorted(claim(self._process_id, len(self._jobs)), key=lambda job: job.id)
        assert len(jobs) == len(self._jobs)
        with running_on_a_thread(self._process_id, []) as self.runner:
            self.runner.end_all(jobs)
        return self.states


@pytest.fixture
def jobs(process_id: int) -> Callable[[], JobSequence]:
    """Make sequences of jobs of one process."""
    return lambda: JobSequence(process_id)
