"""The lane of async handlers: how many run at once, on how few connections, and what they leave on them."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
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
from salon_jobs.db.upkeep import is_in_use
from salon_jobs.jobs.current import CurrentJob
from salon_jobs.jobs.run import current_run
from salon_jobs.signals import job_finished, job_started
from salon_jobs.tenancy.active import ActiveContext, detach_contexts
from salon_jobs.worker import database_threads
from salon_jobs.worker import lane as lane_module
from salon_jobs.worker.async_handlers import running_loop
from salon_jobs.worker.database_threads import DatabaseThreads, RunCalls
from salon_jobs.worker.worker import Worker, WorkerOptions
from tests import tasks
from tests.support import connected, running_coroutines, seen, wait_until_waiting
from tests.waiting import LIMIT_S, eventually
from tests.worker.effects import write, written
from tests.worker.work import Work, error_classes, rows

GIVEN_BACK = [("queued", 0, None)]
add = sync_to_async(write)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an interrupt wait for a query that is about to be sent, however slow the machine is."""
    monkeypatch.setattr(lane_module, "_INTERRUPT_S", LIMIT_S)


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


def sleep(seconds: float = 600) -> None:
    connection.cursor().execute("SELECT pg_sleep(%s)", [seconds])


@sync_to_async
def backend() -> int:
    """Return the server's process behind this thread's connection."""
    connection.ensure_connection()
    pid: int = connection.connection.info.backend_pid
    return pid


def test_hundreds_share_few_connections(work: Work) -> None:
    """Each reads, waits until all have read, and writes."""
    count, threads = 200, 3
    together = asyncio.Barrier(count)
    backends: set[int] = set()

    async def handler(store_id: UUID, number: int) -> None:
        assert await Customer.objects.acount() == 0
        backends.add(await backend())
        await together.wait()
        await add(f"{number}")
        assert current_store_id() == store_id

    work.hooks.coroutine = handler
    tasks.async_store.enqueue_many(
        [tasks.async_store.call(store_id=work.stores[number % 2], number=number) for number in range(count)]
    )
    work.burst(concurrency=threads, async_concurrency=count)
    assert (error_classes(), rows()) == ([], [])
    assert len(backends) <= threads
    assert sorted(map(int, written())) == list(range(count))
    # It closes them, and their servers end a moment later.
    eventually(lambda: seen("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s)", list(backends)), [(0,)])


def test_session_settings_between_calls(work: Work) -> None:
    """What a call leaves on the session reaches no other call."""
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

    work.run_on_thread(handler, tasks.async_system)
    assert found[0] == found[1], "the same session, as it was connected"


def test_transaction_keeps_connection(work: Work) -> None:
    """The second job's statements all run while the first one waits in its transaction."""
    in_transaction, done = asyncio.Event(), asyncio.Event()
    backends: tuple[list[int], list[int]] = ([], [])

    async def handler(store_id: UUID, number: int) -> None:
        where = backends[number]
        if number:
            await in_transaction.wait()
            for name in "abc":
                where.append(await backend())
                await add(name)
            done.set()
            return
        async with tenant_context(store_id):
            await add("first")
            in_transaction.set()
            where.append(await backend())
            await done.wait()
            where.append(await backend())

    for number in range(2):
        work.add(handler, tasks.async_store, store=number, number=number)
    work.burst(concurrency=2, async_concurrency=10)
    assert (error_classes(), sorted(written())) == ([], ["a", "b", "c", "first"])
    [held] = set(backends[0])
    assert held not in backends[1]


def test_run_keeps_thread_with_store(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_threads, "is_in_use", lambda _: True)

    async def handler(**_: object) -> None:
        await add("kept")

    work.run_on_thread(handler, tasks.async_store)
    assert (error_classes(), written()) == ([], ["kept"])


def test_connection_without_autocommit(database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it is configured so, it keeps no thread between its transactions."""
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


def test_open_transaction_is_rolled_back(work: Work) -> None:
    def leave() -> None:
        transaction.atomic().__enter__()
        write("lost")

    async def handler(**_: object) -> None:
        await sync_to_async(leave)()

    work.run_on_thread(handler, tasks.async_store)
    assert (error_classes(), written()) == (["TransactionBroken"], [])


def test_open_transaction_beside_claim(work: Work) -> None:
    """The run does not take the worker's transaction, of the next claim, for one that surrounds its own calls."""

    async def handler(**_: object) -> None:
        await sync_to_async(transaction.atomic().__enter__)()

    with running_coroutines(work.process_id) as (lane, _):
        work.add(handler, tasks.async_system)
        jobs = work.claim()
        with transaction.atomic():
            lane.start(jobs)
            eventually(lambda: not lane.running_count)
    assert error_classes() == ["TransactionBroken"]


def test_free_place_is_filled(work: Work) -> None:
    """The others go on meanwhile."""
    ended = asyncio.Event()
    ran: list[str] = []

    async def handler(note: str) -> None:
        ran.append(note)
        if note == "stays":
            await ended.wait()
        if note == "last":
            ended.set()

    for note in ("stays", "first", "second", "last"):
        work.add(handler, tasks.async_system, note=note)
    work.burst(concurrency=1, async_concurrency=2)
    assert ran == ["stays", "first", "second", "last"]


def test_functions_beside_coroutines(work: Work) -> None:
    """All threads are taken, and then all places; a job of the other kind runs meanwhile, each way."""
    coroutine_ran, function_ran = threading.Event(), threading.Event()
    release = asyncio.Event()

    async def handler(note: str) -> None:
        if note == "waits":
            coroutine_ran.set()
            await asyncio.wait_for(release.wait(), LIMIT_S)

    def function(**_: object) -> None:
        assert coroutine_ran.wait(LIMIT_S)
        function_ran.set()

    work.hooks.coroutine, work.hooks.system = handler, function
    tasks.system.using(priority=-1).enqueue_many([tasks.system.call()] * 30)
    work.add(None, tasks.async_system, note="waits")
    tasks.async_system.using(priority=-2).enqueue_many([tasks.async_system.call()] * 30)
    options = WorkerOptions(concurrency=1, async_concurrency=1, burst=True)
    running = threading.Thread(target=Worker(work.process_id, options, using="default").run, daemon=True)
    running.start()
    assert function_ran.wait(LIMIT_S)
    eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job WHERE task = 'test-system'"), [(0,)])
    running_loop().call_soon_threadsafe(release.set)
    running.join(LIMIT_S)
    assert rows() == []


def test_long_wait_names_holder(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that waits long for a thread says who has it."""
    monkeypatch.setattr(lane_module, "_LONG_WAIT_S", 0.0)
    held, release = threading.Event(), asyncio.Event()

    async def handler(store_id: UUID, number: int) -> None:
        async with tenant_context(store_id):
            held.set()
            await asyncio.wait_for(release.wait(), LIMIT_S)

    with work.in_lane(handler, tasks.async_store) as lane:
        [first] = [run.id for run in lane.runs]
        assert held.wait(LIMIT_S)
        second = work.add(handler, tasks.async_store, store=1)
        lane.start(work.claim())

        def reported() -> list[dict[str, Any]]:
            lane.report_waits()
            return work.fields("database_threads_busy")

        [record] = eventually(reported)
        running_loop().call_soon_threadsafe(release.set)
    assert (record["job_id"], record["waiting"], record["threads"]) == (second, 1, 1)
    assert record["holders"].startswith(f"test-async-store {first} for ")
    assert len(work.fields("database_threads_busy")) == 1


def test_stop_gives_back_waiting_coroutines(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("salon_jobs.worker.worker._FORCED_S", LIMIT_S)
    begun = threading.Semaphore(0)

    async def handler(**_: object) -> None:
        begun.release()
        await wait_for_ever()

    work.hooks.coroutine = handler
    tasks.async_system.enqueue_many([tasks.async_system.call()] * 50)
    with work.working() as worker:
        assert all(begun.acquire(timeout=LIMIT_S) for _ in range(50))
        worker.stop()  # and again, which forces it
    assert (rows(), error_classes()) == (GIVEN_BACK * 50, [])


def test_receivers_around_handler(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are called inside the trace; at the end the run is over.

    Then it has no current job, its task may be of any store, and nothing can cancel it.
    """
    traced = ContextVar("traced", default=False)
    heard: list[tuple[Any, ...]] = []

    @contextmanager
    def observing(_: object) -> Generator[None]:
        traced.set(True)
        yield

    async def handler(**_: object) -> None:
        raise ValueError

    def begin(job: CurrentJob, **_: object) -> None:
        heard.append(("started", current_run.get() is job.run, traced.get()))

    def end(job: CurrentJob, **_: object) -> None:
        lane.cancel(job.id, job.run.job.lease)
        with tenant_context(work.stores[0]):
            heard.append(("finished", current_run.get(), traced.get(), job.cancelled()))

    monkeypatch.setattr(lane_module, "is_observed", lambda: True)
    monkeypatch.setattr(lane_module, "observing", observing)
    with connected(job_started, begin), connected(job_finished, end), work.in_lane(handler, count=0) as lane:
        work.add(handler, tasks.async_system)
        lane.start(work.claim())
    assert heard == [("started", True, True), ("finished", None, True, False)]


@pytest.mark.parametrize("signal", [job_started, job_finished])
def test_receiver_with_loop_of_its_own(work: Work, signal: Signal) -> None:
    """It can make database calls there, before the run's own calls or after them."""
    answers: list[int] = []

    def receive(**_: object) -> None:
        answers.append(asyncio.run(sync_to_async(lambda: 7)()))

    async def handler(**_: object) -> None:
        raise ValueError

    with connected(signal, receive):
        work.run_on_thread(handler, tasks.async_system)
    assert answers == [7]


@pytest.mark.parametrize("declared", [tasks.system, tasks.async_system])
def test_receiver_opens_context_of_store(work: Work, declared: Any) -> None:
    """Also one of a system task, whose handler cannot."""
    stores: list[object] = []

    def receive(**_: object) -> None:
        with tenant_context(work.stores[0]):
            stores.append(current_store_id())

    async def wait(**_: object) -> None:
        """Do nothing."""

    with connected(job_started, receive):
        work.run_on_thread(wait if declared.is_async else lambda **_: None, declared)
    assert stores == [work.stores[0]]


def test_stop_cancels_all_before_waiting(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cancels all coroutines before it waits for a server."""
    begun = threading.Semaphore(0)
    ended: list[None] = []

    async def handler(**_: object) -> None:
        begun.release()
        try:
            await wait_for_ever()
        finally:
            ended.append(None)

    def cancel_query(_: RunCalls) -> bool:
        eventually(lambda: len(ended), 2)
        return True

    monkeypatch.setattr(RunCalls, "cancel_query", cancel_query)
    with work.in_lane(handler, count=2) as lane:
        assert all(begun.acquire(timeout=LIMIT_S) for _ in range(2))
        lane.interrupt_all()


def test_interrupt_spares_cleanup_query(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that runs already when the coroutine has been cancelled and its query's turn comes."""
    begun = threading.Event()

    @sync_to_async
    def clean_up() -> None:
        connection.cursor().execute("SELECT pg_advisory_xact_lock(2712)")
        write("cleaned up")

    async def handler(**_: object) -> None:
        begun.set()
        try:
            await wait_for_ever()
        finally:
            await clean_up()

    def cancel_late(calls: RunCalls) -> bool:
        wait_until_waiting()
        is_settled = cancel_query(calls)
        seen("SELECT pg_advisory_unlock(2712)")
        return is_settled

    cancel_query = RunCalls.cancel_query
    monkeypatch.setattr(RunCalls, "cancel_query", cancel_late)
    seen("SELECT pg_advisory_lock(2712)")
    with work.in_lane(handler, tasks.async_store) as lane:
        assert begun.wait(LIMIT_S)
        lane.interrupt_all()
    assert written() == ["cleaned up"]


def test_interrupt_cancels_query_just_sent(work: Work) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    async def handler(**_: object) -> None:
        begun.set()
        assert goes_on.wait(LIMIT_S)  # the loop, too, which can cancel nothing
        await sync_to_async(sleep)()

    with work.in_lane(handler) as lane:
        assert begun.wait(LIMIT_S)
        [running] = lane.runs
        interrupting = threading.Thread(target=lane.interrupt_all)
        interrupting.start()
        eventually(lambda: running.interrupted_by is not None)
        goes_on.set()
        interrupting.join(LIMIT_S)
        eventually(lambda: not lane.running_count)
    assert rows() == GIVEN_BACK


def test_cancel_request_is_repeated(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes between two queries is repeated until a query has failed, and no longer: the call may clean up."""
    begun, failed, requests = threading.Event(), threading.Event(), list[bool]()
    cancel_safe = psycopg.Connection.cancel_safe

    def come_late(raw: psycopg.Connection[Any], **options: Any) -> None:
        requests.append(True)
        if len(requests) > 1:
            cancel_safe(raw, **options)
            assert failed.wait(LIMIT_S)

    def sleep_twice() -> None:
        begun.set()
        try:
            sleep()
        except OperationalError:
            failed.set()
            sleep(0.5)

    monkeypatch.setattr(psycopg.Connection, "cancel_safe", come_late)
    monkeypatch.setattr(database_threads, "REPEAT_S", 0.2)
    with work.in_lane(lambda **_: sync_to_async(sleep_twice)()) as lane:
        assert begun.wait(LIMIT_S)
        lane.interrupt_all()
        assert len(requests) == 2
    assert rows() == GIVEN_BACK


def test_second_interrupt_cancels_cleanup_query(work: Work) -> None:
    begun = threading.Semaphore(0)

    def sleep_in_transaction() -> None:
        if connection.get_autocommit():
            connection.set_autocommit(False)  # so that the thread is kept
        with transaction.atomic():
            begun.release()
            sleep()

    async def handler(**_: object) -> None:
        try:
            await sync_to_async(sleep_in_transaction)()
        finally:
            await sync_to_async(sleep_in_transaction)()

    with work.in_lane(handler) as lane:
        assert begun.acquire(timeout=LIMIT_S)
        [running] = lane.runs
        lane.interrupt(running, TimedOut)
        assert begun.acquire(timeout=LIMIT_S)
        lane.interrupt_all()
        eventually(lambda: not lane.running_count)


def test_interrupt_before_query_was_sent(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for none: hundreds that time out at once would each ask for their query until a thread is free."""
    monkeypatch.setattr(lane_module, "_INTERRUPT_S", 10 * LIMIT_S)
    goes_on = threading.Event()

    async def handler(**_: object) -> None:
        await sync_to_async(goes_on.wait)(2 * LIMIT_S)

    with work.in_lane(handler, count=2) as lane:
        runs: list[Any] = lane.runs
        calls = [run.calls for run in runs]
        eventually(lambda: any(each.has_since for each in calls) and any(each.waits_since for each in calls))
        [waiting] = [run for run in runs if run.calls.waits_since]
        interrupting = threading.Thread(target=lane.interrupt, args=(waiting, TimedOut))
        interrupting.start()
        interrupting.join(LIMIT_S)
        was_waiting = interrupting.is_alive()
        goes_on.set()
    assert not was_waiting
    assert error_classes() == ["TimedOut"]


def test_late_interrupt_cancels_nothing(database: None) -> None:
    """The end of a run has queries, too."""
    threads = DatabaseThreads(1)
    calls = RunCalls(threads, "default", lambda _: None)

    def wait() -> None:
        connection.cursor().execute("SELECT pg_advisory_lock(2711)")

    async def waited() -> None:
        await calls.submit(wait)

    seen("SELECT pg_advisory_lock(2711)")
    try:
        assert calls.end() is None
        ended = asyncio.run_coroutine_threadsafe(waited(), running_loop())
        wait_until_waiting()
        calls.may_cancel()  # of an interrupt that came just before the end, and whose turn on the loop comes now
        calls.cancel_query()
    finally:
        seen("SELECT pg_advisory_unlock(2711)")
    assert ended.result(LIMIT_S) is None
    threads.end(LIMIT_S)


class _Detached(list[Any]):
    """Wrappers of statements, off which another thread takes all between a look at them and what follows it."""

    def __contains__(self, _: object) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        found = self.copy()
        self.clear()
        return iter(found)


def test_context_closed_while_detached(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = connections["default"]
    context = ActiveContext(shared, 1)
    monkeypatch.setattr(shared, "execute_wrappers", _Detached([context]))
    assert detach_contexts(shared) == [context]
    context.close()
    assert not context.is_open


def test_runs_leave_no_cycles(work: Work) -> None:
    """Thousands wait at once, so the collector would find it late, and look at all that wait each time."""

    async def handler(**_: object) -> None:
        await Customer.objects.acount()

    work.hooks.coroutine = handler
    count = 500
    for number in (1, count):  # the first run imports, and fills caches
        tasks.async_system.enqueue_many([tasks.async_system.call()] * number)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            work.burst(concurrency=2, async_concurrency=10)
            gc.collect()
            kinds = Counter(map(type, gc.garbage))
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    # The worker and its threads are cycles, too, of a few objects of many kinds. Thousands of plain containers can be
    # left by whatever else this process does, such as reading JSON.
    assert {kind: number for kind, number in kinds.items() if number >= count and kind not in (dict, list, tuple)} == {}
    assert kinds
