"""Async handlers run many at once, each alone with its store, and end as the others do."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, transaction

from project.salon.models import Customer, Store
from salon_jobs import Retry, Snooze, aemit, current_job, current_store_id, emit, tenant_context
from salon_jobs.control import cancel_jobs
from salon_jobs.core.errors import EmitRefused
from salon_jobs.core.outcomes import Cancelled, Errored, Snoozed, Succeeded
from salon_jobs.jobs import registry
from salon_jobs.jobs.task import task
from salon_jobs.testing import perform_job
from tests import tasks
from tests.support import run_due, seen
from tests.waiting import LIMIT_S, eventually
from tests.worker.conftest import Busy
from tests.worker.effects import write, written
from tests.worker.work import SLEEPING, Work, error_classes, errors, rows, states

SHORT = timedelta(seconds=0.2)
add = sync_to_async(write)


def test_each_sees_its_own_store(work: Work) -> None:
    """Each waits inside for all, so that their reads interleave on one loop."""
    count, stores = 16, work.stores
    for store in stores[:2]:
        with tenant_context(store):
            write("c")
    together = asyncio.Barrier(count)
    loops: set[int] = set()
    wrong: list[object] = []

    async def handler(store_id: UUID, number: int) -> None:
        job_id = current_job().id
        loops.add(id(asyncio.get_running_loop()))
        for _ in range(3):
            await together.wait()
            found = {row.store.pk async for row in Customer.objects.select_related("store")}
            streamed = {
                row async for row in Customer.objects.values_list("store_id", flat=True).aiterator(chunk_size=1)
            }
            own = await Store.objects.aget()
            counted = await Customer.objects.filter(store_id=store_id).acount()
            in_thread = await sync_to_async(lambda: (current_store_id(), current_job().id))()
            observed = (found, streamed, own.pk, counted >= 1, current_store_id(), current_job().id, in_thread)
            if observed != ({store_id}, {store_id}, store_id, True, store_id, job_id, (store_id, job_id)):
                wrong.append(observed)
        await add(f"{number}")

    for number in range(count):
        work.add(handler, tasks.async_store, store=number % 2, number=number)
    work.burst(concurrency=4)
    assert (rows(), errors(), wrong) == ([], [], [])
    customers = seen("SELECT name, store_id FROM customer WHERE name NOT LIKE 'c%%' ORDER BY name::int")
    assert customers == [(str(number), stores[number % 2]) for number in range(count)]
    assert len(loops) == 1


def test_message_is_of_the_jobs_store(work: Work) -> None:
    """But for a thread that has the store's name alone: its connection has none."""

    def emit_in_a_transaction() -> None:
        with transaction.atomic():
            emit("rn::memory:::orders", event="e", payload={})

    async def handler(store_id: UUID, number: int) -> None:
        await sync_to_async(emit_in_a_transaction)()
        async with tenant_context(store_id):
            await aemit("rn::memory:::orders", event="e", payload={})
        with pytest.raises(EmitRefused, match="carry_store"):
            await asyncio.to_thread(emit_in_a_transaction)

    for number in range(4):
        work.add(handler, tasks.async_store, store=number % 2, number=number)
    work.burst(concurrency=2)
    assert (rows(), errors()) == ([], [])
    found = seen("SELECT store_id, count(*) FROM salon_jobs_message GROUP BY 1 ORDER BY 1")
    assert found == [(store, 4) for store in work.stores[:2]]


def test_statements_outside_transactions(work: Work) -> None:
    """Each has a transaction of its own."""
    found: list[object] = []

    @sync_to_async
    def fail_in_a_transaction() -> None:
        with transaction.atomic():
            write("undone")
            raise ValueError

    async def handler(**_: object) -> None:
        await add("kept")
        with suppress(ValueError):
            await fail_in_a_transaction()
        found.append(await Customer.objects.acount())
        raise RuntimeError("late")

    assert isinstance(work.run(handler, tasks.async_store), Errored)
    assert (found, written()) == ([1], ["kept"])
    assert not Customer.objects.exists(), "no store is left on the connection"
    assert current_store_id() is None


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (Snooze(timedelta(minutes=5)), Snoozed),
        (LookupError("discarded by a rule of the task"), Cancelled),
        (SystemExit(3), Errored),
        (Retry(timedelta(minutes=5)), Errored),
        (asyncio.CancelledError(), Errored),
    ],
)
def test_raised_exception_decides_outcome(work: Work, raised: BaseException, kind: type[object]) -> None:
    async def handler(**_: object) -> None:
        await asyncio.sleep(0)
        raise raised

    assert type(work.run(handler, tasks.with_async_error_rules)) is kind
    if kind is Errored:
        [(traceback,)] = seen("SELECT traceback FROM salon_jobs_job_error")
        assert "in handler\n" in traceback
    work.hooks.reset()
    work.add(None, tasks.async_system)
    assert Succeeded in {type(outcome) for outcome in work.run_due()}, "the loop goes on"


async def wait(**_: object) -> None:
    await asyncio.Event().wait()


async def wait_in_a_query(**_: object) -> None:
    await sync_to_async(lambda: connection.cursor().execute("SELECT pg_sleep(600)"))()


async def swallow(**_: object) -> None:
    with suppress(asyncio.CancelledError):
        await wait()


async def until_cancelled() -> None:
    while not current_job().cancelled():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("body", [wait, wait_in_a_query, swallow])
def test_timeout_cancels_coroutine(
    work: Work, limit_runs: Callable[..., None], busy: Busy, body: Callable[..., Any]
) -> None:
    limit_runs(timeout=SHORT)

    async def handler(**_: object) -> None:
        try:
            busy.set()
            await body()
        finally:
            await add("cleaned up")

    work.run_on_thread(handler, tasks.async_store)
    assert rows() == [("queued", 1, None)]
    assert errors() == [(1, "salon_jobs.core.errors.TimedOut", "JOB.TIMED_OUT")]
    [(message,)] = seen("SELECT message FROM salon_jobs_job_error")
    assert ("the handler went on" in message) is (body is swallow)
    assert written() == ["cleaned up"]
    assert seen(SLEEPING) == [(0,)]


@pytest.mark.parametrize("body", [wait, wait_in_a_query, swallow, until_cancelled])
def test_cancellation_of_coroutine(work: Work, monkeypatch: pytest.MonkeyPatch, body: Callable[..., Any]) -> None:
    """It is shown, then interrupts, and lets the coroutine clean up; thread, connection and loop serve the next one."""
    monkeypatch.setattr("salon_jobs.worker.deadlines.CANCEL_GRACE_S", 600 if body is until_cancelled else 0.2)
    started = threading.Event()
    ends: list[object] = []

    async def handler(**_: object) -> None:
        started.set()
        try:
            await body()
            ends.append(current_job().cancelled())
            if body is until_cancelled:
                raise RuntimeError("as you wish")
        except asyncio.CancelledError as error:
            ends.append(error)
            raise
        finally:
            await add("cleaned up")

    job_id = work.add(handler, tasks.async_store)
    with work.working():
        assert started.wait(LIMIT_S)
        assert cancel_jobs([job_id], using="operator")[0].changed
        eventually(states, ["cancelled"])
        work.hooks.reset()
        work.add(None, tasks.async_store, store=1)
        eventually(states, ["cancelled"])
    ended = seen("SELECT state, reason, attempts, leased_by FROM salon_jobs_job")
    assert ended == [("cancelled", "cancelled", 1, None)]
    assert seen("SELECT name, store_id FROM customer") == [("cleaned up", work.stores[0])]
    [end] = ends
    assert end is True if body in (swallow, until_cancelled) else isinstance(end, asyncio.CancelledError)
    assert error_classes() == ["RuntimeError"] * (body is until_cancelled)


def test_interrupt_before_coroutine_begins(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[object] = []

    async def handler(**_: object) -> None:
        ran.append("began")

    def make(**_: object) -> Any:
        lane[0].interrupt_all()
        return handler()

    lane: list[Any] = []
    monkeypatch.setattr(tasks.async_system, "function", make)
    with work.in_lane(handler, count=0) as empty:
        lane.append(empty)
        work.add(handler, tasks.async_system)
        empty.start(work.claim())
    assert (ran, rows()) == ([], [("queued", 0, None)])


def test_leftover_tasks_end_before_job(work: Work) -> None:
    left: list[object] = []

    async def go_on() -> None:
        try:
            await wait()
        finally:
            await add("left in order")
            left.append("ended")

    async def handler(**_: object) -> None:
        left.append(asyncio.create_task(go_on()))
        await asyncio.sleep(0)

    assert isinstance(work.run(handler, tasks.async_store), Succeeded)
    assert (left[1:], written()) == (["ended"], ["left in order"])


def test_context_outliving_job(work: Work) -> None:
    """In a loop of its own it has no database calls of that job."""
    kept: list[Context] = []
    count = sync_to_async(Customer.objects.count)

    async def handler(**_: object) -> None:
        assert await count() == 0
        kept.append(copy_context())

    with work.in_lane(handler, tasks.async_store):
        pass
    with ThreadPoolExecutor(1) as executor, pytest.raises(RuntimeError, match="The job has ended"):
        executor.submit(kept[0].run, asyncio.run, count()).result(LIMIT_S)


def test_task_in_empty_context(work: Work) -> None:
    """It is of no job, and serves the next one too."""
    asked: asyncio.Queue[asyncio.Future[UUID | None]]
    readers: list[asyncio.Task[None]] = []
    answers: list[UUID | None] = []

    async def read_for_ever() -> None:
        while True:
            (await asked.get()).set_result(current_store_id())

    async def handler(**_: object) -> None:
        nonlocal asked
        loop = asyncio.get_running_loop()
        if not readers:
            asked = asyncio.Queue()
            readers.append(loop.create_task(read_for_ever(), context=Context()))
        answer: asyncio.Future[UUID | None] = loop.create_future()
        asked.put_nowait(answer)
        answers.append(await asyncio.wait_for(answer, LIMIT_S))

    for store in range(2):
        work.add(handler, tasks.async_store, store=store)
    try:
        assert [type(outcome) for outcome in work.run_due()] == [Succeeded, Succeeded]
        assert answers == [None, None]
    finally:
        readers[0].get_loop().call_soon_threadsafe(readers[0].cancel)


def test_leftover_task_is_cancelled_again(work: Work, limit_runs: Callable[..., None], busy: Busy) -> None:
    """It went on when it was cancelled first."""
    limit_runs(timeout=SHORT)
    tasks_left: list[asyncio.Task[None]] = []

    async def go_on() -> None:
        await swallow()
        await wait()

    async def handler(**_: object) -> None:
        tasks_left.append(asyncio.create_task(go_on()))
        await asyncio.sleep(0)
        busy.set()

    work.run_on_thread(handler, tasks.async_system)
    assert rows() == [("queued", 1, None)]
    assert tasks_left[0].cancelled()


def test_handler_cancels_all_tasks(work: Work) -> None:
    """The other job fails, since its task was cancelled; it is not given back while it still cleans up."""
    inside = asyncio.Event()
    found: list[int] = []

    async def handler(store_id: UUID, number: int) -> None:
        if number == 0:
            await inside.wait()
            for each in asyncio.all_tasks() - {asyncio.current_task()}:
                each.cancel()
            await asyncio.sleep(0.05)
            return
        try:
            inside.set()
            await wait()
        finally:
            await asyncio.sleep(0.1)
            await add("cleaned up")
            running = "SELECT count(*) FROM salon_jobs_job WHERE state = 'running' AND store_id = %s"
            found.append((await sync_to_async(seen)(running, store_id))[0][0])

    for number in range(2):
        work.add(handler, tasks.async_store, store=number, number=number)
    work.burst(concurrency=2)
    assert (found, written()) == ([1], ["cleaned up"])
    assert rows() == [("queued", 1, None)]
    assert errors() == [(1, "asyncio.exceptions.CancelledError", "")]


def test_async_generator_collected_by_another_job(work: Work) -> None:
    """In a cycle, it lives until the garbage collector runs; it ends as the job that began it."""
    both, ended = asyncio.Barrier(2), asyncio.Event()
    ended_as: list[object] = []

    async def numbers() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            ended_as.append(current_store_id())
            await add("ended")
            ended.set()

    async def handler(store_id: UUID, number: int) -> None:
        if number == 0:
            generator = numbers()
            assert await anext(generator) == 1
            cycle: list[object] = [generator]
            cycle.append(cycle)
            del generator, cycle
        await both.wait()
        if number == 1:
            gc.collect()
        await ended.wait()

    for number in range(2):
        work.add(handler, tasks.async_store, store=number, number=number)
    gc.disable()
    try:
        work.burst(concurrency=2)
    finally:
        gc.enable()
    assert ended_as == [work.stores[0]]
    assert seen("SELECT store_id FROM customer WHERE name = 'ended'") == [(work.stores[0],)]


def test_next_job_finds_no_loop(work: Work) -> None:
    loops: list[object] = []

    async def look(**_: object) -> None:
        loops.append(asyncio.get_running_loop())

    async def handler(**_: object) -> None:
        await look()
        await sync_to_async(async_to_sync(look))()

    work.add(handler, tasks.async_system.using(priority=-1))
    work.add(None, tasks.system)
    work.hooks.system = lambda **_: async_to_sync(look)()
    assert [type(outcome) for outcome in work.run_due()] == [Succeeded, Succeeded]
    assert loops[0] is loops[1]
    assert loops[2] is not loops[0]


class _AsInOlderAsgiref(ThreadSensitiveContext):
    """Takes no executor, and does nothing inside another one."""

    def __init__(self) -> None:
        super().__init__()


async def _perform_inside() -> object:
    async with ThreadSensitiveContext():
        return await sync_to_async(partial(perform_job, tasks.async_system))()


@pytest.mark.parametrize("context", [ThreadSensitiveContext, _AsInOlderAsgiref])
@pytest.mark.parametrize(
    "perform",
    [async_to_sync(sync_to_async(partial(perform_job, tasks.async_system))), lambda: asyncio.run(_perform_inside())],
    ids=["in async_to_sync", "in a thread sensitive context"],
)
def test_no_wait_for_a_waiting_thread(
    monkeypatch: pytest.MonkeyPatch, hooks: tasks.Hooks, context: type, perform: Callable[[], object]
) -> None:
    ran_on: list[threading.Thread] = []

    async def handler(**_: object) -> None:
        await sync_to_async(lambda: ran_on.append(threading.current_thread()))()

    hooks.coroutine = handler
    monkeypatch.setattr("salon_jobs.db.internals.ThreadSensitiveContext", context)
    thread = threading.Thread(target=perform, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert len(ran_on) == 1


def test_finish_in_last_transaction(work: Work) -> None:
    refused: list[object] = []

    @sync_to_async
    def end() -> None:
        with transaction.atomic():
            Store.objects.update(name="written")
            current_job().finish()

    async def handler(**_: object) -> None:
        try:
            current_job().finish()
        except SynchronousOnlyOperation as error:
            refused.append(error)
        await end()

    assert work.run(handler, tasks.async_store) == Succeeded(finished=True)
    assert len(refused) == 1
    assert seen("SELECT id FROM store WHERE name = 'written'") == [(work.stores[0],)]


def test_plain_function_returning_awaitable(process_id: int, recwarn: pytest.WarningsRecorder) -> None:
    async def inner() -> None: ...

    @task(name="test-declared-here")
    def forgets_to_await() -> Any:
        return inner()

    try:
        forgets_to_await.enqueue()
        [outcome] = run_due(process_id)
    finally:
        registry.unregister("test-declared-here")
    assert isinstance(outcome, Errored)
    assert "declare its handler with async def" in str(outcome.error)
    # Of other tests' coroutines the collector may warn at any time.
    never_awaited = rf"'{inner.__qualname__}' was never awaited"
    assert not [warning for warning in recwarn if never_awaited in str(warning.message)]
