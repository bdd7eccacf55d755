"""Tests of the lane of async handlers: how many run at once, on how few connections, and what they leave on them."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import UUID

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError, connection, connections, transaction
from django.dispatch import Signal

from project.salon.models import Customer
from salon_jobs import current_store_id, tenant_context
from salon_jobs.core.errors import TimedOut
from salon_jobs.jobs import current
from salon_jobs.jobs.current import RunningJob
from salon_jobs.signals import job_finished, job_started
from salon_jobs.tenancy.active import ActiveContext, detach_contexts
from salon_jobs.tenancy.connections import is_in_use
from salon_jobs.worker import database_threads
from salon_jobs.worker import lane as lane_module
from salon_jobs.worker.async_handlers import running_loop
from salon_jobs.worker.database_threads import DatabaseThreads, Turns
from salon_jobs.worker.worker import Worker, WorkerOptions
from tests import tasks
from tests.support import claim, connected, event_fields, running_coroutines, seen, working
from tests.waiting import eventually
from tests.worker.conftest import RunOnThread
from tests.worker.effects import write, written

ERRORS = "SELECT error_class FROM salon_jobs_job_error ORDER BY id"


def run_all(process_id: int, *, threads: int, at_once: int) -> None:
    options = WorkerOptions(concurrency=threads, async_concurrency=at_once, burst=True)
    assert Worker(process_id, options, using="default").run()


def backend() -> int:
    """Return the server's process behind this thread's connection."""
    connection.ensure_connection()
    pid: int = connection.connection.info.backend_pid
    return pid


def test_hundreds_wait_at_once_and_share_a_few_connections(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int
) -> None:
    """Each reads, waits until all have read, and writes."""
    count, threads = 200, 3
    together = asyncio.Barrier(count)
    backends: set[int] = set()

    async def handler(store_id: UUID, number: int) -> None:
        assert await Customer.objects.acount() == 0
        backends.add(await sync_to_async(backend)())
        await together.wait()
        await sync_to_async(write)(f"{number}")
        assert current_store_id() == store_id

    hooks.coroutine = handler
    tasks.async_store.enqueue_many(
        [tasks.async_store.call(store_id=stores[number % 2], number=number) for number in range(count)]
    )
    run_all(process_id, threads=threads, at_once=count)
    assert (seen(ERRORS), seen("SELECT count(*) FROM salon_jobs_job")) == ([], [(0,)])
    assert len(backends) <= threads
    assert sorted(map(int, written())) == list(range(count))
    assert seen("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s)", list(backends)) == [(0,)], "it closes them"


def test_what_a_call_leaves_on_the_session_reaches_no_other_call(
    run_on_thread: RunOnThread, hooks: tasks.Hooks
) -> None:
    found: list[tuple[int, str]] = []

    @sync_to_async
    def look() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid(), current_setting('statement_timeout')")
            found.append(cursor.fetchone())
            cursor.execute("SET statement_timeout = '9min'")

    async def handler(**_: object) -> None:
        await look()
        await asyncio.sleep(0)
        await look()

    run_on_thread(handler, tasks.async_system)
    assert found[0] == found[1], "the same session, as it was connected"


def test_a_transaction_keeps_the_connection_while_others_use_the_rest(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int
) -> None:
    """The second job's statements all run while the first one waits in its transaction."""
    in_transaction, done = asyncio.Event(), asyncio.Event()
    backends: dict[str, list[int]] = {"first": [], "second": []}

    async def handler(store_id: UUID, number: int) -> None:
        where = backends["second" if number else "first"]
        if number:
            await in_transaction.wait()
            for name in "abc":
                where.append(await sync_to_async(backend)())
                await sync_to_async(write)(name)
            done.set()
            return
        async with tenant_context(store_id):
            await sync_to_async(write)("first")
            in_transaction.set()
            where.append(await sync_to_async(backend)())
            await done.wait()
            where.append(await sync_to_async(backend)())

    hooks.coroutine = handler
    for number in range(2):
        tasks.async_store.enqueue(store_id=stores[number], number=number)
    run_all(process_id, threads=2, at_once=10)
    assert (seen(ERRORS), sorted(written())) == ([], ["a", "b", "c", "first"])
    [held] = set(backends["first"])
    assert held not in backends["second"]


def test_a_run_that_keeps_its_thread_from_the_start_is_of_its_store(
    run_on_thread: RunOnThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_threads, "is_in_use", lambda _: True)

    async def handler(**_: object) -> None:
        await sync_to_async(write)("kept")

    run_on_thread(handler, tasks.async_store)
    assert (seen(ERRORS), written()) == ([], ["kept"])


def test_a_connection_configured_without_autocommit_keeps_no_thread_between_its_transactions(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = connections["default"]
    shared.ensure_connection()
    monkeypatch.setitem(shared.settings_dict, "AUTOCOMMIT", False)
    shared.set_autocommit(False)
    try:
        assert not is_in_use(shared)
        shared.cursor().execute("SELECT 1")
        assert is_in_use(shared)
        shared.rollback()
    finally:
        shared.set_autocommit(True)
    assert is_in_use(shared)


def test_a_transaction_that_is_left_open_is_rolled_back_and_fails_the_job(run_on_thread: RunOnThread) -> None:
    def leave() -> None:
        transaction.atomic().__enter__()
        write("lost")

    async def handler(**_: object) -> None:
        await sync_to_async(leave)()

    run_on_thread(handler, tasks.async_store)
    assert (seen(ERRORS), written()) == ([("salon_jobs.core.errors.TransactionBroken",)], [])


def test_a_place_that_becomes_free_is_filled_while_the_others_go_on(
    database: None, hooks: tasks.Hooks, process_id: int
) -> None:
    ended = asyncio.Event()
    ran: list[str] = []

    async def handler(note: str) -> None:
        ran.append(note)
        if note == "stays":
            await ended.wait()
        if note == "last":
            ended.set()

    hooks.coroutine = handler
    for note in ("stays", "first", "second", "last"):
        tasks.async_system.enqueue(note=note)
    run_all(process_id, threads=1, at_once=2)
    assert ran == ["stays", "first", "second", "last"]


def test_functions_and_coroutines_run_beside_each_other_however_many_of_the_other_kind_wait(
    database: None, hooks: tasks.Hooks, process_id: int
) -> None:
    """All threads are taken, and then all places; a job of the other kind runs meanwhile, each way."""
    coroutine_ran, function_ran = threading.Event(), threading.Event()
    release = asyncio.Event()

    async def handler(note: str) -> None:
        if note == "waits":
            coroutine_ran.set()
            await asyncio.wait_for(release.wait(), 20)

    def function(**_: object) -> None:
        assert coroutine_ran.wait(20)
        function_ran.set()

    hooks.coroutine, hooks.system = handler, function
    for _ in range(30):
        tasks.system.using(priority=-1).enqueue()
    tasks.async_system.enqueue(note="waits")
    for _ in range(30):
        tasks.async_system.using(priority=-2).enqueue()
    worker = Worker(process_id, WorkerOptions(concurrency=1, async_concurrency=1, burst=True), using="default")
    running = threading.Thread(target=worker.run, daemon=True)
    running.start()
    assert function_ran.wait(20)
    eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job WHERE task = 'test-system'"), [(0,)])
    running_loop().call_soon_threadsafe(release.set)
    running.join(20)
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]


def test_a_job_that_waits_long_for_a_thread_says_who_has_it(
    stores: list[UUID],
    hooks: tasks.Hooks,
    process_id: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(lane_module, "_LONG_WAIT_S", 0.0)
    held, release = threading.Event(), asyncio.Event()

    async def handler(store_id: UUID, number: int) -> None:
        async with tenant_context(store_id):
            held.set()
            await asyncio.wait_for(release.wait(), 20)

    hooks.coroutine = handler
    with running_coroutines(process_id) as (lane, _):
        first = tasks.async_store.enqueue(store_id=stores[0], number=0).id
        lane.start(claim(process_id))
        assert held.wait(10)
        second = tasks.async_store.enqueue(store_id=stores[1], number=1).id
        lane.start(claim(process_id))

        def is_reported() -> bool:
            lane.report_waits()
            return bool(event_fields(caplog, "database_threads_busy"))

        eventually(is_reported)
        running_loop().call_soon_threadsafe(release.set)
    [record] = event_fields(caplog, "database_threads_busy")
    assert (record["job_id"], record["waiting"], record["threads"]) == (second, 1, 1)
    assert record["holders"].startswith(f"test-async-store {first} for ")


def test_a_stop_gives_back_all_that_wait(
    database: None, hooks: tasks.Hooks, process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("salon_jobs.worker.worker._FORCED_S", 10.0)
    count = 50
    begun = threading.Semaphore(0)

    async def handler(**_: object) -> None:
        begun.release()
        await asyncio.sleep(60)

    hooks.coroutine = handler
    tasks.async_system.enqueue_many([tasks.async_system.call() for _ in range(count)])
    with working(process_id) as worker:
        for _ in range(count):
            assert begun.acquire(timeout=20)
        worker.stop()  # and again, which forces it
    rows = seen("SELECT state, attempts, leased_by, count(*) FROM salon_jobs_job GROUP BY 1, 2, 3")
    assert (rows, seen(ERRORS)) == ([("queued", 0, None, count)], [])


def test_receivers_are_called_around_the_handler_and_inside_the_trace_of_the_run(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end the run is over: it has no current job, its task may be of any store, and nothing can cancel it."""
    traced = ContextVar("traced", default=False)
    heard: list[tuple[Any, ...]] = []

    @contextmanager
    def observing(_: object) -> Generator[None]:
        traced.set(True)
        yield

    async def handler(**_: object) -> None:
        raise ValueError

    def begin(job: RunningJob, **_: object) -> None:
        heard.append(("started", current.running.get() is job, traced.get()))

    def end(job: RunningJob, **_: object) -> None:
        lane.cancel(job.id, job.job.lease)
        with tenant_context(stores[0]):
            heard.append(("finished", current.running.get(), traced.get(), job.cancelled()))

    monkeypatch.setattr(lane_module, "is_observed", lambda: True)
    monkeypatch.setattr(lane_module, "observing", observing)
    hooks.coroutine = handler
    with connected(job_started, begin), connected(job_finished, end), running_coroutines(process_id) as (lane, _):
        tasks.async_system.enqueue()
        lane.start(claim(process_id))
    assert heard == [("started", True, True), ("finished", None, True, False)]


@pytest.mark.parametrize("signal", [job_started, job_finished])
def test_a_receiver_can_have_database_calls_in_a_loop_of_its_own(
    database: None, hooks: tasks.Hooks, process_id: int, signal: Signal
) -> None:
    """It is called before the run's own calls, or after them."""
    answers: list[int] = []

    def receive(**_: object) -> None:
        answers.append(asyncio.run(sync_to_async(lambda: 7)()))

    async def handler(**_: object) -> None:
        raise ValueError

    hooks.coroutine = handler
    with connected(signal, receive), running_coroutines(process_id) as (lane, _):
        tasks.async_system.enqueue()
        lane.start(claim(process_id))
    assert answers == [7]


def test_a_stop_cancels_all_coroutines_before_it_waits_for_a_server(
    database: None, hooks: tasks.Hooks, process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Semaphore(0)
    ended: list[None] = []

    async def handler(**_: object) -> None:
        begun.release()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(None)

    def cancel_query(_: Turns) -> bool:
        eventually(lambda: len(ended), 2)
        return True

    monkeypatch.setattr(Turns, "cancel_query", cancel_query)
    hooks.coroutine = handler
    tasks.async_system.enqueue_many([tasks.async_system.call() for _ in range(2)])
    with running_coroutines(process_id) as (lane, _):
        lane.start(claim(process_id))
        assert all(begun.acquire(timeout=10) for _ in range(2))
        lane.interrupt_all()


def test_an_interrupt_cancels_no_query_with_which_the_handler_cleans_up(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that runs already when the coroutine has been cancelled and its query's turn comes."""
    begun = threading.Event()

    @sync_to_async
    def clean_up() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(2712)")
        write("cleaned up")

    async def handler(**_: object) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            await clean_up()

    def cancel_late(turns: Turns) -> bool:
        eventually(lambda: seen("SELECT count(*) FROM pg_locks WHERE objid = 2712 AND NOT granted"), [(1,)])
        is_settled = cancel_query(turns)
        seen("SELECT pg_advisory_unlock(2712)")
        return is_settled

    cancel_query = Turns.cancel_query
    monkeypatch.setattr(Turns, "cancel_query", cancel_late)
    hooks.coroutine = handler
    tasks.async_store.enqueue(store_id=stores[0])
    seen("SELECT pg_advisory_lock(2712)")
    with running_coroutines(process_id) as (lane, _):
        lane.start(claim(process_id))
        assert begun.wait(10)
        lane.interrupt_all()
    assert written() == ["cleaned up"]


def test_an_interrupt_cancels_a_query_that_is_sent_just_then(
    database: None, hooks: tasks.Hooks, process_id: int
) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    async def handler(**_: object) -> None:
        begun.set()
        assert goes_on.wait(10)  # the loop, too, which can cancel nothing
        await sync_to_async(lambda: connection.cursor().execute("SELECT pg_sleep(60)"))()

    hooks.coroutine = handler
    tasks.async_system.enqueue()
    with running_coroutines(process_id) as (lane, _):
        lane.start(claim(process_id))
        assert begun.wait(10)
        [running] = lane.runs
        interrupting = threading.Thread(target=lane.interrupt_all)
        interrupting.start()
        eventually(lambda: running.interrupted_by is not None)
        goes_on.set()
        interrupting.join(10)
        eventually(lambda: not lane.running_count)
    assert seen("SELECT state, attempts FROM salon_jobs_job") == [("queued", 0)]


def test_a_cancel_request_that_comes_between_two_queries_is_repeated_until_one_has_failed(
    database: None, hooks: tasks.Hooks, process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no longer: the call itself may clean up."""
    begun, requests = threading.Event(), list[bool]()
    cancel_safe = psycopg.Connection.cancel_safe

    def come_late(raw: psycopg.Connection[Any], **options: Any) -> None:
        if requests:
            cancel_safe(raw, **options)
        requests.append(True)

    def sleep() -> None:
        begun.set()
        try:
            connection.cursor().execute("SELECT pg_sleep(60)")
        except OperationalError:
            connection.cursor().execute("SELECT pg_sleep(1.5)")

    hooks.coroutine = lambda **_: sync_to_async(sleep)()
    tasks.async_system.enqueue()
    monkeypatch.setattr(psycopg.Connection, "cancel_safe", come_late)
    monkeypatch.setattr(lane_module, "_INTERRUPT_S", 20.0)
    monkeypatch.setattr(database_threads, "REPEAT_S", 1.0)
    with running_coroutines(process_id) as (lane, _):
        lane.start(claim(process_id))
        assert begun.wait(10)
        lane.interrupt_all()
        assert len(requests) == 2
    assert seen("SELECT state, attempts FROM salon_jobs_job") == [("queued", 0)]


def test_a_second_interrupt_cancels_the_query_with_which_the_handler_cleans_up_after_the_first(
    database: None, hooks: tasks.Hooks, process_id: int
) -> None:
    begun = threading.Semaphore(0)

    def sleep() -> None:
        if connection.get_autocommit():
            connection.set_autocommit(False)  # so that the thread is kept
        with transaction.atomic():
            begun.release()
            connection.cursor().execute("SELECT pg_sleep(60)")

    async def handler(**_: object) -> None:
        try:
            await sync_to_async(sleep)()
        finally:
            await sync_to_async(sleep)()

    hooks.coroutine = handler
    tasks.async_system.enqueue()
    with running_coroutines(process_id) as (lane, _):
        lane.start(claim(process_id))
        assert begun.acquire(timeout=30)
        [running] = lane.runs
        lane.interrupt(running, TimedOut)
        assert begun.acquire(timeout=30)
        lane.interrupt_all()
        eventually(lambda: not lane.running_count)


def test_an_interrupt_waits_for_no_query_that_was_given_up_before_it_was_sent(
    database: None, hooks: tasks.Hooks, process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds that time out at once while they wait for a thread would each ask for their query until it is free."""
    monkeypatch.setattr(lane_module, "_INTERRUPT_S", 20.0)
    goes_on = threading.Event()

    async def handler(**_: object) -> None:
        await sync_to_async(goes_on.wait)(10)

    hooks.coroutine = handler
    tasks.async_system.enqueue_many([tasks.async_system.call() for _ in range(2)])
    with running_coroutines(process_id) as (lane, _):
        lane.start(claim(process_id))
        turns = [run.turns for run in lane._runs.values()]
        eventually(lambda: any(each.has_since for each in turns) and any(each.waits_since for each in turns))
        [waiting] = [run for run in lane._runs.values() if run.turns.waits_since]
        interrupting = threading.Thread(target=lane.interrupt, args=(waiting, TimedOut))
        interrupting.start()
        interrupting.join(5)
        was_waiting = interrupting.is_alive()
        goes_on.set()
    assert not was_waiting
    assert seen(ERRORS) == [("salon_jobs.core.errors.TimedOut",)]


def test_an_interrupt_that_comes_too_late_cancels_no_query_of_the_end(database: None) -> None:
    threads = DatabaseThreads(1)
    turns = Turns(threads, "default", lambda _: None)

    def wait() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(2711)")

    async def waited() -> None:
        await turns.submit(wait)

    seen("SELECT pg_advisory_lock(2711)")
    try:
        assert turns.end() is None
        ended = asyncio.run_coroutine_threadsafe(waited(), running_loop())
        eventually(lambda: seen("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"), [(1,)])
        turns.cancel_query()
    finally:
        seen("SELECT pg_advisory_unlock(2711)")
    assert ended.result(10) is None
    threads.end(10)


class _Detached(list[Any]):
    """Wrappers of statements, off which another thread takes all between a look at them and what follows it."""

    def __contains__(self, _: object) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        found = self.copy()
        self.clear()
        return iter(found)


def test_a_context_may_be_closed_while_it_is_detached(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = connections["default"]
    context = ActiveContext(shared, 1)
    monkeypatch.setattr(shared, "execute_wrappers", _Detached([context]))
    assert detach_contexts(shared) == [context]
    context.close()
    assert not context.is_open


def test_runs_leave_no_garbage_in_cycles(hooks: tasks.Hooks, process_id: int) -> None:
    """Thousands wait at once, so the collector would find it late, and look at all that wait each time."""

    async def handler(**_: object) -> None:
        await Customer.objects.acount()

    hooks.coroutine = handler
    tasks.async_system.enqueue()
    run_all(process_id, threads=2, at_once=10)
    count = 1000
    tasks.async_system.enqueue_many([tasks.async_system.call() for _ in range(count)])
    gc.collect()
    gc.disable()
    try:
        run_all(process_id, threads=2, at_once=10)
        assert gc.collect() < count
    finally:
        gc.enable()
