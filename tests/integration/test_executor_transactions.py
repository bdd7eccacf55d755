"""Shows that effects and "done" commit together, as the real worker role, whatever a handler does meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import DatabaseError, close_old_connections, connection, transaction

from project.salon.models import Customer
from salon_jobs import current_job, current_store_id
from salon_jobs.core.errors import LeaseLost
from salon_jobs.core.outcomes import Errored, Lost, Outcome, Succeeded
from salon_jobs.jobs import store
from salon_jobs.jobs.current import RunningJob
from salon_jobs.jobs.executor import execute, settle
from salon_jobs.models import Process
from salon_jobs.runtime.connections import tidy_connections
from tests import tasks
from tests.support import change, claim, job_row, run, run_due, seen


def write(name: str = "effect") -> None:
    """Add a row of the current store, as the worker role under row-level security."""
    Customer.objects.create(id=uuid4(), store_id=current_store_id(), name=name, email="a@example.com")


def written() -> list[str]:
    return [row[0] for row in seen("SELECT name FROM customer ORDER BY name")]


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.event for record in caplog.records if hasattr(record, "event")]


def run_in_store(process_id: int, stores: list[UUID], hooks: tasks.Hooks, body: Callable[..., Any]) -> Outcome:
    """Enqueue one store job with this body and run it; the connection is tidied as a runner does."""
    hooks.store = body
    tasks.in_store.enqueue(store_id=stores[0])
    [outcome] = run_due(process_id)
    tidy_connections()
    return outcome


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
        seen_inside.append(seen("SELECT rolname FROM pg_roles r JOIN pg_stat_activity a ON a.usesysid = r.oid"
                                " WHERE a.pid = %s", connection.connection.info.backend_pid))  # fmt: skip

    assert run_in_store(process_id, stores, hooks, body) == Succeeded(finished=True)
    assert seen_inside == [([], [("running",)]), [("worker_runtime",)]]
    assert (written(), seen("SELECT count(*) FROM salon_jobs_job")) == (["effect"], [(0,)])


@pytest.mark.parametrize("kept", [False, True])
def test_a_lost_lease_rolls_the_effects_back(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, caplog: pytest.LogCaptureFixture, settings: Any, kept: bool
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "KEEP_SUCCEEDED": kept}

    def body(**_: object) -> None:
        write()
        change("UPDATE salon_jobs_job SET lease = lease + 1")

    assert run_in_store(process_id, stores, hooks, body) == Lost()
    assert written() == []
    assert seen("SELECT state, attempts FROM salon_jobs_job") == [("running", 0)]
    assert events(caplog) == ["job_lease_lost"]


def test_a_zombie_finisher_does_nothing_and_the_effects_happen_once(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int
) -> None:
    hooks.store = lambda **_: write()
    tasks.in_store.enqueue(store_id=stores[0])
    [first] = claim(process_id)
    change("DELETE FROM salon_jobs_process WHERE id = %s", process_id)
    [rescued] = store.rescue(process_id, "went silent")
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
    change("SELECT pg_terminate_backend(%s, 5000)", connection.connection.info.backend_pid)
    write()


def leave_a_block_open(**_: object) -> None:
    transaction.atomic().__enter__()
    write()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (swallow_without_savepoint, "JOB.TRANSACTION_BROKEN"),
        (ask_for_rollback, "JOB.TRANSACTION_BROKEN"),
        (swallow_a_database_error, "JOB.TRANSACTION_BROKEN"),
        (close_the_connection, "JOB.TRANSACTION_BROKEN"),
        (close_old, "JOB.TRANSACTION_BROKEN"),
        (be_durable, "RuntimeError"),
        (lose_the_backend, "OperationalError"),
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


@pytest.mark.parametrize("declared", [tasks.in_store, tasks.outside])
def test_a_transaction_left_open_fails_the_job_and_not_the_next_one(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, declared: Any
) -> None:
    hooks.store = leave_a_block_open
    declared.enqueue(store_id=stores[0])
    [claimed] = claim(process_id)
    running = RunningJob(claimed, process_id)
    outcome = execute(running)
    assert error_of(outcome) == "JOB.TRANSACTION_BROKEN"
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
    assert [e for e in events(caplog) if e.startswith("job_")] == ["job_callback_failed", "job_succeeded"]
    assert seen("SELECT count(*) FROM salon_jobs_job_error") == [(0,)]


def test_an_error_after_the_commit_is_no_failure_of_a_finished_job(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int
) -> None:
    def body(**_: object) -> None:
        with transaction.atomic():
            write()
            current_job().finish()
        raise RuntimeError("too late to matter")

    hooks.store = body
    tasks.outside.enqueue(store_id=stores[0])
    [outcome] = run_due(process_id)
    assert isinstance(outcome, Succeeded)
    assert str(outcome.callback_error) == "too late to matter"
    assert (written(), seen("SELECT count(*) FROM salon_jobs_job_error")) == (["effect"], [(0,)])


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


def test_a_transaction_of_ones_own_gets_the_store_and_between_them_nothing_is_seen(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int
) -> None:
    observed: list[Any] = []

    def body(store_id: UUID, **_: object) -> None:
        observed.append(Customer.objects.count())
        with transaction.atomic():
            write("one")
            observed.append(Customer.objects.count())
        observed.append((Customer.objects.count(), written()))
        with transaction.atomic():
            observed.append(Customer.objects.count())
            write("two")
            current_job().finish()
            observed.append(seen("SELECT state FROM salon_jobs_job"))
        observed.append(seen("SELECT count(*) FROM salon_jobs_job"))

    hooks.store = body
    tasks.outside.enqueue(store_id=stores[1])
    [outcome] = run_due(process_id)
    assert isinstance(outcome, Succeeded)
    assert observed == [0, 1, (0, ["one"]), 1, [("running",)], [(0,)]]
    assert written() == ["one", "two"]


def test_a_finish_that_was_rolled_back_and_swallowed_still_finishes_once(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def body(**_: object) -> None:
        try:
            with transaction.atomic():
                write("rolled back")
                current_job().finish()
                raise ValueError
        except ValueError:
            pass

    for declared in (tasks.outside, tasks.in_store):
        caplog.clear()
        hooks.store = body
        handle = declared.enqueue(store_id=stores[0])
        [outcome] = run_due(process_id)
        assert isinstance(outcome, Succeeded)
        assert job_row(handle.id) is None
        assert [e for e in events(caplog) if e.startswith("job_")] == ["job_succeeded"]
        assert written() == []


@pytest.mark.parametrize("swallow", [False, True])
@pytest.mark.parametrize("declared", [tasks.outside, tasks.in_store])
def test_finishing_a_lost_job_raises_and_swallowing_that_saves_nothing(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, declared: Any, swallow: bool
) -> None:
    def body(**_: object) -> None:
        with transaction.atomic():
            write()
            change("UPDATE salon_jobs_job SET lease = lease + 1")
            try:
                current_job().finish()
            except LeaseLost:
                if not swallow or declared is tasks.outside:
                    raise

    hooks.store = body
    declared.enqueue(store_id=stores[0])
    assert run_due(process_id) == [Lost()]
    assert written() == []
    assert seen("SELECT state, attempts FROM salon_jobs_job") == [("running", 0)]
