"""Tests that effects and "done" commit together, as the real worker role, whatever a handler does meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, close_old_connections, connection, transaction

from project.salon.models import Customer
from salon_jobs.core.outcomes import Errored, Lost, Outcome, Succeeded
from salon_jobs.models import Process
from salon_jobs.tenancy.connections import tidy_connections
from salon_jobs.worker.ends import settle
from salon_jobs.worker.executor import execute
from tests import tasks
from tests.support import change, claim, job_row, leases_of, run, run_due, running_job, seen
from tests.worker.effects import job_events, write, written


def run_in_store(process_id: int, stores: list[UUID], hooks: tasks.Hooks, body: Callable[..., Any]) -> Outcome:
    """Enqueue one store job with this body and run it; the connection is tidied as a runner does."""
    hooks.store = body
    tasks.in_store.enqueue(store_id=stores[0])
    [outcome] = run_due(process_id)
    tidy_connections()
    return outcome


def own_query(statement: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def error_of(outcome: Outcome) -> str:
    assert isinstance(outcome, Errored), outcome
    return getattr(outcome.error, "code", type(outcome.error).__name__)


def waits_for_a_retry() -> bool:
    return seen("SELECT state, attempts, leased_by FROM salon_jobs_job") == [("queued", 1, None)]


def test_effects_and_done_become_visible_together(stores: list[UUID], hooks: tasks.Hooks, process_id: int) -> None:
    seen_inside: list[Any] = []

    def body(**_: object) -> None:
        write()
        seen_inside.append((written(), seen("SELECT state FROM salon_jobs_job")))
        [(pid,)] = own_query("SELECT pg_backend_pid()")
        seen_inside.append(
            seen("SELECT rolname FROM pg_roles r JOIN pg_stat_activity a ON a.usesysid = r.oid WHERE a.pid = %s", pid)
        )

    assert run_in_store(process_id, stores, hooks, body) == Succeeded(finished=True)
    assert seen_inside == [([], [("running",)]), [("worker_runtime",)]]
    assert (written(), seen("SELECT count(*) FROM salon_jobs_job")) == (["effect"], [(0,)])


@pytest.mark.parametrize("kept", [False, True])
def test_a_lost_lease_rolls_the_effects_back(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, caplog: pytest.LogCaptureFixture, settings: Any, kept: bool
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": 60 * kept}

    def body(**_: object) -> None:
        write()
        change("UPDATE salon_jobs_job SET lease = lease + 1")

    assert run_in_store(process_id, stores, hooks, body) == Lost()
    assert written() == []
    assert seen("SELECT state, attempts FROM salon_jobs_job") == [("running", 0)]
    assert job_events(caplog) == ["job_lease_lost"]


def test_a_zombie_finisher_does_nothing_and_the_effects_happen_once(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int
) -> None:
    hooks.store = lambda **_: write()
    tasks.in_store.enqueue(store_id=stores[0])
    [first] = claim(process_id)
    change("DELETE FROM salon_jobs_process WHERE id = %s", process_id)
    [rescued] = leases_of(process_id).rescue("went silent")
    assert rescued.id == first.id
    second_process = Process.objects.create(kind="worker", hostname="test", pid=2).pk
    [second] = claim(second_process)
    assert second.id == first.id
    assert run(first, process_id) == Lost()
    assert written() == []
    assert run(second, second_process) == Succeeded(finished=True)
    assert run(first, process_id) == Lost(), "the row is gone by now; that is not this run's doing"
    assert written() == ["effect"]


def test_a_swallowed_error_in_a_nested_atomic_is_fine(stores: list[UUID], hooks: tasks.Hooks, process_id: int) -> None:
    def body(**_: object) -> None:
        write("kept")
        try:
            with transaction.atomic():
                write("dropped")
                connection.cursor().execute("SELECT 1/0")
        except DatabaseError:
            pass

    assert run_in_store(process_id, stores, hooks, body) == Succeeded(finished=True)
    assert written() == ["kept"]


def swallow_without_savepoint(**_: object) -> None:
    write()
    try:
        with transaction.atomic(savepoint=False):
            raise ValueError
    except ValueError:
        pass


def ask_for_rollback(**_: object) -> None:
    write()
    transaction.set_rollback(True)


def swallow_a_database_error(**_: object) -> None:
    write()
    with suppress(DatabaseError):
        connection.cursor().execute("SELECT 1/0")


def close_the_connection(**_: object) -> None:
    write()
    connection.close()


def close_old(**_: object) -> None:
    write()
    close_old_connections()


def be_durable(**_: object) -> None:
    write()
    with transaction.atomic(durable=True):
        pass


def lose_the_backend(**_: object) -> None:
    write()
    [(pid,)] = own_query("SELECT pg_backend_pid()")
    change("SELECT pg_terminate_backend(%s, 5000)", pid)
    write()


def exceed_statement_timeout(**_: object) -> None:
    write()
    own_query("SELECT set_config('statement_timeout', '10ms', true)")
    own_query("SELECT pg_sleep(10)")


def leave_a_block_open(**_: object) -> None:
    transaction.atomic().__enter__()
    write()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (swallow_without_savepoint, "DATABASE.TRANSACTION_BROKEN"),
        (ask_for_rollback, "DATABASE.TRANSACTION_BROKEN"),
        (swallow_a_database_error, "DATABASE.TRANSACTION_BROKEN"),
        (close_the_connection, "DATABASE.TRANSACTION_BROKEN"),
        (close_old, "DATABASE.TRANSACTION_BROKEN"),
        (be_durable, "RuntimeError"),
        (lose_the_backend, "OperationalError"),
        (exceed_statement_timeout, "OperationalError"),
    ],
)
def test_a_broken_transaction_never_looks_like_success(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, body: Callable[..., Any], expected: str
) -> None:
    assert error_of(run_in_store(process_id, stores, hooks, body)) == expected
    assert written() == []
    assert waits_for_a_retry()
    # The next job on this connection is none the worse for it.
    change("DELETE FROM salon_jobs_job")
    assert run_in_store(process_id, stores, hooks, lambda **_: write()) == Succeeded(finished=True)


def test_a_literal_begin_left_open_fails_the_job_and_not_the_next_one(
    database: None, hooks: tasks.Hooks, process_id: int
) -> None:
    def body(**_: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT pg_current_xact_id()")

    hooks.system = body
    tasks.system.enqueue()
    [claimed] = claim(process_id)
    running = running_job(claimed, process_id)
    outcome = execute(running)
    assert error_of(outcome) == "DATABASE.TRANSACTION_BROKEN"
    tidy_connections()
    settle(running, outcome)
    assert waits_for_a_retry()
    change("DELETE FROM salon_jobs_job")
    hooks.reset()
    handle = tasks.system.enqueue()
    assert job_row(handle.id) is not None, "the enqueue is committed"


def test_a_connection_that_the_server_ended_meanwhile_is_replaced_before_the_next_job(
    database: None, hooks: tasks.Hooks, process_id: int
) -> None:
    tasks.system.enqueue()
    [claimed] = claim(process_id)
    [(pid,)] = own_query("SELECT pg_backend_pid()")
    change("SELECT pg_terminate_backend(%s, 10000)", pid)
    tidy_connections()
    hooks.system = lambda **_: own_query("SELECT 1")
    assert execute(running_job(claimed, process_id)) == Succeeded(finished=False)


@pytest.mark.parametrize("declared", [tasks.in_store, tasks.outside])
def test_a_transaction_left_open_fails_the_job_and_not_the_next_one(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, declared: Any
) -> None:
    hooks.store = leave_a_block_open
    declared.enqueue(store_id=stores[0])
    [claimed] = claim(process_id)
    running = running_job(claimed, process_id)
    outcome = execute(running)
    assert error_of(outcome) == "DATABASE.TRANSACTION_BROKEN"
    tidy_connections()
    settle(running, outcome)
    assert written() == []
    assert waits_for_a_retry()
    change("DELETE FROM salon_jobs_job")
    assert run_in_store(process_id, stores, hooks, lambda **_: write()) == Succeeded(finished=True)


def test_an_error_of_an_on_commit_callback_is_logged_and_the_job_has_succeeded(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    def body(**_: object) -> None:
        write()
        transaction.on_commit(lambda: 1 / 0)

    caplog.set_level("INFO")
    outcome = run_in_store(process_id, stores, hooks, body)
    assert isinstance(outcome, Succeeded)
    assert isinstance(outcome.callback_error, ZeroDivisionError)
    assert (written(), seen("SELECT count(*) FROM salon_jobs_job")) == (["effect"], [(0,)])
    assert job_events(caplog) == ["job_callback_failed", "job_succeeded"]
    assert seen("SELECT count(*) FROM salon_jobs_job_error") == [(0,)]


def test_an_on_commit_callback_sees_its_stores_rows_and_no_others(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int
) -> None:
    for store_id in stores:
        change("INSERT INTO customer (id, store_id, name, email) VALUES (gen_random_uuid(), %s, 'c', 'e')", store_id)
    visible: list[UUID] = []

    def body(**_: object) -> None:
        transaction.on_commit(lambda: visible.extend(Customer.objects.values_list("store_id", flat=True)))

    run_in_store(process_id, stores, hooks, body)
    assert visible == [stores[0]]
