"""Changes the session inside jobs in every way, and compares what the next job on the same connection finds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction
from django.db.backends.signals import connection_created
from django.db.utils import DatabaseError
from psycopg.rows import dict_row

from project.salon.models import Store
from salon_jobs import Discard, Snooze, current_job
from salon_jobs.core.errors import CancelRequested, Interrupted, TimedOut
from salon_jobs.db.statements import rows_in_one_trip
from salon_jobs.jobs.current import RunningJob
from salon_jobs.tenancy.session_reset import AS_CONNECTED, watched
from salon_jobs.worker.runner import Runner
from tests import tasks
from tests.settings import TEST_DATABASE
from tests.support import change, claim, running_on_a_thread, seen
from tests.tenancy.round_trips import round_trips

STATE = """
    SELECT pg_backend_pid(), current_user, session_user, current_setting('role'), current_setting('search_path'),
           current_setting('row_security'), current_setting('statement_timeout'), current_setting('TimeZone'),
           current_setting('client_encoding'), current_setting('application_name'), current_setting('work_mem'),
           current_setting('default_transaction_read_only'), coalesce(current_setting('app.note', true), ''),
           (SELECT count(*) FROM pg_listening_channels()), (SELECT count(*) FROM pg_prepared_statements),
           (SELECT count(*) FROM pg_cursors), to_regclass('pg_temp.left_behind'),
           (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())
"""

STORE = "{store}"  # the store of the job that changes the session
STATEMENTS = {
    "SET of the store": [f"SET app.current_store_id = '{STORE}'"],
    "set_config of the store": [f"SELECT set_config('app.current_store_id', '{STORE}', false)"],
    "set_config in a function": [f"SELECT left_behind('{STORE}')"],
    "SET of a name of one's own": ["SET app.note = 'x'"],
    "SET ROLE": ["SET ROLE worker_runtime"],
    "SET SESSION AUTHORIZATION": ["SET SESSION AUTHORIZATION worker_runtime", "SET ROLE worker_runtime"],
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


def by_cursor(statements: list[str]) -> None:
    """Run statements as Django does."""
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def by_psycopg(statements: list[str]) -> None:
    """Run statements past Django, on its connection."""
    connection.ensure_connection()
    raw: Any = connection.connection
    for statement in statements:
        raw.execute(statement)


Kind = Callable[[UUID, Callable[..., None]], None]


def in_store(store: UUID, work: Callable[..., None]) -> None:
    """Run in the transaction of a store's job."""
    tasks.hooks.store = lambda **_: work()
    tasks.in_store.enqueue(store_id=store)


def outside(store: UUID, work: Callable[..., None]) -> None:
    """Run in a store's job that has no transaction."""
    tasks.hooks.store = lambda **_: work()
    tasks.outside.enqueue(store_id=store)


def in_system(_: UUID, work: Callable[..., None]) -> None:
    """Run in a system job."""
    tasks.hooks.system = lambda **_: work()
    tasks.system.enqueue()


def in_coroutine(store: UUID, work: Callable[..., None]) -> None:
    """Run in an asynchronous job of a store."""

    async def coroutine(**_: object) -> None:
        await sync_to_async(work)()

    tasks.hooks.coroutine = coroutine
    tasks.async_store.enqueue(store_id=store)


def in_system_coroutine(_: UUID, work: Callable[..., None]) -> None:
    """Run in an asynchronous system job."""

    async def coroutine(**_: object) -> None:
        await sync_to_async(work)()

    tasks.hooks.coroutine = coroutine
    tasks.async_system.enqueue()


KINDS = [in_store, outside, in_system, in_coroutine, in_system_coroutine]


@pytest.fixture(autouse=True)
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


class Sequence:
    """Jobs that run one after the other on one thread, each with a body of its own."""

    def __init__(self, process_id: int) -> None:
        self._process_id = process_id
        self._bodies: list[tuple[Kind, UUID, Callable[[], None]]] = []
        self.found: list[Any] = []

    def then(self, kind: Kind, store: UUID, body: Callable[[], None]) -> Sequence:
        """Add a job."""
        self._bodies.append((kind, store, body))
        return self

    def look(self, kind: Kind, store: UUID) -> Sequence:
        """Add a job that notes the state of the session, the stores it sees and whether a sequence was used."""
        return self.then(kind, store, lambda: self.found.append(state()))

    def run(self) -> list[Any]:
        """Run them all; returns what was noted."""
        bodies = iter([body for _, _, body in self._bodies])
        for kind, store, _ in self._bodies:
            kind(store, lambda: next(bodies)())  # noqa: PLW0108 - the next one when it runs
        jobs = sorted(claim(self._process_id), key=lambda job: job.id)
        assert len(jobs) == len(self._bodies)
        with running_on_a_thread(self._process_id, jobs):
            pass
        return self.found


def state() -> tuple[Any, ...]:
    """Return the state of this connection's session, the stores that a statement sees, and the last value."""
    with connection.cursor() as cursor:
        cursor.execute(STATE)
        row = cursor.fetchone()
    last: object = None
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT lastval()")
            last = cursor.fetchone()
    except DatabaseError:
        pass
    return (*row, last, sorted(Store.objects.values_list("pk", flat=True)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_next_job_finds_the_session_as_it_was_connected(
    stores: list[UUID], process_id: int, hooks: tasks.Hooks, statement: str, kind: Kind
) -> None:
    statements = [text.format(store=stores[1]) for text in STATEMENTS[statement]]
    successors = (in_system, in_store, outside)
    sequence = Sequence(process_id)
    for successor in successors:
        sequence.look(successor, stores[0])
    for way in (by_cursor, by_psycopg):
        for successor in successors:
            sequence.then(kind, stores[1], partial(way, statements)).look(successor, stores[0])
    found = sequence.run()
    assert found[3:] == [*found[:3], *found[:3]]
    assert [state[-1] for state in found[:3]] == [[], [stores[0]], []]
    assert seen("SELECT count(*), (SELECT count(*) FROM store) FROM salon_jobs_job") == [(0, 3)], "all succeeded"


def fail() -> None:
    """Raise."""
    raise ZeroDivisionError


def fail_in_the_database() -> None:
    """Run a statement that fails."""
    by_cursor(["SELECT nonsense"])


def snooze() -> None:
    """Ask to run later."""
    raise Snooze(timedelta(hours=1))


def discard() -> None:
    """Ask not to run again."""
    raise Discard("gone")


@pytest.mark.parametrize("end", [fail, fail_in_the_database, snooze, discard])
@pytest.mark.parametrize("kind", KINDS)
def test_however_the_job_ends(
    stores: list[UUID], process_id: int, hooks: tasks.Hooks, kind: Kind, end: Callable[[], None]
) -> None:
    def leave() -> None:
        by_cursor(["SELECT pg_advisory_lock(4711)", "PREPARE left_behind AS SELECT 1"])
        with transaction.atomic():
            by_cursor([f"SET app.current_store_id = '{stores[1]}'", "SET search_path TO nowhere"])
        if kind is in_store:  # what a handler commits by hand survives the rollback
            by_cursor(["COMMIT", "BEGIN"])
        end()

    before, after = (
        Sequence(process_id).look(in_system, stores[0]).then(kind, stores[1], leave).look(in_system, stores[0]).run()
    )
    if end is fail_in_the_database:  # Django may have closed the connection
        before, after = before[1:], after[1:]
    assert (after, after[-1]) == (before, [])


def test_no_job_waits_for_it(stores: list[UUID], process_id: int, hooks: tasks.Hooks) -> None:
    """It goes with the COMMIT of a store's job, is sent after others, and not made where nothing was used."""
    counted: list[list[int]] = []
    contexts = ExitStack()

    def count() -> None:
        counted.append(contexts.enter_context(round_trips(connection)))

    def use() -> None:
        with transaction.atomic():
            Store.objects.exists()

    def stop() -> None:
        contexts.close()

    sequence = Sequence(process_id).then(in_system, stores[0], use)
    # Counted from inside one job to inside a later one: the end of the first, the middle, the begin of the last.
    sequence.then(in_store, stores[0], count).then(in_store, stores[1], use).then(in_system, stores[0], stop)
    sequence.then(in_system, stores[0], count).then(in_system, stores[1], use).then(in_system, stores[0], stop)
    sequence.then(in_system, stores[0], count).then(in_system, stores[0], lambda: None).then(in_system, stores[0], stop)
    sequence.run()
    assert counted == [[6], [4], [0]]


def test_what_was_set_when_it_connected_stays(stores: list[UUID], process_id: int, hooks: tasks.Hooks) -> None:
    """By Django's own OPTIONS and by other receivers of its signal, and psycopg keeps its prepared statements."""

    def set_on_connect(connection: Any, **_: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = '31s'; SET search_path = pg_catalog, public; SET work_mem = '5MB'")

    def repeat() -> None:
        for _ in range(3):
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM store WHERE name <> %s", ["x"])

    options = connections.settings["default"]["OPTIONS"]
    kept = dict(options)
    options.update(assume_role="worker_runtime", prepare_threshold=1, server_side_binding=True)
    connection_created.connect(set_on_connect)
    dirt = [
        "SET ROLE NONE",
        "SET statement_timeout = 0",
        "SET search_path TO nowhere",
        "RESET ALL",
        "PREPARE x AS SELECT 1",
    ]
    try:
        sequence = Sequence(process_id).then(in_system, stores[0], repeat).look(in_system, stores[0])
        for kind in KINDS:
            sequence.then(kind, stores[1], repeat).then(kind, stores[1], partial(by_cursor, dirt))
            sequence.look(in_system, stores[0]).then(in_system, stores[0], repeat)
        before, *after = sequence.run()
    finally:
        connection_created.disconnect(set_on_connect)
        options.clear()
        options.update(kept)
    prepared = 14
    assert before[3:7] == ("worker_runtime", "pg_catalog, public", "on", "31s")
    assert [state[:prepared] for state in after] == [before[:prepared]] * len(KINDS)
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)], "all succeeded"


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize(
    ("kind", "attribute", "value"),
    [
        (in_system, "read_only", True),
        (in_system, "autocommit", False),
        (outside, "autocommit", False),
        *((kind, "row_factory", dict_row) for kind in KINDS),
    ],
)
def test_attributes_of_the_psycopg_connection_that_were_changed_end_it(
    stores: list[UUID],
    process_id: int,
    hooks: tasks.Hooks,
    caplog: pytest.LogCaptureFixture,
    kind: Kind,
    attribute: str,
    value: object,
    reads: bool,
) -> None:
    def change_attributes() -> None:
        connection.ensure_connection()
        if reads and attribute == "row_factory":
            connection.connection.execute("SELECT 1")
        setattr(connection.connection, attribute, value)
        if reads and attribute == "read_only":
            connection.connection.execute("SELECT 1")

    before, after = (
        Sequence(process_id)
        .look(in_system, stores[0])
        .then(kind, stores[1], change_attributes)
        .look(in_system, stores[0])
        .run()
    )
    assert (after[1:], after[0] == before[0]) == (before[1:], False)
    assert "connection_discarded database=default reason=attributes of the psycopg connection" in caplog.text
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)], "all succeeded"


def test_a_callback_comes_before_the_reset(stores: list[UUID], process_id: int, hooks: tasks.Hooks) -> None:
    unlocked: list[object] = []

    def unlock() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(4711), set_config('app.note', 'x', false)")
            unlocked.append(cursor.fetchone())

    def lock() -> None:
        by_cursor(["SELECT pg_advisory_lock(4711)"])
        transaction.on_commit(unlock)

    before, after = (
        Sequence(process_id).look(in_system, stores[0]).then(in_store, stores[1], lock).look(in_system, stores[0]).run()
    )
    assert (unlocked, after) == ([(True, "x")], before)


def test_a_trigger_that_fires_at_the_commit_leaves_nothing(
    stores: list[UUID], process_id: int, hooks: tasks.Hooks
) -> None:
    change(
        "CREATE FUNCTION at_the_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "PERFORM set_config('app.current_store_id', NEW.id::text, false), set_config('role', 'worker_runtime', false); "
        "RETURN NULL; END $$"
    )
    change(
        "CREATE CONSTRAINT TRIGGER at_the_commit AFTER UPDATE ON store DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        "EXECUTE FUNCTION at_the_commit()"
    )
    try:
        sequence = Sequence(process_id).look(in_system, stores[0])
        sequence.then(in_store, stores[1], lambda: by_cursor(["UPDATE store SET name = name"])).look(
            in_system, stores[0]
        )
        before, after = sequence.run()
    finally:
        change("DROP FUNCTION at_the_commit CASCADE")
    assert (after, after[-1]) == (before, [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_that_the_server_refuses_ends_the_connection(
    stores: list[UUID], process_id: int, hooks: tasks.Hooks, caplog: pytest.LogCaptureFixture, kind: Kind
) -> None:
    def leave() -> None:
        by_cursor([f"SET app.current_store_id = '{stores[1]}'"])
        session = watched(connection)
        assert session is not None
        session.reset = "SELECT 1/0"

    before, after = (
        Sequence(process_id).look(in_system, stores[0]).then(kind, stores[1], leave).look(in_system, stores[0]).run()
    )
    assert (after[1:], after[0] == before[0], after[-1]) == (before[1:], False, [])
    assert "connection_discarded database=default reason=division by zero" in caplog.text
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)], "all succeeded"


def test_a_connection_that_was_lost_in_a_job_is_replaced(
    stores: list[UUID], process_id: int, hooks: tasks.Hooks
) -> None:
    def lose() -> None:
        by_cursor([f"SET app.current_store_id = '{stores[1]}'"])
        change("SELECT pg_terminate_backend(%s, 10000)", connection.connection.info.backend_pid)

    before, after = (
        Sequence(process_id)
        .look(in_system, stores[0])
        .then(in_system, stores[1], lose)
        .look(in_system, stores[0])
        .run()
    )
    assert (after[1:], after[0] == before[0]) == (before[1:], False)


def test_behind_a_pooler_only_what_it_carries_over_is_kept(stores: list[UUID]) -> None:
    """There the process that answers is not the one the connection was told of."""
    connection.close()
    by_cursor(["SET statement_timeout = '31s'", "SET ROLE worker_runtime", "SET application_name = 'ours'"])
    pid = connection.connection.info.backend_pid
    own = dict(rows_in_one_trip(connection, AS_CONNECTED.format(pid=pid)))
    shared = dict(rows_in_one_trip(connection, AS_CONNECTED.format(pid=pid + 1)))
    connection.close()
    assert {"statement_timeout": "31000", "role": "worker_runtime", "application_name": "ours"}.items() <= own.items()
    assert {"role": "none", "application_name": "ours"}.items() <= shared.items()
    assert "statement_timeout" not in shared


def leave_a_stream_half_read() -> None:
    """Leave the connection in the midst of a statement."""
    by_cursor(["SET app.note = 'x'"])
    connection.connection.cursor().stream("SELECT generate_series(1, 100000)").__next__()


def leave_a_pipeline() -> None:
    """Leave the connection in libpq's pipeline mode."""
    by_cursor(["SET app.note = 'x'"])
    connection.connection.pipeline().__enter__()


def commit_by_hand() -> None:
    """Commit what Django believes to be one transaction, and set something between two."""
    by_cursor(["COMMIT", "SET app.note = 'x'", "SET ROLE worker_runtime", "BEGIN"])


def set_in_savepoints() -> None:
    """Set in blocks that commit, roll back and fail."""
    for rolls_back in (False, True):
        with transaction.atomic():
            by_cursor(["SET app.note = 'x'", "SET LOCAL work_mem = '99MB'"])
            transaction.set_rollback(rolls_back)
    with pytest.raises(DatabaseError), transaction.atomic():
        by_cursor(["SET search_path TO nowhere", "SELECT nonsense"])


def connect_anew() -> None:
    """Close the connection and leave something on the next."""
    if not connection.in_atomic_block:
        connection.close()
    by_cursor(["SET app.note = 'x'", "LISTEN left_behind"])


def set_in_a_thread() -> None:
    """Let another thread use this very connection."""
    own = connection._connections["default"]  # type: ignore[attr-defined]
    own.inc_thread_sharing()

    def work() -> None:
        own.connection.execute("SET app.note = 'x'")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    own.dec_thread_sharing()


def set_by_a_copy() -> None:
    """Set while copying out."""
    with (
        connection.cursor() as cursor,
        cursor.cursor.copy("COPY (SELECT set_config('app.note', 'x', false)) TO STDOUT") as copy,
    ):
        assert list(copy)


def set_in_a_block() -> None:
    """Set by a block, which no list of statements would know."""
    by_cursor(["DO $$ BEGIN PERFORM set_config('app.note', 'x', false); END $$"])


def keep_it_read_only() -> None:
    """Have every later transaction wait for a safe snapshot."""
    by_cursor(
        [
            "SET default_transaction_isolation = serializable",
            "SET default_transaction_read_only = on",
            "SET default_transaction_deferrable = on",
            "SET standard_conforming_strings = off",
        ]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "body",
    [
        leave_a_stream_half_read,
        leave_a_pipeline,
        commit_by_hand,
        set_in_savepoints,
        connect_anew,
        set_in_a_thread,
        set_by_a_copy,
        set_in_a_block,
        keep_it_read_only,
    ],
)
def test_whatever_the_job_did_to_its_connection(
    stores: list[UUID], process_id: int, hooks: tasks.Hooks, kind: Kind, body: Callable[[], None]
) -> None:
    sequence = Sequence(process_id).look(in_system, stores[0]).then(kind, stores[1], body)
    before, after = sequence.look(in_system, stores[0]).run()
    assert (after[1:], after[-1]) == (before[1:], [])


def test_other_databases_that_the_job_used(stores: list[UUID], process_id: int, hooks: tasks.Hooks) -> None:
    found: list[object] = []

    def leave() -> None:
        connections["web"].cursor().execute(f"SET app.current_store_id = '{stores[1]}'")

    def look() -> None:
        found.extend(Store.objects.using("web").values_list("pk", flat=True))

    Sequence(process_id).then(in_system, stores[0], leave).then(in_system, stores[0], look).run()
    assert found == []
    assert seen("SELECT count(*), (SELECT count(*) FROM store) FROM salon_jobs_job") == [(0, 3)], "all succeeded"


def test_a_database_that_is_not_postgresql_is_left_alone(
    stores: list[UUID], process_id: int, hooks: tasks.Hooks, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[object] = []

    def make() -> None:
        connections["elsewhere"].cursor().execute("CREATE TABLE kept (id integer)")

    def look() -> None:
        found.append(connections["elsewhere"].cursor().execute("SELECT count(*) FROM kept").fetchone())

    connections.settings["elsewhere"] = connections.configure_settings(
        {"default": {}, "elsewhere": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    )["elsewhere"]
    try:
        Sequence(process_id).then(in_system, stores[0], make).then(in_store, stores[0], look).run()
    finally:
        del connections.settings["elsewhere"]
    assert found == [(0,)]
    assert "connection_discarded" not in caplog.text
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)], "all succeeded"


@pytest.mark.parametrize("kind", [in_coroutine, in_system_coroutine])
@pytest.mark.parametrize("statement", ["SET of the store", "SET ROLE", "an advisory lock"])
@pytest.mark.parametrize("to_thread", [asyncio.to_thread, lambda work: sync_to_async(work, thread_sensitive=False)()])
def test_threads_of_the_event_loop_keep_nothing(
    stores: list[UUID], process_id: int, hooks: tasks.Hooks, kind: Kind, statement: str, to_thread: Any
) -> None:
    found: list[Any] = []
    dirt = [text.format(store=stores[1]) for text in STATEMENTS[statement]]
    works = iter([lambda: found.append(state()), partial(by_cursor, dirt), lambda: found.append(state())])

    async def coroutine(**_: object) -> None:
        await to_thread(next(works))

    for _ in range(3):
        kind(stores[1], lambda: None)
    hooks.coroutine = coroutine
    with running_on_a_thread(process_id, sorted(claim(process_id), key=lambda job: job.id)):
        pass
    before, after = found
    assert (after[1:], after[-1]) == (before[1:], [])
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)], "all succeeded"


@pytest.mark.parametrize("kind", [in_store, outside, in_system])
@pytest.mark.parametrize("interrupt", [TimedOut, CancelRequested, Interrupted])
def test_however_the_job_is_struck(
    stores: list[UUID],
    process_id: int,
    hooks: tasks.Hooks,
    monkeypatch: pytest.MonkeyPatch,
    kind: Kind,
    interrupt: type[Interrupted],
) -> None:
    runners: list[Runner] = []
    begin = Runner._begin

    def remember(runner: Runner, running: RunningJob) -> None:
        runners.append(runner)
        begin(runner, running)

    def leave() -> None:
        by_cursor([f"SET app.current_store_id = '{stores[1]}'", "SELECT pg_advisory_lock(4711)"])
        if kind is in_store:
            by_cursor(["COMMIT", "BEGIN"])
        elsewhere = threading.Thread(target=runners[-1].interrupt, args=(current_job(), interrupt))
        elsewhere.start()
        by_cursor(["SELECT pg_sleep(60)"])

    monkeypatch.setattr(Runner, "_begin", remember)
    sequence = Sequence(process_id).look(in_system, stores[0]).then(kind, stores[1], leave)
    before, after = sequence.look(in_system, stores[0]).run()
    assert (after[1:], after[-1]) == (before[1:], [])
