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
from salon_jobs.tenancy.connections import tidy_connections
from salon_jobs.worker.ends import settle
from salon_jobs.worker.executor import execute
from tests import tasks
from tests.support import change, claim, run_due, running_job, seen
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
    inside: list[Any] = []

    def body(**_: object) -> None:
        write()
        inside.extend((written(), seen("SELECT state FROM salon_jobs_job"), own_query("SELECT current_user")))

    assert run_in_store(process_id, stores, hooks, body) == Succeeded(finished=True)
    assert inside == [[], [("running",)], [("worker_runtime",)]]
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


def swallow_without_savepoint() -> None:
    with suppress(ValueError), transaction.atomic(savepoint=False):
        raise ValueError


def swallow_a_database_error() -> None:
    with suppress(DatabaseError):
        own_query("SELECT 1/0")


def close_the_connection() -> None:
    connection.close()


def be_durable() -> None:
    with transaction.atomic(durable=True):
        pass


def lose_the_backend() -> None:
    [(pid,)] = own_query("SELECT pg_backend_pid()")
    change("SELECT pg_terminate_backend(%s, 5000)", pid)
    write()


def exceed_statement_timeout() -> None:
    own_query("SELECT set_config('statement_timeout', '10ms', true)")
    own_query("SELECT pg_sleep(10)")


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (swallow_without_savepoint, "DATABASE.TRANSACTION_BROKEN"),
        (lambda: transaction.set_rollback(True), "DATABASE.TRANSACTION_BROKEN"),
        (swallow_a_database_error, "DATABASE.TRANSACTION_BROKEN"),
        (close_the_connection, "DATABASE.TRANSACTION_BROKEN"),
        (close_old_connections, "DATABASE.TRANSACTION_BROKEN"),
        (be_durable, "RuntimeError"),
        (lose_the_backend, "OperationalError"),
        (exceed_statement_timeout, "OperationalError"),
    ],
)
def test_a_broken_transaction_never_looks_like_success(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, harm: Callable[[], object], expected: str
) -> None:
    def body(**_: object) -> None:
        write()
        harm()

    assert error_of(run_in_store(process_id, stores, hooks, body)) == expected
    assert written() == []
    assert waits_for_a_retry()
    # The next job on this connection is none the worse for it.
    change("DELETE FROM salon_jobs_job")
    assert run_in_store(process_id, stores, hooks, lambda **_: write()) == Succeeded(finished=True)


@pytest.mark.parametrize(
    ("declared", "begin"),
    [
        (tasks.in_store, lambda: transaction.atomic().__enter__()),
        (tasks.outside, lambda: transaction.atomic().__enter__()),
        (tasks.outside, lambda: connection.cursor().execute("BEGIN")),
    ],
    ids=["a block in one", "a block outside", "a literal BEGIN"],
)
def test_a_transaction_left_open_fails_the_job_and_not_the_next_one(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, declared: Any, begin: Callable[[], object]
) -> None:
    def body(**_: object) -> None:
        begin()
        own_query("SELECT pg_current_xact_id()")

    hooks.store = body
    declared.enqueue(store_id=stores[0])
    [claimed] = claim(process_id)
    running = running_job(claimed, process_id)
    outcome = execute(running)
    assert error_of(outcome) == "DATABASE.TRANSACTION_BROKEN"
    tidy_connections()
    settle(running, outcome)
    assert waits_for_a_retry()
    change("DELETE FROM salon_jobs_job")
    assert run_in_store(process_id, stores, hooks, lambda **_: write()) == Succeeded(finished=True)
    assert written() == ["effect"]


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
