"""Jobs that change the session in every way, and what the next job on the same connection finds."""

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
from salon_jobs.core.outcomes import Outcome
from salon_jobs.db.libpq import converted
from salon_jobs.db.statements import in_one_trip
from salon_jobs.jobs.current import RunningJob
from salon_jobs.tenancy.connections import AS_CONNECTED, watched
from salon_jobs.worker.runner import Runner
from tests import tasks
from tests.settings import TEST_DATABASE
from tests.support import change, claim, running_on_a_thread, seen
from tests.tenancy.probe import ask, execute, in_thread, round_trips, visible
from tests.tenancy.session_state import PREPARED, SETTINGS, STATEMENTS, state

pytestmark = pytest.mark.usefixtures("function_and_right", "hooks")


def by_psycopg(*statements: str) -> None:
    connection.ensure_connection()
    raw: Any = connection.connection
    for statement in statements:
        raw.execute(statement)


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


def in_coroutine(store: UUID, body: Body) -> None:
    tasks.hooks.coroutine = lambda **_: sync_to_async(body)()
    tasks.async_store.enqueue(store_id=store)


def in_system_coroutine(_: UUID, body: Body) -> None:
    tasks.hooks.coroutine = lambda **_: sync_to_async(body)()
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


class Sequence:
    """Jobs that run one after the other on one thread, each with a body of its own."""

    def __init__(self, process_id: int) -> None:
        self._process_id = process_id
        self._jobs: list[tuple[Kind, UUID, Body]] = []
        self.states: list[Any] = []

    def then(self, kind: Kind, store: UUID, body: Body) -> Sequence:
        self._jobs.append((kind, store, body))
        return self

    def note(self, kind: Kind, store: UUID) -> Sequence:
        """Add a job that notes the state of the session."""
        return self.then(kind, store, lambda: self.states.append(state()))

    def run(self) -> list[Any]:
        """Run them all; return what was noted."""
        bodies = iter([body for _, _, body in self._jobs])
        for kind, store, _ in self._jobs:
            kind(store, lambda: next(bodies)())  # noqa: PLW0108 - the next one when it runs
        run_claimed(self._process_id, len(self._jobs))
        return self.states


def run_claimed(process_id: int, count: int) -> None:
    change("UPDATE salon_jobs_job SET run_at = now() + interval '1 hour' WHERE attempts > 0 AND state = 'queued'")
    jobs = sorted(claim(process_id), key=lambda job: job.id)
    assert len(jobs) == count
    with running_on_a_thread(process_id, jobs):
        pass


def around(process_id: int, kind: Kind, store: UUID, body: Body) -> tuple[list[Any], list[Any]]:
    before, after = Sequence(process_id).note(in_system, store).then(kind, store, body).note(in_system, store).run()
    return before, after


def assert_all_succeeded() -> None:
    assert seen("SELECT count(*), (SELECT count(*) FROM store) FROM salon_jobs_job") == [(0, 3)]


def assert_replaced(before: list[Any], after: list[Any]) -> None:
    """Assert that the next job had another connection, as clean as the first."""
    assert (after[1:], after[0] == before[0], after[-1]) == (before[1:], False, [])


@every_kind
def test_the_next_job_finds_the_session_as_it_was_connected(stores: list[UUID], process_id: int, kind: Kind) -> None:
    successors = (in_system, in_store, outside)
    for name, texts in STATEMENTS.items():
        statements = [text.format(store=stores[1], role="worker_runtime") for text in texts]
        sequence = Sequence(process_id)
        for successor in successors:
            sequence.note(successor, stores[0])
        for way in (execute, by_psycopg):
            for successor in successors:
                sequence.then(kind, stores[1], partial(way, *statements)).note(successor, stores[0])
        states = sequence.run()
        assert states[3:] == [*states[:3], *states[:3]], name
        assert [each[-1] for each in states[:3]] == [[], [stores[0]], []], name
    assert_all_succeeded()


def end_by(error: Exception | None) -> None:
    if error is None:
        execute("SELECT nonsense")
    else:
        raise error


@pytest.mark.parametrize("error", [ZeroDivisionError(), None, Snooze(timedelta(hours=1)), Discard("gone")], ids=repr)
@every_kind
def test_however_the_job_ends(stores: list[UUID], process_id: int, kind: Kind, error: Exception | None) -> None:
    def leave() -> None:
        execute("SELECT pg_advisory_lock(4711)", "PREPARE left_behind AS SELECT 1")
        with transaction.atomic():
            execute(f"SET app.current_store_id = '{stores[1]}'", "SET search_path TO nowhere")
        if kind is in_store:  # what a handler commits by hand survives the rollback
            execute("COMMIT", "BEGIN")
        end_by(error)

    before, after = around(process_id, kind, stores[1], leave)
    if error is None:  # Django may have closed the connection
        before, after = before[1:], after[1:]
    assert (after, after[-1]) == (before, [])


@pytest.mark.parametrize("kind", [in_store, outside, in_system])
@pytest.mark.parametrize("interrupt", [TimedOut, CancelRequested, Interrupted])
def test_however_the_job_is_interrupted(
    stores: list[UUID], process_id: int, monkeypatch: pytest.MonkeyPatch, kind: Kind, interrupt: type[Interrupted]
) -> None:
    runners: list[Runner] = []
    execute_run = Runner._execute

    def remember(runner: Runner, running: RunningJob) -> Outcome:
        runners.append(runner)
        return execute_run(runner, running)

    def interrupt_it_asleep(runner: Runner, running: RunningJob) -> None:
        # The server ignores a request to cancel what it has not begun.
        while not seen("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"):
            pass
        connections["owner"].close()
        runner.interrupt(running, interrupt)

    def leave() -> None:
        execute(f"SET app.current_store_id = '{stores[1]}'", "SELECT pg_advisory_lock(4711)")
        if kind is in_store:
            execute("COMMIT", "BEGIN")
        threading.Thread(target=interrupt_it_asleep, args=(runners[-1], current_job())).start()
        execute("SELECT pg_sleep(60)")

    monkeypatch.setattr(Runner, "_execute", remember)
    before, after = around(process_id, kind, stores[1], leave)
    assert (after[1:], after[-1]) == (before[1:], [])


def test_no_job_waits_for_it(stores: list[UUID], process_id: int) -> None:
    """It goes with the COMMIT of a store's job, is sent after others, and not made where nothing was used."""
    counted: list[list[int]] = []
    contexts = ExitStack()
    use = transaction.atomic(Store.objects.exists)

    def count() -> None:
        counted.append(contexts.enter_context(round_trips(connection)))

    sequence = Sequence(process_id).then(in_system, stores[0], use)
    # Counted from inside one job to inside a later one: the end of the first, the middle, the begin of the last.
    for kind, body in ((in_store, use), (in_system, use), (in_system, lambda: None)):
        sequence.then(kind, stores[0], count).then(kind, stores[1], body).then(in_system, stores[0], contexts.close)
    sequence.run()
    assert counted == [[6], [4], [0]]


def test_what_was_set_when_it_connected_stays(stores: list[UUID], process_id: int) -> None:
    """By Django's own OPTIONS and by other receivers of its signal, and psycopg keeps its prepared statements."""

    def set_on_connect(connection: Any, **_: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = '31s'; SET search_path = pg_catalog, public; SET work_mem = '5MB'")

    def repeat() -> None:
        for _ in range(3):
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM store WHERE name <> %s", ["x"])

    options = connections.settings["default"]["OPTIONS"]
    original = dict(options)
    options.update(assume_role="worker_runtime", prepare_threshold=1, server_side_binding=True)
    connection_created.connect(set_on_connect)
    dirt = ("SET ROLE NONE", "SET statement_timeout = 0", "SET search_path TO nowhere", "RESET ALL")
    try:
        sequence = Sequence(process_id).then(in_system, stores[0], repeat).note(in_system, stores[0])
        for kind in KINDS:
            sequence.then(kind, stores[1], repeat)
            sequence.then(kind, stores[1], partial(execute, *dirt, "PREPARE x AS SELECT 1"))
            sequence.note(in_system, stores[0]).then(in_system, stores[0], repeat)
        before, *after = sequence.run()
    finally:
        connection_created.disconnect(set_on_connect)
        options.clear()
        options.update(original)
    assert before[SETTINGS] == ["worker_runtime", "pg_catalog, public", "on", "31s"]
    assert [each[:PREPARED] for each in after] == [before[:PREPARED]] * len(KINDS)
    assert_all_succeeded()


def test_what_the_project_holds_since_it_connected_stays(stores: list[UUID], process_id: int) -> None:
    """Channels, prepared statements and advisory locks; those of a job go, however often it took a lock."""

    def hold(connection: Any, **_: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute('LISTEN "Of ours"; PREPARE "of\'ours" AS SELECT 1')
            cursor.execute("SELECT pg_advisory_lock_shared(-5), pg_advisory_lock_shared(7, -8)")

    def held() -> list[object]:
        return [
            ask("SELECT array_agg(channel) FROM pg_listening_channels() channel"),
            ask("SELECT array_agg(name::text) FROM pg_prepared_statements"),
            ask(
                "SELECT array_agg((mode, classid::int, objid::int, objsubid)::text ORDER BY objsubid) FROM pg_locks"
                " WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
            ),
        ]

    def dirty() -> None:
        for _ in range(3):
            execute("SELECT pg_advisory_lock(6), pg_advisory_lock(7, 8), pg_advisory_lock_shared(6)")
        execute("LISTEN left_behind", "PREPARE left_behind AS SELECT 2")

    found: list[object] = []
    connection_created.connect(hold)
    try:
        sequence = Sequence(process_id)
        for kind in KINDS:
            sequence.then(kind, stores[1], dirty).then(kind, stores[0], lambda: found.append(held()))
        sequence.run()
    finally:
        connection_created.disconnect(hold)
    locks = ["(ShareLock,-1,-5,1)", "(ShareLock,7,-8,2)"]
    assert found == [[["Of ours"], ["of'ours"], locks]] * len(KINDS)
    assert_all_succeeded()


def test_a_superusers_session_that_connecting_gave_to_another_role_stays_with_it(
    stores: list[UUID], process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give(connection: Any, **_: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION AUTHORIZATION worker_runtime")

    for name in ("USER", "PASSWORD"):
        monkeypatch.setitem(connections.settings["default"], name, connections.settings["owner"][name])
    connection_created.connect(give)
    try:
        for kind in KINDS:
            before, after = around(process_id, kind, stores[1], lambda: execute("RESET SESSION AUTHORIZATION"))
            assert (after, after[6]) == (before, "worker_runtime")
    finally:
        connection_created.disconnect(give)


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
def test_a_connection_whose_psycopg_attributes_were_changed_is_discarded(
    stores: list[UUID],
    process_id: int,
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

    assert_replaced(*around(process_id, kind, stores[1], change_attributes))
    assert "connection_discarded database=default reason=attributes of the psycopg connection" in caplog.text
    assert_all_succeeded()


@every_kind
def test_a_connection_whose_reset_the_server_refuses_is_discarded(
    stores: list[UUID], process_id: int, caplog: pytest.LogCaptureFixture, kind: Kind
) -> None:
    def leave() -> None:
        execute(f"SET app.current_store_id = '{stores[1]}'")
        session = watched(connection.connection)
        assert session is not None
        session.reset = "SELECT 1/0"

    assert_replaced(*around(process_id, kind, stores[1], leave))
    assert "connection_discarded database=default reason=division by zero" in caplog.text
    assert_all_succeeded()


def test_a_connection_that_was_lost_in_a_job_is_replaced(stores: list[UUID], process_id: int) -> None:
    def lose() -> None:
        execute(f"SET app.current_store_id = '{stores[1]}'")
        change("SELECT pg_terminate_backend(%s, 10000)", connection.connection.info.backend_pid)

    assert_replaced(*around(process_id, in_system, stores[1], lose))


def test_a_callback_comes_before_the_reset(stores: list[UUID], process_id: int) -> None:
    unlocked: list[object] = []

    def unlock() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(4711), set_config('app.note', 'x', false)")
            unlocked.append(cursor.fetchone())

    def lock() -> None:
        execute("SELECT pg_advisory_lock(4711)")
        transaction.on_commit(unlock)

    before, after = around(process_id, in_store, stores[1], lock)
    assert (unlocked, after) == ([(True, "x")], before)


def test_a_trigger_that_fires_at_the_commit_leaves_nothing(stores: list[UUID], process_id: int) -> None:
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
        before, after = around(process_id, in_store, stores[1], lambda: execute("UPDATE store SET name = name"))
    finally:
        change("DROP FUNCTION at_the_commit CASCADE")
    assert (after, after[-1]) == (before, [])


def test_behind_a_pooler_only_what_it_carries_over_is_kept(stores: list[UUID]) -> None:
    """There the process that answers is not the one given to the connection when it was made."""
    connection.close()
    execute("SET statement_timeout = '31s'", "SET ROLE worker_runtime", "SET application_name = 'ours'")
    pid = connection.connection.info.backend_pid
    own = dict(converted(connection.connection, in_one_trip(connection, AS_CONNECTED.format(pid=pid))))
    shared = dict(converted(connection.connection, in_one_trip(connection, AS_CONNECTED.format(pid=pid + 1))))
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
    own = connection._connections["default"]  # type: ignore[attr-defined]
    own.inc_thread_sharing()
    in_thread(lambda: own.connection.execute("SET app.note = 'x'"))
    own.dec_thread_sharing()


def set_by_a_copy() -> None:
    copy_out = "COPY (SELECT set_config('app.note', 'x', false)) TO STDOUT"
    with connection.cursor() as cursor, cursor.cursor.copy(copy_out) as copy:
        assert list(copy)


BODIES: dict[str, Body] = {
    "leaves a stream half read": leave_a_stream_half_read,
    "leaves libpq's pipeline mode on": leave_a_pipeline,
    # What Django believes to be one transaction.
    "commits by hand": partial(execute, "COMMIT", "SET app.note = 'x'", "SET ROLE worker_runtime", "BEGIN"),
    "sets in savepoints": set_in_savepoints,
    "connects anew": connect_anew,
    "sets in a thread": set_in_a_thread,
    "sets by a copy": set_by_a_copy,
    # No list of statements would contain it.
    "sets in a block": partial(execute, "DO $$ BEGIN PERFORM set_config('app.note', 'x', false); END $$"),
    # Every later transaction would wait for a safe snapshot.
    "keeps it read-only": partial(
        execute,
        "SET default_transaction_isolation = serializable",
        "SET default_transaction_read_only = on",
        "SET default_transaction_deferrable = on",
        "SET standard_conforming_strings = off",
    ),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_whatever_the_job_did_to_its_connection(stores: list[UUID], process_id: int, body: Body) -> None:
    for kind in KINDS:
        before, after = around(process_id, kind, stores[1], body)
        assert (after[1:], after[-1]) == (before[1:], []), kind


def test_other_databases_that_the_job_used(stores: list[UUID], process_id: int) -> None:
    results: list[UUID] = []
    sequence = Sequence(process_id)
    sequence.then(in_system, stores[0], lambda: execute(f"SET app.current_store_id = '{stores[1]}'", using="web"))
    sequence.then(in_system, stores[0], lambda: results.extend(visible("web"))).run()
    assert results == []
    assert_all_succeeded()


def test_a_database_that_is_not_postgresql_is_left_alone(
    stores: list[UUID], process_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    results: list[object] = []
    opened: set[Any] = set()

    def query(statement: str) -> Any:
        cursor = connections["elsewhere"].cursor()
        opened.add(connections["elsewhere"].connection)
        return cursor.execute(statement)

    connections.settings["elsewhere"] = connections.configure_settings(
        {"default": {}, "elsewhere": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    )["elsewhere"]
    sequence = Sequence(process_id).then(in_system, stores[0], lambda: query("CREATE TABLE kept (id integer)"))
    sequence.then(in_store, stores[0], lambda: results.append(query("SELECT count(*) FROM kept").fetchone()))
    try:
        sequence.run()
    finally:
        del connections.settings["elsewhere"]
        for each in opened:
            each.close()  # Django never closes a database in memory
    assert results == [(0,)]
    assert "connection_discarded" not in caplog.text
    assert_all_succeeded()


@pytest.mark.parametrize("kind", [in_coroutine, in_system_coroutine])
@pytest.mark.parametrize("to_thread", [asyncio.to_thread, lambda work: sync_to_async(work, thread_sensitive=False)()])
def test_threads_of_the_event_loop_keep_nothing(
    stores: list[UUID], process_id: int, hooks: tasks.Hooks, kind: Kind, to_thread: Any
) -> None:
    states: list[Any] = []
    dirt = [
        text.format(store=stores[1], role="worker_runtime")
        for statement in ("SET of the store", "SET ROLE", "an advisory lock")
        for text in STATEMENTS[statement]
    ]
    works = iter([lambda: states.append(state()), partial(execute, *dirt), lambda: states.append(state())])
    for _ in range(3):
        kind(stores[1], lambda: None)
    hooks.coroutine = lambda **_: to_thread(next(works))
    run_claimed(process_id, 3)
    before, after = states
    assert (after[1:], after[-1]) == (before[1:], [])
    assert_all_succeeded()
