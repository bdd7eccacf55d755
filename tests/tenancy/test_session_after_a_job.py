"""Jobs that change the session in every way, and what the next job on the same connection finds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from itertools import product
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
from salon_jobs.db.libpq import converted
from salon_jobs.db.session import AS_CONNECTED, guard_of
from salon_jobs.db.statements import in_one_trip
from salon_jobs.jobs.run import JobRun
from tests.support import change, connected, in_thread, seen
from tests.tenancy.probe import ask, backend, execute, fail, fail_in_database, round_trips, visible
from tests.tenancy.session_state import (
    KINDS,
    PREPARED,
    SETTINGS,
    STATEMENTS,
    Body,
    JobSequence,
    Kind,
    every_kind,
    in_coroutine,
    in_store,
    in_system,
    in_system_coroutine,
    outside,
)
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("function_and_right", "hooks")
Jobs = Callable[[], JobSequence]


def by_psycopg(*statements: str) -> None:
    connection.ensure_connection()
    raw: Any = connection.connection
    for statement in statements:
        raw.execute(statement)


@contextmanager
def at_connect(*statements: str) -> Generator[None]:
    """Run statements on every new connection, as a project does by Django's signal."""

    def receive(connection: Any, **_: object) -> None:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    with connected(connection_created, receive):
        yield


def assert_all_succeeded() -> None:
    assert seen("SELECT count(*), (SELECT count(*) FROM store) FROM salon_jobs_job") == [(0, 3)]


def assert_replaced(before: list[Any], after: list[Any]) -> None:
    """Assert that the next job had another connection, as clean as the first."""
    assert (after[1:], after[0] == before[0], after[-1]) == (before[1:], False, [])


@pytest.mark.parametrize("is_full", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["in turn", "all"])
@every_kind
def test_next_job_finds_session_as_connected(stores: list[UUID], jobs: Jobs, kind: Kind, is_full: bool) -> None:
    """The quick one has each kind of job follow on each way of a third of the statements, in turn."""
    successors = (in_system, in_store, outside)
    sequence = jobs()
    for successor in successors:
        sequence.note(successor, stores[0])
    tried: list[tuple[str, int]] = []
    for number, (name, way) in enumerate(product(STATEMENTS, (execute, by_psycopg))):
        statements = [text.format(store=stores[1], role="worker_runtime") for text in STATEMENTS[name]]
        for place in range(3) if is_full else [number % 3]:
            sequence.then(kind, stores[1], partial(way, *statements)).note(successors[place], stores[0])
            tried.append((name, place))
    before, states = (found := sequence.run())[:3], found[3:]
    for (name, place), state in zip(tried, states, strict=True):
        assert state == before[place], name
    assert [each[-1] for each in before] == [[], [stores[0]], []]
    assert_all_succeeded()


def raise_(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "end", [fail, fail_in_database, partial(raise_, Snooze(timedelta(hours=1))), partial(raise_, Discard("gone"))]
)
@every_kind
def test_session_after_failed_job(stores: list[UUID], jobs: Jobs, kind: Kind, end: Body) -> None:
    def leave() -> None:
        execute("SELECT pg_advisory_lock(4711)", "PREPARE left_behind AS SELECT 1")
        with transaction.atomic():
            execute(f"SET app.current_store_id = '{stores[1]}'", "SET search_path TO nowhere")
        if kind is in_store:  # what a handler commits by hand survives the rollback
            execute("COMMIT", "BEGIN")
        end()

    before, after = jobs().around(kind, stores[1], leave)
    if end is fail_in_database:  # Django may have closed the connection
        before, after = before[1:], after[1:]
    assert (after, after[-1]) == (before, [])


@pytest.mark.parametrize("kind", [in_store, outside, in_system])
@pytest.mark.parametrize("interrupt", [TimedOut, CancelRequested, Interrupted])
def test_session_after_interrupted_job(
    stores: list[UUID], jobs: Jobs, kind: Kind, interrupt: type[Interrupted]
) -> None:
    sequence = jobs()

    def interrupt_it_asleep(running: JobRun, pid: int) -> None:
        # The server ignores a request to cancel what it has not begun.
        sleeping = "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND pid = %s"
        eventually(lambda: seen(sleeping, pid))
        connections["owner"].close()
        assert sequence.runner is not None
        sequence.runner.interrupt(running, interrupt)

    def leave() -> None:
        execute(f"SET app.current_store_id = '{stores[1]}'", "SELECT pg_advisory_lock(4711)")
        if kind is in_store:
            execute("COMMIT", "BEGIN")
        threading.Thread(target=interrupt_it_asleep, args=(current_job().run, backend())).start()
        execute("SELECT pg_sleep(60)")

    before, after = sequence.around(kind, stores[1], leave)
    assert (after[1:], after[-1]) == (before[1:], [])


def test_round_trips_of_reset(stores: list[UUID], jobs: Jobs) -> None:
    """It goes with the COMMIT of a store's job, is sent after others, and not made where nothing was used."""
    counted: list[list[int]] = []
    contexts = ExitStack()
    use = transaction.atomic(Store.objects.exists)

    def count() -> None:
        counted.append(contexts.enter_context(round_trips(connection)))

    sequence = jobs().then(in_system, stores[0], use)
    # Counted from inside one job to inside a later one: the end of the first, the middle, the begin of the last.
    for kind, body in ((in_store, use), (in_system, use), (in_system, lambda: None)):
        sequence.then(kind, stores[0], count).then(kind, stores[1], body).then(in_system, stores[0], contexts.close)
    sequence.run()
    assert counted == [[6], [4], [0]]


def test_settings_of_connecting_stay(stores: list[UUID], jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Django's own OPTIONS and by receivers of its signal, and psycopg keeps its prepared statements."""

    def repeat() -> None:
        for _ in range(3):
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM store WHERE name <> %s", ["x"])

    default = connections.settings["default"]
    ours = {"assume_role": "worker_runtime", "prepare_threshold": 1, "server_side_binding": True}
    monkeypatch.setitem(default, "OPTIONS", {**default["OPTIONS"], **ours})
    dirt = ("SET ROLE NONE", "SET statement_timeout = 0", "SET search_path TO nowhere", "RESET ALL")
    with at_connect("SET statement_timeout = '31s'; SET search_path = pg_catalog, public; SET work_mem = '5MB'"):
        sequence = jobs().then(in_system, stores[0], repeat).note(in_system, stores[0])
        for kind in KINDS:
            sequence.then(kind, stores[1], repeat)
            sequence.then(kind, stores[1], partial(execute, *dirt, "PREPARE x AS SELECT 1"))
            sequence.note(in_system, stores[0]).then(in_system, stores[0], repeat)
        before, *after = sequence.run()
    assert before[SETTINGS] == ["worker_runtime", "pg_catalog, public", "on", "31s"]
    assert [each[:PREPARED] for each in after] == [before[:PREPARED]] * len(KINDS)
    assert_all_succeeded()


def test_channels_and_locks_of_connecting_stay(stores: list[UUID], jobs: Jobs) -> None:
    """Those of a job go, and its prepared statements, however often it took a lock."""

    def held() -> list[object]:
        return [
            ask("SELECT array_agg(channel) FROM pg_listening_channels() channel"),
            ask("SELECT array_agg(name::text) FROM pg_prepared_statements"),
            ask(
                "SELECT array_agg((mode, classid::int, objid::int, objsubid)::text ORDER BY objsubid) FROM pg_locks"
                " WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
            ),
        ]

    locks = "SELECT pg_advisory_lock(6), pg_advisory_lock(7, 8), pg_advisory_lock_shared(6)"
    dirty = partial(execute, *[locks] * 3, "LISTEN left_behind", "PREPARE left_behind AS SELECT 2")
    found: list[object] = []
    with at_connect(
        'LISTEN "Of ours"; PREPARE "of\'ours" AS SELECT 1',
        "SELECT pg_advisory_lock_shared(-5), pg_advisory_lock_shared(7, -8)",
    ):
        sequence = jobs()
        for kind in KINDS:
            sequence.then(kind, stores[1], dirty).then(kind, stores[0], lambda: found.append(held()))
        sequence.run()
    kept_locks = ["(ShareLock,-1,-5,1)", "(ShareLock,7,-8,2)"]
    assert found == [[["Of ours"], ["of'ours"], kept_locks]] * len(KINDS)
    assert_all_succeeded()


def test_session_authorization_of_connecting_stays(
    stores: list[UUID], jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a superuser's session that was given to another role."""
    for name in ("USER", "PASSWORD"):
        monkeypatch.setitem(connections.settings["default"], name, connections.settings["owner"][name])
    with at_connect("SET SESSION AUTHORIZATION worker_runtime"):
        for kind in KINDS:
            before, after = jobs().around(kind, stores[1], lambda: execute("RESET SESSION AUTHORIZATION"))
            assert (after, after[6]) == (before, "worker_runtime")


def change_attribute(name: str, value: object, *, reads: bool) -> None:
    """Change how psycopg works on the connection, and read by it."""
    connection.ensure_connection()
    raw = connection.connection
    if reads and name == "row_factory":
        raw.execute("SELECT 1")
    setattr(raw, name, value)
    if reads and name == "read_only":
        raw.execute("SELECT 1")


def have_reset_refused() -> None:
    execute("SET app.note = 'x'")
    session = guard_of(connection.connection)
    assert session is not None
    session.reset = "SELECT 1/0"


ATTRIBUTES: list[tuple[Kind, str, object]] = [
    (in_system, "read_only", True),
    (in_system, "autocommit", False),
    (outside, "autocommit", False),
    *((kind, "row_factory", dict_row) for kind in KINDS),
]


@pytest.mark.parametrize(
    ("kind", "leave", "reason"),
    [
        *(
            (kind, partial(change_attribute, name, value, reads=reads), "attributes of the psycopg connection")
            for kind, name, value in ATTRIBUTES
            for reads in (False, True)
        ),
        *((kind, have_reset_refused, "division by zero") for kind in KINDS),
    ],
)
def test_connection_that_cannot_be_reset_is_discarded(
    stores: list[UUID], jobs: Jobs, caplog: pytest.LogCaptureFixture, kind: Kind, leave: Body, reason: str
) -> None:
    assert_replaced(*jobs().around(kind, stores[1], leave))
    assert f"connection_discarded database=default reason={reason}" in caplog.text
    assert_all_succeeded()


def test_connection_lost_in_job_is_replaced(stores: list[UUID], jobs: Jobs) -> None:
    def lose() -> None:
        execute(f"SET app.current_store_id = '{stores[1]}'")
        change("SELECT pg_terminate_backend(%s, 60000)", connection.connection.info.backend_pid)

    assert_replaced(*jobs().around(in_system, stores[1], lose))


def test_callback_runs_before_reset(stores: list[UUID], jobs: Jobs) -> None:
    unlocked: list[object] = []

    def lock() -> None:
        execute("SELECT pg_advisory_lock(4711)")
        unlock = "SELECT (pg_advisory_unlock(4711), set_config('app.note', 'x', false))::text"
        transaction.on_commit(lambda: unlocked.append(ask(unlock)))

    before, after = jobs().around(in_store, stores[1], lock)
    assert (unlocked, after) == (["(t,x)"], before)


def test_trigger_at_commit_leaves_nothing(stores: list[UUID], jobs: Jobs) -> None:
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
        before, after = jobs().around(in_store, stores[1], lambda: execute("UPDATE store SET name = name"))
    finally:
        change("DROP FUNCTION at_the_commit CASCADE")
    assert (after, after[-1]) == (before, [])


def test_settings_kept_behind_pooler(stores: list[UUID]) -> None:
    """There the process that answers is not the one given to the connection when it was made."""
    connection.close()
    execute("SET statement_timeout = '31s'", "SET ROLE worker_runtime", "SET application_name = 'ours'")
    pid = connection.connection.info.backend_pid
    own, shared = (
        dict(converted(connection.connection, in_one_trip(connection, AS_CONNECTED.format(pid=each))))
        for each in (pid, pid + 1)
    )
    connection.close()
    assert "'31000'" in own["statement_timeout"]
    assert own["role"] == "SET SESSION AUTHORIZATION worker_runtime; SET ROLE worker_runtime"
    assert shared["role"] == "RESET SESSION AUTHORIZATION; SET ROLE NONE"
    assert "'ours'" in own["application_name"] == shared["application_name"]
    assert "statement_timeout" not in shared


def leave_a_stream_half_read() -> None:
    execute("SET app.note = 'x'")
    connection.connection.cursor().stream("SELECT generate_series(1, 100000)").__next__()


def leave_a_pipeline() -> None:
    execute("SET app.note = 'x'")
    connection.connection.pipeline().__enter__()


def set_in_savepoints() -> None:
    """Set in blocks that commit, roll back and fail."""
    for rolls_back in (False, True):
        with transaction.atomic():
            execute("SET app.note = 'x'", "SET LOCAL work_mem = '99MB'")
            transaction.set_rollback(rolls_back)
    with pytest.raises(DatabaseError), transaction.atomic():
        execute("SET search_path TO nowhere", "SELECT nonsense")


def connect_anew() -> None:
    """Close the connection and leave something on the next."""
    if not connection.in_atomic_block:
        connection.close()
    execute("SET app.note = 'x'", "LISTEN left_behind")


def set_in_a_thread() -> None:
    """Let another thread use this very connection."""
    own = connections["default"]
    own.inc_thread_sharing()
    in_thread(lambda: own.connection.execute("SET app.note = 'x'"))
    own.dec_thread_sharing()


def set_by_a_copy() -> None:
    copy_out = "COPY (SELECT set_config('app.note', 'x', false)) TO STDOUT"
    with connection.cursor() as cursor, cursor.cursor.copy(copy_out) as copy:
        assert list(copy)


@pytest.mark.parametrize(
    "body",
    [
        leave_a_stream_half_read,
        leave_a_pipeline,
        # What Django believes to be one transaction.
        partial(execute, "COMMIT", "SET app.note = 'x'", "SET ROLE worker_runtime", "BEGIN"),
        set_in_savepoints,
        connect_anew,
        set_in_a_thread,
        set_by_a_copy,
        # No list of statements would contain it.
        partial(execute, "DO $$ BEGIN PERFORM set_config('app.note', 'x', false); END $$"),
        # Every later transaction would wait for a safe snapshot.
        partial(
            execute,
            "SET default_transaction_isolation = serializable",
            "SET default_transaction_read_only = on",
            "SET default_transaction_deferrable = on",
            "SET standard_conforming_strings = off",
        ),
    ],
)
def test_session_after_job_misused_connection(stores: list[UUID], jobs: Jobs, body: Body) -> None:
    for kind in KINDS:
        before, after = jobs().around(kind, stores[1], body)
        assert (after[1:], after[-1]) == (before[1:], []), kind


def test_other_database_is_reset_too(stores: list[UUID], jobs: Jobs) -> None:
    results: list[UUID] = []
    sequence = jobs()
    sequence.then(in_system, stores[0], lambda: execute(f"SET app.current_store_id = '{stores[1]}'", using="web"))
    sequence.then(in_system, stores[0], lambda: results.extend(visible("web"))).run()
    assert results == []
    assert_all_succeeded()


@pytest.mark.parametrize("kind", [in_system, outside])
def test_job_turns_autocommit_off(stores: list[UUID], jobs: Jobs, kind: Kind) -> None:
    """Without a statement: neither its end nor what the next job writes is lost."""
    found: list[bool] = []

    def write() -> None:
        found.append(transaction.get_autocommit())
        Store.objects.filter(pk=stores[0]).update(name="written")

    sequence = jobs().note(in_store, stores[0]).then(kind, stores[0], lambda: transaction.set_autocommit(False))
    sequence.then(outside, stores[0], lambda: None)
    for successor in (in_store, in_system):
        sequence.then(successor, stores[0], write)
    sequence.run()
    assert found == [False, True]
    assert seen("SELECT count(*) FROM store WHERE name = 'written'") == [(1,)]
    states = "SELECT state, attempts FROM salon_jobs_job"
    assert seen(states) == [("queued", 1)], "the job that left a transaction open"


def test_job_removes_connection(stores: list[UUID], jobs: Jobs) -> None:
    """The next one has Django's new one, not the one that was removed."""
    found: list[Any] = []

    def remove() -> None:
        connections["default"].close()
        del connections["default"]

    def look() -> None:
        found.append((current_job().run.connection is connections["default"], visible()))

    sequence = jobs().note(in_store, stores[0]).then(in_system, stores[0], lambda: None)
    sequence.then(in_system, stores[0], remove).then(in_store, stores[0], look)
    sequence.run()
    assert found == [(True, [stores[0]])]
    assert_all_succeeded()


def test_other_vendors_are_left_alone(stores: list[UUID], jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    results: list[object] = []
    opened: set[Any] = set()

    def query(statement: str) -> Any:
        cursor = connections["elsewhere"].cursor()
        opened.add(connections["elsewhere"].connection)
        return cursor.execute(statement)

    connections.settings["elsewhere"] = connections.configure_settings(
        {"default": {}, "elsewhere": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    )["elsewhere"]
    sequence = jobs().then(in_system, stores[0], lambda: query("CREATE TABLE kept (id integer)"))
    for kind in (in_store, outside, in_system):
        sequence.then(kind, stores[0], lambda: results.append(query("SELECT count(*) FROM kept").fetchone()))
    try:
        sequence.run()
    finally:
        del connections.settings["elsewhere"]
        for each in opened:
            each.close()  # Django never closes a database in memory
    assert results == 3 * [(0,)]
    assert "connection_discarded" not in caplog.text
    assert "could not be written" not in caplog.text
    assert_all_succeeded()


@pytest.mark.parametrize("kind", [in_coroutine, in_system_coroutine])
@pytest.mark.parametrize("step", [asyncio.to_thread, lambda work: sync_to_async(work, thread_sensitive=False)()])
def test_threads_of_event_loop_keep_nothing(stores: list[UUID], jobs: Jobs, kind: Any, step: Any) -> None:
    dirt = [
        text.format(store=stores[1], role="worker_runtime")
        for statement in ("SET of the store", "SET ROLE", "an advisory lock")
        for text in STATEMENTS[statement]
    ]
    kind = partial(kind, step=step)
    sequence = jobs().note(kind, stores[1]).then(kind, stores[1], partial(execute, *dirt)).note(kind, stores[1])
    before, after = sequence.run()
    assert (after[1:], after[-1]) == (before[1:], [])
    assert_all_succeeded()
