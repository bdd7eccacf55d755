"""Tests that what a job leaves behind, on its thread or its connections, no other job meets."""

from __future__ import annotations

import gc
from collections.abc import Generator
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, connections, transaction

from project.salon.models import Customer
from salon_jobs import tenant_context
from tests import tasks
from tests.support import claim, running_on_a_thread, seen
from tests.waiting import eventually
from tests.worker.effects import write

ERRORS = "SELECT code, message FROM salon_jobs_job_error"
LEFT_OPEN = "the handler left a tenant context open: close the generator that uses it"


@pytest.fixture
def filled(stores: list[UUID]) -> list[UUID]:
    """Give each store a customer."""
    for store_id in stores:
        with tenant_context(store_id):
            write()
    return stores


def own_rows() -> list[UUID]:
    """Return the stores of the customers that a transaction sees."""
    with transaction.atomic():
        return list(Customer.objects.values_list("store_id", flat=True))


def test_a_tenant_context_in_a_generator_that_nobody_ends(
    filled: list[UUID], hooks: tasks.Hooks, process_id: int
) -> None:
    left: list[Generator[UUID]] = []
    found: list[list[UUID]] = []

    def rows(store_id: UUID) -> Generator[UUID]:
        with tenant_context(store_id, atomic=False, switch=True):
            yield from own_rows()

    def leave_or_look(store_id: UUID, **_: object) -> None:
        if store_id != filled[0]:
            found.append(own_rows())
            return
        left.append(rows(filled[2]))
        assert next(left[0]) == filled[2]

    hooks.store = leave_or_look
    tasks.outside.using(priority=-2).enqueue(store_id=filled[0])
    for number, declared in enumerate((tasks.outside, tasks.in_store)):
        declared.using(priority=number).enqueue(store_id=filled[1])
    with running_on_a_thread(process_id, claim(process_id)):
        assert found == [[filled[1]]] * 2
    assert seen(ERRORS) == [("DATABASE.TRANSACTION_BROKEN", LEFT_OPEN)]
    left[0].close()
    assert own_rows() == []


@pytest.mark.parametrize("declared", [tasks.outside, tasks.in_store])
def test_a_store_set_by_hand_for_the_whole_session(
    filled: list[UUID], hooks: tasks.Hooks, process_id: int, declared: Any
) -> None:
    found: list[list[UUID]] = []

    def set_by_hand(store_id: UUID, **_: object) -> None:
        if store_id == filled[0]:
            connection.cursor().execute("SELECT set_config('app.current_store_id', %s, false)", [str(store_id)])
        else:
            found.append(list(Customer.objects.values_list("store_id", flat=True)))
            found.append(own_rows())

    hooks.store = set_by_hand
    tasks.outside.using(priority=-1).enqueue(store_id=filled[0])
    declared.enqueue(store_id=filled[1])
    with running_on_a_thread(process_id, claim(process_id)):
        assert found == [[] if declared is tasks.outside else [filled[1]], [filled[1]]]


def test_connections_of_its_own_are_not_kept_open_for_it(database: None, hooks: tasks.Hooks, process_id: int) -> None:
    backends: list[int] = []

    def connect(**_: object) -> None:
        private: Any = connections.create_connection("default")
        private.ensure_connection()
        backends.append(private.connection.info.backend_pid)

    hooks.system = connect
    for _ in range(3):
        tasks.system.enqueue()
    alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s)"
    warned = pytest.warns(ResourceWarning, match="deleted while still open")
    with warned, running_on_a_thread(process_id, claim(process_id)):
        gc.collect()
        eventually(lambda: seen(alive, backends), [(0,)])
    assert len(backends) == 3


def test_a_thread_lives_on_when_a_job_deletes_its_connection(
    database: None, hooks: tasks.Hooks, process_id: int
) -> None:
    backends: list[int] = []

    def delete(note: str) -> None:
        connection.ensure_connection()
        backends.append(connection.connection.info.backend_pid)
        if note == "delete":
            connection.cursor().execute("BEGIN")
            del connections["default"]

    hooks.system = delete
    tasks.system.using(priority=-1).enqueue(note="delete")
    tasks.system.enqueue()
    with running_on_a_thread(process_id, claim(process_id)) as runner:
        assert not runner.ended
        assert seen("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", backends[0]) == [(0,)]
    assert seen("SELECT state, attempts, leased_by FROM salon_jobs_job") == [("queued", 1, None)]
    assert backends[0] != backends[1]
