"""What a job leaves behind, no other job meets; a claim brings no large payloads along."""

from __future__ import annotations

import gc
import secrets
from collections.abc import Generator
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction
from django.db.backends.signals import connection_created

from project.salon.models import Customer
from salon_jobs import tenant_context
from salon_jobs.core.outcomes import Lost, Released, Succeeded
from salon_jobs.worker.claim import Claimer
from salon_jobs.worker.executor import execute
from tests import tasks
from tests.support import change, connected, run, running_job, seen
from tests.waiting import eventually
from tests.worker.effects import write
from tests.worker.work import Work, rows

LARGE = "x" * 1_000_000
ALIVE = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s)"


@pytest.fixture
def filled(work: Work) -> list[UUID]:
    """Give each store a customer."""
    for store_id in work.stores:
        with tenant_context(store_id):
            write()
    return work.stores


def own_rows() -> list[UUID]:
    """Return the stores of the customers that a transaction sees."""
    with transaction.atomic():
        return list(Customer.objects.values_list("store_id", flat=True))


def test_tenant_context_left_in_generator(work: Work, filled: list[UUID]) -> None:
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

    work.add(leave_or_look, tasks.outside.using(priority=-2))
    for number, declared in enumerate((tasks.outside, tasks.in_store)):
        work.add(None, declared.using(priority=number), store=1)
    with work.on_thread():
        assert found == [[filled[1]]] * 2
    left_open = "the handler left a tenant context open: close the generator that uses it"
    assert seen("SELECT code, message FROM salon_jobs_job_error") == [("DATABASE.TRANSACTION_BROKEN", left_open)]
    left[0].close()
    assert own_rows() == []


@pytest.mark.parametrize("declared", [tasks.outside, tasks.in_store])
def test_store_set_for_whole_session(work: Work, filled: list[UUID], declared: Any) -> None:
    found: list[list[UUID]] = []

    def set_by_hand(store_id: UUID, **_: object) -> None:
        if store_id == filled[0]:
            connection.cursor().execute("SELECT set_config('app.current_store_id', %s, false)", [str(store_id)])
        else:
            found.append(list(Customer.objects.values_list("store_id", flat=True)))
            found.append(own_rows())

    work.add(set_by_hand, tasks.outside.using(priority=-1))
    work.add(None, declared, store=1)
    work.run_on_thread()
    assert found == [[] if declared is tasks.outside else [filled[1]], [filled[1]]]


def test_private_connections_are_closed(work: Work) -> None:
    backends: list[int] = []

    def connect(**_: object) -> None:
        private: Any = connections.create_connection("default")
        private.ensure_connection()
        backends.append(private.connection.info.backend_pid)

    for _ in range(3):
        work.add(connect, tasks.system)
    warned = pytest.warns(ResourceWarning, match="deleted while still open")
    with warned, work.on_thread():
        gc.collect()
        eventually(lambda: seen(ALIVE, backends), [(0,)])
    assert len(backends) == 3


def test_thread_survives_deleted_connection(work: Work) -> None:
    backends: list[int] = []

    def delete(note: str) -> None:
        connection.ensure_connection()
        backends.append(connection.connection.info.backend_pid)
        if note == "delete":
            connection.cursor().execute("BEGIN")
            del connections["default"]

    work.add(delete, tasks.system.using(priority=-1), note="delete")
    work.add(None, tasks.system)
    with work.on_thread() as runner:
        assert not runner.ended
        eventually(lambda: seen(ALIVE, backends[:1]), [(0,)])
    assert rows() == [("queued", 1, None)]
    assert backends[0] != backends[1]


@pytest.mark.usefixtures("limits_and_groups_at_once")
@pytest.mark.parametrize("room", [10, 1000, "groups"])
def test_claim_brings_small_payloads(work: Work, room: int | str) -> None:
    """Each job gets all of its payload when it runs."""
    lengths: list[int] = []
    notes = ["", "x" * 3000, "x" * 15_900, "x" * 16_100, LARGE, secrets.token_hex(7500), secrets.token_hex(20_000)]
    for note in notes:
        work.add(lambda note: lengths.append(len(note)), tasks.system, note=note)
    fair = Claimer(work.leases, None)
    jobs = fair.claim_fairly(100).jobs if room == "groups" else work.claim(int(room))
    assert [len(job.payload) > 0 for job in jobs] == [True, True, True, False, False, True, False]
    assert all(isinstance(run(job, work.process_id), Succeeded) for job in jobs)
    assert lengths == [len(note) for note in notes]


def test_lease_lost_before_payload_was_read(work: Work) -> None:
    ran: list[str] = []
    job = work.claim_one(ran.append, tasks.system, note=LARGE)
    assert job.payload == ""
    change("UPDATE salon_jobs_job SET leased_by = %s", work.process_id + 1)
    assert isinstance(run(job, work.process_id), Lost)
    assert ran == []


def test_outage_while_payload_is_read(work: Work) -> None:
    """It costs no attempt."""
    running = running_job(work.claim_one(None, tasks.system, note=LARGE), work.process_id)
    change("SELECT pg_terminate_backend(%s, 10000)", connection.connection.info.backend_pid)
    assert isinstance(execute(running), Released)
    connection.close()


def wrapper(execute: Any, *arguments: Any) -> Any:
    return execute(*arguments)


def permanent(execute: Any, *arguments: Any) -> Any:
    return execute(*arguments)


def wrap_for_good(connection: Any, **_: object) -> None:
    if permanent not in connection.execute_wrappers:
        connection.execute_wrappers.append(permanent)


@pytest.mark.parametrize("then", ["nothing", "query", "close"])
@pytest.mark.parametrize("declared", [tasks.system, tasks.in_store, tasks.outside])
def test_wrappers_and_query_log_left(work: Work, declared: Any, then: str) -> None:
    """A wrapper that the project puts on each new connection stays."""
    found: list[tuple[bool, int, int]] = []

    def leave(**_: object) -> None:
        shown = connection.execute_wrappers
        found.append((connection.force_debug_cursor, shown.count(wrapper), len(connection.queries)))
        connection.execute_wrappers.append(wrapper)
        connection.force_debug_cursor = True
        if then != "nothing":
            connection.cursor().execute("SELECT 1")
            assert connection.execute_wrappers.count(permanent) == 1
        if then == "close" and not connection.in_atomic_block:
            connection.close()

    for _ in range(3):
        work.add(leave, declared)
    with connected(connection_created, wrap_for_good), work.on_thread():
        pass
    assert found == [(False, 0, 0)] * 3


@pytest.mark.parametrize("queries", [False, True])
def test_coroutines_leave_no_wrappers(work: Work, queries: bool) -> None:
    found: list[tuple[bool, int]] = []

    def leave() -> None:
        found.append((connection.force_debug_cursor, connection.execute_wrappers.count(wrapper)))
        connection.execute_wrappers.append(wrapper)
        connection.force_debug_cursor = True
        if queries:
            connection.cursor().execute("SELECT 1")

    async def handler(**_: object) -> None:
        await sync_to_async(leave)()

    with work.in_lane(handler, count=3):
        pass
    assert found == [(False, 0)] * 3
