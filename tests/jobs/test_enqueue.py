"""Shows what an enqueue does to the table, for store tasks and for system tasks (which go through the function)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import takewhile
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import psycopg
import pytest
from django.db import DataError, OperationalError, connection, connections, transaction
from django.db.backends.utils import CursorWrapper
from django.test.utils import CaptureQueriesContext
from psycopg.pq import TransactionStatus

from salon_jobs import enqueue_job, fan_out, flow
from salon_jobs.core.errors import OptionInvalid, PayloadInvalid, UnknownTask
from salon_jobs.db import notify
from salon_jobs.db.connections import plain_cursor
from salon_jobs.db.notify import MORE, WakeUps
from salon_jobs.jobs import EnqueueAction, JobHandle, enqueue
from salon_jobs.jobs.options import KeyMode
from salon_jobs.testing import assert_enqueued
from tests import tasks
from tests.jobs.interrupts import interrupted_while_waiting
from tests.jobs.rows import count, jobs
from tests.settings import url_for
from tests.support import change, claim, job_row, moved_to, new_store_id, row_of, run, seen
from tests.waiting import LIMIT_S

PATTERN = tasks.system.new_job(None, tasks.system.options)
LATER = datetime(2030, 1, 1, tzinfo=UTC)
MUCH_LATER = datetime(2031, 1, 1, tzinfo=UTC)


def test_insert_is_part_of_callers_transaction(stores: list[UUID]) -> None:
    with transaction.atomic():
        handle = tasks.in_store.enqueue(store_id=stores[0], number=7)
        assert job_row(handle.id) is None, "nobody else sees it before the commit"
        transaction.set_rollback(True)
    assert job_row(handle.id) is None
    handle = tasks.in_store.enqueue(store_id=stores[0], number=7)
    expected = {"store_id": stores[0], "payload": '{"number": 7}', "state": "queued", "attempts": 0, "max_attempts": 3}
    assert expected.items() <= row_of(handle.id).items()


Enqueue: TypeAlias = Callable[..., JobHandle]


@pytest.fixture(params=["store", "system"])
def enqueue_keyed(request: pytest.FixtureRequest, stores: list[UUID]) -> Enqueue:
    """Return an enqueue under one key, for a store and for none."""

    def add(mode: KeyMode, note: str, **options: Any) -> JobHandle:
        if request.param == "store":
            bound = tasks.keyed.using(job_key="same", job_key_mode=mode, **options)
            return bound.enqueue(store_id=stores[0], number=1, note=note)
        return tasks.keyed_system.using(job_key="same", job_key_mode=mode, **options).enqueue(note=note)

    return add


@pytest.mark.parametrize(
    ("mode", "action", "row"),
    [
        ("replace", EnqueueAction.REPLACED, ("b", MUCH_LATER, 5, 0)),
        ("preserve_run_at", EnqueueAction.KEPT, ("b", LATER, 5, 2)),
        ("unsafe_dedupe", EnqueueAction.KEPT, ("a", LATER, 0, 2)),
    ],
)
def test_mode_decides_about_waiting_job(
    enqueue_keyed: Enqueue, mode: KeyMode, action: EnqueueAction, row: tuple[Any, ...]
) -> None:
    """No id is spent on it."""
    first = enqueue_keyed(mode, "a", run_at=LATER)
    change("UPDATE salon_jobs_job SET attempts = 2")
    assert first.action is EnqueueAction.INSERTED
    assert enqueue_keyed(mode, "b", run_at=MUCH_LATER, priority=5) == JobHandle(first.id, action)
    assert jobs("payload->>'note', run_at, priority, attempts") == [row]
    assert tasks.system.enqueue().id == first.id + 1


@pytest.mark.parametrize("state", ["running", "failed", "cancelled"])
@pytest.mark.parametrize("mode", ["replace", "preserve_run_at", "unsafe_dedupe"])
def test_begun_job_is_left_alone(enqueue_keyed: Enqueue, process_id: int, mode: KeyMode, state: str) -> None:
    first = enqueue_keyed(mode, "a")
    claim(process_id)
    change(f"UPDATE salon_jobs_job SET {moved_to(state)}" if state != "running" else "SELECT")
    before = row_of(first.id)
    second = enqueue_keyed(mode, "b", priority=9)
    if state != "running":
        assert second.action is EnqueueAction.INSERTED
    elif mode == "unsafe_dedupe":
        assert second == JobHandle(first.id, EnqueueAction.KEPT)
    else:
        assert second.action is EnqueueAction.SUPERSEDED_RUNNING
    assert row_of(first.id) == before


def test_options_reach_the_row(stores: list[UUID]) -> None:
    options: dict[str, Any] = {"queue": "mail", "priority": -5, "max_attempts": 2, "run_at": LATER}
    options["expires_at"] = LATER + timedelta(days=1)
    row = row_of(tasks.in_store.using(**options).enqueue(store_id=stores[0]).id)
    assert options.items() <= row.items()


@pytest.mark.parametrize(("option", "column"), [("run_in", "run_at"), ("expires_in", "expires_at")])
def test_time_from_now_counts_from_statement(stores: list[UUID], option: Any, column: str) -> None:
    """It is added by the database, by its clock; a replacement counts anew."""
    hour = timedelta(hours=1)
    options: dict[str, Any] = {option: hour}
    in_store, keyed = tasks.in_store.using(**options), tasks.keyed.using(**options, job_key_mode="replace")
    keyed.enqueue(store_id=stores[0], number=1)
    with transaction.atomic():
        [(before,)] = seen("SELECT clock_timestamp()")
        in_store.enqueue(store_id=stores[0])
        tasks.system.using(**options).enqueue()
        assert keyed.enqueue(store_id=stores[0], number=1).action == "replaced"
        in_store.enqueue_many(tasks.in_store.call(store_id=stores[0], number=n) for n in range(2))
        tasks.system.using(**options, unique_for=hour).enqueue(note="unique")
        enqueue_job("test-system", {}, **options)
        fan_out(in_store)
        with flow("later") as members:
            members.add(tasks.system.call(), **options)
        [(after,)] = seen("SELECT clock_timestamp()")
    instants = [instant for (instant,) in jobs(column)]
    assert len(instants) == 11
    assert all(before + hour <= instant <= after + hour for instant in instants)
    pattern = tasks.in_store.new_job(None, in_store.options)
    assert (getattr(pattern, column), getattr(pattern, option)) == (None, hour), "the sum is left to the database"


def test_commit_of_due_jobs_wakes_once(database: None) -> None:
    with transaction.atomic():
        for later in (tasks.system.using(run_in=timedelta(minutes=1)), tasks.system.using(run_at=LATER)):
            later.enqueue()
        assert connection.run_on_commit == []
        for _ in range(3):
            tasks.system.using(run_in=timedelta(0)).enqueue()
            tasks.system.enqueue()
        assert len(connection.run_on_commit) == 1


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({}, "store_id"),
        ({"store_id": str(new_store_id()), "number": "x"}, r"Expected `int`, got `str` - at `\$\.number`"),
        ({"store_id": str(new_store_id()), "extra": 1}, "extra"),
        ([], "must be a dict"),
    ],
)
def test_wrong_payload_is_refused_with_path(database: None, payload: Any, expected: str) -> None:
    with pytest.raises(PayloadInvalid, match=expected) as caught:
        enqueue_job("test-store", payload)
    assert caught.value.code == "JOB.PAYLOAD_INVALID"
    assert count() == 0


def test_misspelt_argument_names_the_right_one(stores: list[UUID]) -> None:
    store = stores[0]
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: tasks.system.enqueue(m="x"), "no argument 'm'; did you mean 'note'?"),  # type: ignore[call-arg]
        (lambda: tasks.in_store.call(store_id=store, nmber=1), "no argument 'nmber'; did you mean 'number'?"),  # type: ignore[call-arg]
        (lambda: enqueue_job("test-keyed", {"store_id": store, "x": 1}), "no argument 'x'; choose one of note, number"),
        (lambda: fan_out(tasks.in_store, numbr=7), "no argument 'numbr'; did you mean 'number'?"),
        (lambda: assert_enqueued(tasks.in_store, numbr=7), "no argument 'numbr'; did you mean 'number'?"),
        (lambda: tasks.system.enqueue(countdown=3), "no argument 'countdown'; use using(run_in=timedelta(…))"),  # type: ignore[call-arg]
        (lambda: tasks.system.enqueue(task_id="x"), "no argument 'task_id'; use job_key='…', of which one job waits"),  # type: ignore[call-arg]
        (lambda: tasks.system.enqueue(run_at=LATER), "no argument 'run_at'; it is an option: using(run_at=…)"),  # type: ignore[call-arg]
    ]
    for call, message in wrong:
        with pytest.raises(PayloadInvalid, match=re.escape(message)):
            call()


def test_methods_of_other_libraries_name_ours() -> None:
    task: Any = tasks.system
    others = {"delay": "enqueue(…)", "apply_async": "using(…).enqueue(…)", "retry": "raise Retry(", "map": "enqueue_"}
    others |= {"subtask": "call(…)", "chunks": "enqueue_many(…)", "update_state": "current_job().progress("}
    for method, ours in others.items():
        for enqueueable in (task, task.using()):
            with pytest.raises(AttributeError, match=re.escape(f"has no attribute {method!r}; use {ours}")):
                getattr(enqueueable, method)
    with pytest.raises(AttributeError, match=r"'Task' object has no attribute 'nonsense'$"):
        task.nonsense  # noqa: B018
    assert not hasattr(task, "delay")


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"prioritty": 1}, "no option 'prioritty'; did you mean 'priority'?"),
    ({"timeout": 1}, "no option 'timeout' of one enqueue; declare the task with it"),
    ({"run_at": datetime(2026, 1, 1)}, "run_at must be an aware datetime"),  # noqa: DTZ001 - the point
    ({"run_in": 300}, "run_in must be a timedelta from zero to 36,500 days, not 300"),
    ({"run_in": timedelta(seconds=-1)}, "run_in must be a timedelta from zero to 36,500 days, not datetime.timedelta"),
    ({"run_in": timedelta(0), "run_at": LATER}, "run_in and run_at both say when the job is due: pass one of them"),
    ({"expires_in": 300}, "expires_in must be a timedelta from zero to 36,500 days, not 300"),
    (
        {"expires_in": timedelta(0), "expires_at": LATER},
        "expires_in and expires_at both say when the job expires: pass one of them",
    ),
    ({"expires": 60}, "no option 'expires'; use using(expires_in=timedelta(…)) or using(expires_at=…)"),
    ({"keep_result": timedelta(-1)}, "keep_result must be a timedelta from zero"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS)
def test_bad_option_is_named(options: dict[str, Any], message: str) -> None:
    for call in (tasks.system.using, partial(enqueue_job, "test-system", {})):
        with pytest.raises(OptionInvalid, match=re.escape(message)):
            call(**options)


@pytest.mark.parametrize(("given", "remedy"), [(2.5, "; write timedelta(seconds=2.5)"), (10**12, ""), (-1, "")])
def test_number_is_taken_for_seconds(given: float, remedy: str) -> None:
    """In the remedy, if that would be accepted."""
    with pytest.raises(OptionInvalid, match=re.escape(f"not {given}{remedy}") + "$"):
        tasks.system.using(run_in=given)  # type: ignore[arg-type]


def test_wrong_task_is_named(stores: list[UUID]) -> None:
    with pytest.raises(UnknownTask, match="did you mean 'test-store'"):
        enqueue_job("test-stor", {})
    with pytest.raises(PayloadInvalid, match=r"a call of .test-keyed"):
        tasks.in_store.enqueue_many([tasks.keyed.call(store_id=stores[0], number=1)])  # type: ignore[list-item]


def test_nul_character_spares_the_transaction(database: None) -> None:
    with transaction.atomic():
        with pytest.raises(PayloadInvalid, match="NUL"):
            tasks.system.enqueue(note="a\0b")
        tasks.system.enqueue(note="a\\u0000b is six harmless characters")
    assert count() == 1


def test_arguments_are_converted_by_signature(hooks: tasks.Hooks, process_id: int) -> None:
    got: dict[str, object] = {}
    hooks.system = lambda **arguments: got.update(arguments)
    at = datetime.fromisoformat("2026-05-06T03:00:00+09:00")
    enqueue_job("test-typed", {"day": "2026-05-05", "at": at, "amount": "12.50", "tags": ["a"]})
    [job] = claim(process_id)
    assert '"at": "2026-05-05T18:00:00Z"' in job.payload
    run(job, process_id)
    day = at.date() - timedelta(days=1)
    assert got == {"day": day, "at": at, "amount": Decimal("12.50"), "tags": ["a"], "ref": None}


def test_failed_wake_up_is_logged(database: None, caplog: pytest.LogCaptureFixture) -> None:
    enqueue.wake_ups.reset()
    with transaction.atomic():
        handle = tasks.system.enqueue()
        transaction.on_commit(lambda: None)
        pid = connection.connection.info.backend_pid
        # Runs first, so the wake-up finds its backend gone after the commit.
        hook = (set[str](), lambda: change("SELECT pg_terminate_backend(%s, 5000)", pid), True)
        connection.run_on_commit.insert(0, hook)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert "WakeUp" in caplog.text
    connection.close()
    assert job_row(handle.id) is not None


Announced: TypeAlias = Callable[[], list[str]]


@pytest.fixture
def announced(database: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Announced]:
    """Return what tells the wake-ups since the last time; each commit sends one."""
    enqueue.wake_ups.reset()
    monkeypatch.setattr(WakeUps, "record_commit", lambda _: "")
    channel = enqueue.wake_ups.channel
    with psycopg.connect(url_for("app"), autocommit=True) as other:
        other.execute(f"LISTEN {channel}".encode())

        def heard() -> list[str]:
            change("SELECT pg_notify(%s, 'last')", channel)
            payloads = (each.payload for each in other.notifies(timeout=LIMIT_S))
            return list(takewhile(lambda payload: payload != "last", payloads))

        yield heard


def is_idle() -> bool:
    return bool(connection.connection.info.transaction_status == TransactionStatus.IDLE)


def test_commit_and_wake_up_are_one_round_trip(announced: Announced) -> None:
    tasks.system.enqueue(note="100 % 'certain' ; é")
    public = enqueue.add(replace(PATTERN, public_id=uuid4()), using="default")
    tasks.system.using(run_in=timedelta(hours=1)).enqueue()
    assert announced() == ["", ""], "none for what is due later"
    assert jobs("payload ->> 'note'")[0] == ("100 % 'certain' ; é",)
    assert public.created_at is not None
    assert public.created_at.tzinfo is not None
    assert is_idle()


def test_failed_wake_up_in_round_trip_is_logged(
    announced: Announced, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    too_long = "x" * 9000  # the server allows 8000
    monkeypatch.setattr(enqueue.wake_ups, "channel", f"{enqueue.wake_ups.channel}, '{too_long}'")
    handle = tasks.system.enqueue()
    assert "a wake-up was not sent: payload string too long" in caplog.text
    assert job_row(handle.id) is not None
    assert is_idle()


@pytest.mark.parametrize("name", ["cursor", "_cursor", "create_cursor", "_prepare_cursor", "make_cursor"])
def test_replaced_cursor_sees_the_statement(announced: Announced, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    made: list[CursorWrapper] = []
    make = getattr(connection, name)

    def watched(*arguments: Any) -> CursorWrapper:
        made.append(make(*arguments))
        return made[-1]

    tasks.system.enqueue()
    with monkeypatch.context() as patched:
        patched.setattr(connection, name, watched)
        tasks.system.enqueue()
    assert (len(made), count()) == (1, 2)


def test_terminated_connection_is_replaced(announced: Announced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "CONN_HEALTH_CHECKS", True)
    connection.close()
    tasks.system.enqueue()
    change("SELECT pg_terminate_backend(%s, 5000)", connection.connection.info.backend_pid)
    monkeypatch.setattr(connections["default"], "health_check_done", False)  # as at the start of a request
    tasks.system.enqueue()
    assert count() == 2


@pytest.mark.parametrize("used", [True, False])
def test_closed_connection_is_an_error(announced: Announced, request: pytest.FixtureRequest, used: bool) -> None:
    request.addfinalizer(connection.close)
    connection.close()
    connection.ensure_connection()
    if used:
        tasks.system.enqueue()
    connection.connection.close()
    with pytest.raises(OperationalError, match="closed"):
        tasks.system.enqueue()


def test_first_of_many_commits_announces_more(announced: Announced, monkeypatch: pytest.MonkeyPatch) -> None:
    news = iter(["", MORE])
    monkeypatch.setattr(WakeUps, "record_commit", lambda _: next(news))
    for _ in range(2):
        tasks.system.enqueue()
    assert announced() == ["", "", MORE]


def test_refused_insert_leaves_no_transaction_open(announced: Announced) -> None:
    with pytest.raises(DataError, match="out of range"):
        enqueue.add(replace(PATTERN, priority=100_000), using="default")
    assert is_idle()
    assert announced() == []
    tasks.system.enqueue()
    assert count() == 1


def test_signal_handler_interrupts_round_trip(announced: Announced, request: pytest.FixtureRequest) -> None:
    def give_up(*_: object) -> None:
        raise TimeoutError

    connection.ensure_connection()
    request.addfinalizer(connection.close)
    with psycopg.connect(url_for(None)) as other, interrupted_while_waiting(give_up):
        other.execute("LOCK TABLE salon_jobs_job")
        with pytest.raises(TimeoutError):
            tasks.system.enqueue()
        # Otherwise the server inserts the job once the table is free, perhaps during the next test. Behind a pooler the
        # connection does not know its server's process.
        # The copies of the database have the same numbers for their tables.
        change(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks JOIN pg_database d ON d.oid = database"
            " WHERE relation = 'salon_jobs_job'::regclass AND NOT granted AND datname = current_database()"
        )


def test_watchers_of_statements_see_plain_insert(announced: Announced) -> None:
    statements: list[str] = []

    def watch(execute: Any, sql: str, *arguments: Any) -> Any:
        statements.append(sql)
        return execute(sql, *arguments)

    with connection.execute_wrapper(watch):
        tasks.system.enqueue()
    with CaptureQueriesContext(connection) as log:
        tasks.system.enqueue()
    assert len(statements) == len(log) == 1
    assert "BEGIN" not in statements[0]
    assert announced() == [""] * 2


def test_server_side_binding(
    announced: Announced, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The insert runs by itself, without the commit and the wake-up."""
    options = {**connection.settings_dict["OPTIONS"], "server_side_binding": True}
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    connection.close()
    request.addfinalizer(connection.close)
    handle = tasks.system.enqueue(note="100 % 'certain'")
    assert not isinstance(plain_cursor(connections["default"]), psycopg.ClientCursor)
    assert jobs("id, payload ->> 'note'") == [(handle.id, "100 % 'certain'")]
    assert announced() == [""]


def test_insert_runs_alone_while_commits_are_many(announced: Announced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue.wake_ups, "_gap_s", 0.001)
    monkeypatch.setattr(notify, "results_of", None)
    tasks.system.enqueue()
    assert (count(), announced()) == (1, [""])
