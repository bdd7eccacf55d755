"""Effects and "done" commit together, as the real worker role, whatever a handler does meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, close_old_connections, connection, transaction
from psycopg import IsolationLevel

from project.salon.models import Customer
from salon_jobs import current_job
from salon_jobs.core.errors import LeaseLost, TenantContextError
from salon_jobs.core.outcomes import Errored, Lost, Outcome, Succeeded
from salon_jobs.db.statements import in_one_trip
from salon_jobs.db.upkeep import tidy_connections
from salon_jobs.tenancy import guc
from salon_jobs.tenancy.context import StoreJobContext
from salon_jobs.worker.ends import settle
from salon_jobs.worker.executor import execute
from tests import tasks
from tests.support import change, running_job, seen
from tests.worker.effects import write, written
from tests.worker.work import Work, errors, rows

DONE = Succeeded(finished=True)
RETRIED = [("queued", 1, None)]
BROKEN = "DATABASE.TRANSACTION_BROKEN"


def run(work: Work, body: Callable[..., Any]) -> Outcome:
    """Run one store job with this body; the connection is tidied as a runner does."""
    outcome = work.run(body)
    tidy_connections()
    return outcome


def own_query(statement: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def end_own_backend() -> None:
    change("SELECT pg_terminate_backend(%s, 10000)", own_query("SELECT pg_backend_pid()")[0][0])


def error_of(outcome: Outcome) -> str:
    assert isinstance(outcome, Errored), outcome
    return getattr(outcome.error, "code", type(outcome.error).__name__)


# In one transaction of ours


def test_effects_and_done_become_visible_together(work: Work) -> None:
    inside: list[Any] = []

    def body(**_: object) -> None:
        write()
        inside.extend((written(), seen("SELECT state FROM salon_jobs_job"), own_query("SELECT current_user")))

    assert run(work, body) == DONE
    assert inside == [[], [("running",)], [("worker_runtime",)]]
    assert (written(), rows()) == (["effect"], [])


@pytest.mark.parametrize("kept", [False, True])
def test_lost_lease_rolls_back_effects(work: Work, settings: Any, kept: bool) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": 60 * kept}

    def body(**_: object) -> None:
        write()
        change("UPDATE salon_jobs_job SET lease = lease + 1")

    assert run(work, body) == Lost()
    assert (written(), rows()) == ([], [("running", 0, work.process_id)])
    assert work.events == ["job_lease_lost"]


def test_error_swallowed_in_savepoint(work: Work) -> None:
    def body(**_: object) -> None:
        write("kept")
        with suppress(DatabaseError), transaction.atomic():
            write("dropped")
            connection.cursor().execute("SELECT 1/0")

    assert run(work, body) == DONE
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
    end_own_backend()
    write()


def exceed_statement_timeout() -> None:
    own_query("SELECT set_config('statement_timeout', '10ms', true)")
    own_query("SELECT pg_sleep(600)")


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (swallow_without_savepoint, BROKEN),
        (lambda: transaction.set_rollback(True), BROKEN),
        (swallow_a_database_error, BROKEN),
        (close_the_connection, BROKEN),
        (close_old_connections, BROKEN),
        (be_durable, "RuntimeError"),
        (lose_the_backend, "OperationalError"),
        (exceed_statement_timeout, "OperationalError"),
    ],
)
def test_broken_transaction_is_no_success(work: Work, harm: Callable[[], object], expected: str) -> None:
    """The next job on this connection is none the worse for it."""

    def body(**_: object) -> None:
        write()
        harm()

    assert error_of(run(work, body)) == expected
    assert (written(), rows()) == ([], RETRIED)
    change("DELETE FROM salon_jobs_job")
    assert run(work, lambda **_: write()) == DONE


@pytest.mark.parametrize(
    ("declared", "begin"),
    [
        (tasks.in_store, lambda: transaction.atomic().__enter__()),
        (tasks.outside, lambda: transaction.atomic().__enter__()),
        (tasks.outside, lambda: connection.cursor().execute("BEGIN")),
    ],
    ids=["a block in one", "a block outside", "a literal BEGIN"],
)
def test_open_transaction_fails_job_alone(work: Work, declared: Any, begin: Callable[[], object]) -> None:
    def body(**_: object) -> None:
        begin()
        own_query("SELECT pg_current_xact_id()")

    running = running_job(work.claim_one(body, declared), work.process_id)
    outcome = execute(running)
    assert error_of(outcome) == BROKEN
    tidy_connections()
    settle(running, outcome)
    assert rows() == RETRIED
    change("DELETE FROM salon_jobs_job")
    assert run(work, lambda **_: write()) == DONE
    assert written() == ["effect"]


def test_lost_connection_is_replaced_before_job(work: Work) -> None:
    job = work.claim_one(lambda **_: own_query("SELECT 1"), tasks.system)
    end_own_backend()
    tidy_connections()
    assert execute(running_job(job, work.process_id)) == Succeeded(finished=False)


def test_failing_callback_after_success(work: Work) -> None:
    def body(**_: object) -> None:
        write()
        transaction.on_commit(lambda: 1 / 0)

    outcome = run(work, body)
    assert isinstance(outcome, Succeeded)
    assert isinstance(outcome.callback_error, ZeroDivisionError)
    assert (written(), rows(), errors()) == (["effect"], [], [])
    assert work.events == ["job_callback_failed", "job_succeeded"]


def test_callback_sees_rows_of_its_store(work: Work) -> None:
    for store_id in work.stores:
        change("INSERT INTO customer (id, store_id, name, email) VALUES (gen_random_uuid(), %s, 'c', 'e')", store_id)
    visible: list[UUID] = []

    def body(**_: object) -> None:
        transaction.on_commit(lambda: visible.extend(Customer.objects.values_list("store_id", flat=True)))

    run(work, body)
    assert visible == work.stores[:1]


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_lost_connection_is_operational_error(database: None, known: bool) -> None:
    connection.ensure_connection()
    try:
        end_own_backend()
        for _ in range(2 if known else 1):
            with pytest.raises(OperationalError):
                in_one_trip(connection, "SELECT 1")
    finally:
        connection.close()


def test_isolation_of_options_is_kept(work: Work) -> None:
    connection.ensure_connection()
    raw: Any = connection.connection
    found: list[Any] = []

    def body(**_: object) -> None:
        found.extend(
            own_query("SELECT current_setting('transaction_isolation'), current_setting('app.current_store_id')")
        )
        write()

    raw.isolation_level = IsolationLevel.SERIALIZABLE
    try:
        assert run(work, body) == DONE
    finally:
        raw.isolation_level = None
    assert found == [("serializable", str(work.stores[0]))]
    assert written() == ["effect"]


def test_constraint_failing_at_commit(work: Work) -> None:
    """It fails the run, and the connection goes on."""
    called: list[str] = []

    def body(**_: object) -> None:
        write()
        transaction.on_commit(lambda: called.append("callback"))
        with connection.cursor() as cursor:
            note = "INSERT INTO customer_note (id, store_id, customer_id, body) VALUES (%s, %s, %s, '')"
            cursor.execute(note, [uuid4(), work.stores[0], uuid4()])

    outcome = work.run(body)
    assert isinstance(outcome, Errored)
    assert isinstance(outcome.error, IntegrityError)
    assert (written(), called, rows()) == ([], [], RETRIED)
    work.hooks.store = lambda **_: write("after")
    assert work.again() == DONE
    assert written() == ["after"]


def test_interrupt_after_commit(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed keeps its callbacks."""
    visible: list[str] = []

    def body(**_: object) -> None:
        write()
        transaction.on_commit(lambda: visible.extend(Customer.objects.values_list("name", flat=True)))

    original = StoreJobContext.commit_after

    def interrupted_after(own: StoreJobContext, statement: str) -> bool:
        original(own, statement)
        raise KeyboardInterrupt

    monkeypatch.setattr(StoreJobContext, "commit_after", interrupted_after)
    assert isinstance(work.run(body), Succeeded)
    assert (written(), visible, rows()) == (["effect"], ["effect"], [])


def test_only_key_becomes_literal(database: None) -> None:
    harmful: Any = "'); DROP TABLE customer; --"
    with transaction.atomic(), pytest.raises(TenantContextError, match="store_id must be"):
        guc.begin_as(connection, harmful, "true")


# In transactions of the handler's own


def test_store_in_own_transactions(work: Work) -> None:
    """Each of them has the store, and between them nothing is seen; the last one finishes the job."""
    observed: list[Any] = []

    def body(**_: object) -> None:
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
        observed.append(rows())

    assert isinstance(work.run(body, tasks.outside, store=1), Succeeded)
    assert observed == [0, 1, (0, ["one"]), 1, [("running",)], []]
    assert written() == ["one", "two"]


@pytest.mark.parametrize("declared", [tasks.outside, tasks.in_store])
def test_rolled_back_finish_finishes_once(work: Work, declared: Any) -> None:
    def body(**_: object) -> None:
        with suppress(ValueError), transaction.atomic():
            write("rolled back")
            current_job().finish()
            raise ValueError

    assert isinstance(work.run(body, declared), Succeeded)
    assert (rows(), work.events, written()) == ([], ["job_succeeded"], [])


@pytest.mark.parametrize("swallow", [False, True])
@pytest.mark.parametrize("declared", [tasks.outside, tasks.in_store])
def test_finish_of_lost_job(work: Work, declared: Any, swallow: bool) -> None:
    """It raises, and swallowing that saves nothing."""

    def body(**_: object) -> None:
        with transaction.atomic():
            write()
            change("UPDATE salon_jobs_job SET lease = lease + 1")
            try:
                current_job().finish()
            except LeaseLost:
                if not swallow or declared is tasks.outside:
                    raise

    assert work.run(body, declared) == Lost()
    assert (written(), rows()) == ([], [("running", 0, work.process_id)])


@pytest.mark.parametrize("declared", [tasks.outside, tasks.in_store])
def test_finish_twice_and_fail(work: Work, declared: Any) -> None:
    def body(**_: object) -> None:
        with transaction.atomic():
            write()
            current_job().finish()
            current_job().finish()
        if declared is tasks.outside:
            raise RuntimeError("too late to matter")

    outcome = work.run(body, declared)
    assert isinstance(outcome, Succeeded)
    assert str(outcome.callback_error) == ("too late to matter" if declared is tasks.outside else "None")
    assert (written(), errors()) == (["effect"], [])


def test_finish_before_rollback_is_refused(work: Work) -> None:
    def body(**_: object) -> None:
        with transaction.atomic():
            write()
            transaction.set_rollback(True)
            current_job().finish()

    assert error_of(work.run(body, tasks.outside)) == BROKEN
    assert (written(), rows()) == ([], RETRIED)
