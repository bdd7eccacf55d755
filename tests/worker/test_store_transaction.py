"""Tests that a store's job ends in one round trip with its COMMIT, and that nothing is lost where that cannot be."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import IntegrityError, OperationalError, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import IsolationLevel

from project.salon.models import Customer
from salon_jobs.core.errors import TenantContextError
from salon_jobs.core.outcomes import Errored, Succeeded
from salon_jobs.db.statements import in_one_trip
from salon_jobs.tenancy import guc
from salon_jobs.tenancy.context import StoreJobContext
from tests import tasks
from tests.support import change, claim, run, run_due, seen
from tests.worker.conftest import RunHere
from tests.worker.effects import write, written


def own_value(statement: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0]


def test_a_job_takes_two_round_trips_of_ours(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips: list[str] = []

    def watched(on: BaseDatabaseWrapper, statements: str) -> Any:
        trips.append(statements)
        return in_one_trip(on, statements)

    monkeypatch.setattr("salon_jobs.tenancy.guc.in_one_trip", watched)
    monkeypatch.setattr("salon_jobs.tenancy.context.in_one_trip", watched)
    tasks.in_store.enqueue(store_id=stores[0])
    assert run_due(process_id) == [Succeeded(finished=True)]
    begin, end = trips
    assert begin.startswith("BEGIN; SELECT set_config('app.current_store_id', '")
    assert end.endswith("; COMMIT")
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_a_lost_connection_is_an_operational_error(database: None, known: bool) -> None:
    connection.ensure_connection()
    try:
        change("SELECT pg_terminate_backend(%s, 10000)", own_value("SELECT pg_backend_pid()"))
        for _ in range(2 if known else 1):
            with pytest.raises(OperationalError):
                in_one_trip(connection, "SELECT 1")
    finally:
        connection.close()


def test_the_isolation_that_the_options_ask_for_is_kept(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int
) -> None:
    connection.ensure_connection()
    raw: Any = connection.connection
    found: list[str] = []

    def body(**_: object) -> None:
        found.append(own_value("SHOW transaction_isolation"))
        found.append(own_value("SELECT current_setting('app.current_store_id')"))
        write()

    hooks.store = body
    tasks.in_store.enqueue(store_id=stores[0])
    raw.isolation_level = IsolationLevel.SERIALIZABLE
    try:
        assert run_due(process_id) == [Succeeded(finished=True)]
    finally:
        raw.isolation_level = None
    assert found == ["serializable", str(stores[0])]
    assert written() == ["effect"]


def test_a_constraint_that_fails_at_the_commit_fails_the_run(
    run_here: RunHere, stores: list[UUID], hooks: tasks.Hooks, process_id: int
) -> None:
    called: list[str] = []

    def body(**_: object) -> None:
        write()
        transaction.on_commit(lambda: called.append("callback"))
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO customer_note (id, store_id, customer_id, body) VALUES (%s, %s, %s, '')",
                [uuid4(), stores[0], uuid4()],
            )

    outcome = run_here(body)
    assert isinstance(outcome, Errored)
    assert isinstance(outcome.error, IntegrityError)
    assert (written(), called) == ([], [])
    assert seen("SELECT state, attempts, leased_by FROM salon_jobs_job") == [("queued", 1, None)]
    hooks.store = lambda **_: write("after")
    change("UPDATE salon_jobs_job SET run_at = now()")
    assert run_due(process_id) == [Succeeded(finished=True)]
    assert written() == ["after"], "the connection goes on"


def test_what_is_committed_keeps_its_callbacks_though_the_run_is_interrupted_then(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    visible: list[str] = []

    def body(**_: object) -> None:
        write()
        transaction.on_commit(lambda: visible.extend(Customer.objects.values_list("name", flat=True)))

    original = StoreJobContext.commit_after

    def interrupted_after(own: StoreJobContext, statement: str) -> bool:
        original(own, statement)
        raise KeyboardInterrupt

    monkeypatch.setattr(StoreJobContext, "commit_after", interrupted_after)
    hooks.store = body
    tasks.in_store.enqueue(store_id=stores[0])
    [job] = claim(process_id)
    assert isinstance(run(job, process_id), Succeeded)
    assert (written(), visible) == (["effect"], ["effect"])
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]


def test_only_a_key_becomes_a_literal(database: None) -> None:
    harmful: Any = "'); DROP TABLE customer; --"
    with transaction.atomic(), pytest.raises(TenantContextError, match="store_id must be"):
        guc.begin_as(connections["default"], harmful, "true")
