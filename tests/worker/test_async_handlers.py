"""Tests that async handlers run many at once, each alone with its store, and end as the others do."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
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
from django.test import TestCase

from project.salon.models import Customer, Store
from salon_jobs import Snooze, current_job, current_store_id, tenant_context
from salon_jobs.control import cancel_jobs
from salon_jobs.core.outcomes import Cancelled, Errored, Snoozed, Succeeded
from salon_jobs.jobs import registry
from salon_jobs.jobs.options import Timeouts
from salon_jobs.jobs.task import task
from salon_jobs.testing import drain_jobs, perform_job
from salon_jobs.worker.worker import Worker, WorkerOptions
from tests import tasks
from tests.support import claim, new_store_id, run_due, running_coroutines, seen, working
from tests.waiting import eventually
from tests.worker.conftest import Busy, RunHere, RunOnThread
from tests.worker.effects import write, written

ROWS = "SELECT state, attempts, leased_by FROM salon_jobs_job ORDER BY id"
ERRORS = "SELECT attempt, error_class, code FROM salon_jobs_job_error ORDER BY id"
SHORT = timedelta(seconds=0.5)


add = sync_to_async(write)


def test_many_at_once_see_their_own_store_alone(stores: list[UUID], hooks: tasks.Hooks, process_id: int) -> None:
    """Each waits inside for all, so that their reads interleave on one loop."""
    threads, rounds, count = 4, 3, 16
    for store in stores[:2]:
        with tenant_context(store):
            write("c")
    together = asyncio.Barrier(count)
    loops: set[int] = set()
    backends: set[int] = set()
    wrong: list[object] = []

    async def handler(store_id: UUID, number: int) -> None:
        job_id = current_job().id
        loops.add(id(asyncio.get_running_loop()))
        for _ in range(rounds):
            await together.wait()
            found = {row.store.pk async for row in Customer.objects.select_related("store")}
            streamed = {
                row async for row in Customer.objects.values_list("store_id", flat=True).aiterator(chunk_size=1)
            }
            own = await Store.objects.aget()
            counted = await Customer.objects.filter(store_id=store_id).acount()
            backends.add(await sync_to_async(lambda: connection.connection.info.backend_pid)())
            in_thread = await sync_to_async(lambda: (current_store_id(), current_job().id))()
            observed = (found, streamed, own.pk, counted >= 1, current_store_id(), current_job().id, in_thread)
            if observed != ({store_id}, {store_id}, store_id, True, store_id, job_id, (store_id, job_id)):
                wrong.append(observed)
        await add(f"{number}")

    hooks.coroutine = handler
    for number in range(count):
        tasks.async_store.enqueue(store_id=stores[number % 2], number=number)
    assert Worker(process_id, WorkerOptions(concurrency=threads, burst=True), using="default").run()
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]
    assert seen(ERRORS) == []
    assert wrong == []
    rows = seen("SELECT name, store_id FROM customer WHERE name NOT LIKE 'c%%' ORDER BY name::int")
    assert rows == [(str(number), stores[number % 2]) for number in range(count)]
    assert len(loops) == 1
    assert len(backends) <= threads
    assert seen("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s)", list(backends)) == [(0,)]


def test_each_statement_outside_a_transaction_has_its_own(run_here: RunHere) -> None:
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

    outcome = run_here(handler, tasks.async_store)
    assert isinstance(outcome, Errored)
    assert (found, written()) == ([1], ["kept"])
    assert not Customer.objects.exists(), "no store is left on the connection"
    assert current_store_id() is None


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (Snooze(timedelta(minutes=5)), Snoozed),
        (LookupError("discarded by a rule of the task"), Cancelled),
        (SystemExit(3), Errored),
        (asyncio.CancelledError(), Errored),
    ],
)
def test_what_it_raises_ends_the_job_as_ever(
    run_here: RunHere, hooks: tasks.Hooks, process_id: int, raised: BaseException, kind: type[object]
) -> None:
    async def handler(**_: object) -> None:
        await asyncio.sleep(0)
        raise raised

    assert type(run_here(handler, tasks.with_async_error_rules)) is kind
    if kind is Errored:
        [(traceback,)] = seen("SELECT traceback FROM salon_jobs_job_error")
        assert "in handler\n" in traceback
    hooks.reset()
    tasks.async_system.enqueue()
    assert Succeeded in {type(outcome) for outcome in run_due(process_id)}, "the loop goes on"


async def wait(**_: object) -> None:
    await asyncio.sleep(60)


async def wait_in_a_query(**_: object) -> None:
    await sync_to_async(lambda: connection.cursor().execute("SELECT pg_sleep(60)"))()


async def swallow(**_: object) -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(60)


@pytest.mark.parametrize("body", [wait, wait_in_a_query, swallow])
def test_a_timeout_cancels_it_and_lets_it_clean_up(
    run_on_thread: RunOnThread, monkeypatch: pytest.MonkeyPatch, busy: Busy, body: Callable[..., Any]
) -> None:
    monkeypatch.setattr(tasks.async_store, "timeouts", Timeouts(timeout=SHORT))

    async def handler(**_: object) -> None:
        try:
            busy.set()
            await body()
        finally:
            await add("cleaned up")

    run_on_thread(handler, tasks.async_store)
    assert seen(ROWS) == [("queued", 1, None)]
    assert seen(ERRORS) == [(1, "salon_jobs.core.errors.TimedOut", "JOB.TIMED_OUT")]
    assert written() == ["cleaned up"]
    assert seen("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%%' AND state = 'active'") == [
        (0,)
    ]


def test_a_shutdown_cancels_it_and_counts_no_attempt(stores: list[UUID], hooks: tasks.Hooks, process_id: int) -> None:
    started = threading.Event()

    async def handler(**_: object) -> None:
        started.set()
        await asyncio.sleep(60)

    hooks.coroutine = handler
    tasks.async_store.enqueue(store_id=stores[0])
    with running_coroutines(process_id) as (lane, _):
        lane.start(claim(process_id))
        assert started.wait(10)
        lane.interrupt_all()
    assert (seen(ROWS), seen(ERRORS)) == ([("queued", 0, None)], [])


async def until_cancelled() -> None:
    while not current_job().cancelled():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("body", [wait, wait_in_a_query, swallow, until_cancelled])
def test_a_cancellation_is_shown_then_interrupts_and_lets_it_clean_up(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int, monkeypatch: pytest.MonkeyPatch, body: Callable[..., Any]
) -> None:
    grace_s = 30 if body is until_cancelled else 0.2
    monkeypatch.setattr("salon_jobs.worker.deadlines.CANCEL_GRACE_S", grace_s)
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

    hooks.coroutine = handler
    job = tasks.async_store.enqueue(store_id=stores[0])
    with working(process_id):
        assert started.wait(10)
        began = time.monotonic()
        assert cancel_jobs([job.id], using="operator")[0].changed
        eventually(lambda: seen("SELECT state FROM salon_jobs_job"), [("cancelled",)])
        assert time.monotonic() - began < 5
        # The thread, its connection and the loop serve the next one.
        hooks.reset()
        tasks.async_store.enqueue(store_id=stores[1])
        eventually(lambda: seen("SELECT state FROM salon_jobs_job"), [("cancelled",)])
    [ended] = seen("SELECT state, reason, attempts, leased_by FROM salon_jobs_job")
    assert ended == ("cancelled", "cancelled", 1, None)
    assert seen("SELECT name, store_id FROM customer") == [("cleaned up", stores[0])]
    [end] = ends
    assert end is True if body in (swallow, until_cancelled) else isinstance(end, asyncio.CancelledError)
    assert seen(ERRORS) == ([(1, "builtins.RuntimeError", "")] if body is until_cancelled else [])


def test_an_interrupt_before_the_coroutine_runs_cancels_it_too(
    database: None, hooks: tasks.Hooks, process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[object] = []

    async def handler(**_: object) -> None:
        ran.append("began")

    def make(**_: object) -> Any:
        lane.interrupt_all()
        return handler()

    hooks.coroutine = handler
    tasks.async_system.enqueue()
    monkeypatch.setattr(tasks.async_system, "function", make)
    with running_coroutines(process_id) as (lane, _):
        lane.start(claim(process_id))
    assert (ran, seen(ROWS)) == ([], [("queued", 0, None)])


def test_tasks_it_leaves_running_end_before_the_job(run_here: RunHere) -> None:
    left: list[str] = []

    async def go_on() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await add("left in order")
            left.append("ended")

    async def handler(**_: object) -> None:
        tasks_left.append(asyncio.create_task(go_on()))
        await asyncio.sleep(0)

    tasks_left: list[asyncio.Task[None]] = []
    assert type(run_here(handler, tasks.async_store)) is Succeeded
    assert (left, written()) == (["ended"], ["left in order"])


def test_what_outlives_the_job_in_a_loop_of_its_own_has_no_database_calls_of_that_job(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int
) -> None:
    kept: list[Context] = []
    count = sync_to_async(Customer.objects.count)

    async def handler(**_: object) -> None:
        assert await count() == 0
        kept.append(copy_context())

    hooks.coroutine = handler
    tasks.async_store.enqueue(store_id=stores[0])
    with running_coroutines(process_id) as (lane, _):
        lane.start(claim(process_id))
    with ThreadPoolExecutor(1) as executor, pytest.raises(RuntimeError, match="The job has ended"):
        executor.submit(kept[0].run, asyncio.run, count()).result(10)


def test_a_task_that_was_started_in_an_empty_context_serves_the_next_job_too(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int
) -> None:
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
        answers.append(await asyncio.wait_for(answer, 10))

    hooks.coroutine = handler
    for store_id in stores[:2]:
        tasks.async_store.enqueue(store_id=store_id)
    try:
        assert [type(outcome) for outcome in run_due(process_id)] == [Succeeded, Succeeded]
        assert answers == [None, None]
    finally:
        readers[0].get_loop().call_soon_threadsafe(readers[0].cancel)


def test_a_task_left_running_that_continues_when_cancelled_is_cancelled_again(
    run_on_thread: RunOnThread, monkeypatch: pytest.MonkeyPatch, busy: Busy
) -> None:
    monkeypatch.setattr(tasks.async_system, "timeouts", Timeouts(timeout=SHORT))
    tasks_left: list[asyncio.Task[None]] = []

    async def go_on() -> None:
        await swallow()
        await asyncio.sleep(60)

    async def handler(**_: object) -> None:
        tasks_left.append(asyncio.create_task(go_on()))
        await asyncio.sleep(0)
        busy.set()

    run_on_thread(handler, tasks.async_system)
    assert seen(ROWS) == [("queued", 1, None)]
    assert tasks_left[0].cancelled()


def test_a_handler_that_cancels_every_task_of_the_loop_ends_no_job_before_it_has_ended(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int
) -> None:
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
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)
            await add("cleaned up")
            [(running,)] = await sync_to_async(seen)(
                "SELECT count(*) FROM salon_jobs_job WHERE state = 'running' AND store_id = %s", store_id
            )
            found.append(running)

    hooks.coroutine = handler
    for number in range(2):
        tasks.async_store.enqueue(store_id=stores[number], number=number)
    assert Worker(process_id, WorkerOptions(concurrency=2, burst=True), using="default").run()
    assert (found, written()) == ([1], ["cleaned up"])
    assert seen(ROWS) == [("queued", 1, None)]
    assert seen(ERRORS) == [(1, "asyncio.exceptions.CancelledError", "")]


def test_an_async_generator_that_another_job_collects_ends_as_the_one_that_began_it(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int
) -> None:
    """In a cycle, it lives until the garbage collector runs, during the next job or another one at the same time."""
    both, ended = asyncio.Barrier(2), asyncio.Event()
    ended_as: list[object] = []

    async def rows() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            ended_as.append(current_store_id())
            await add("ended")
            ended.set()

    async def handler(store_id: UUID, number: int) -> None:
        if number == 0:
            generator = rows()
            assert await anext(generator) == 1
            cycle: list[object] = [generator]
            cycle.append(cycle)
            del generator, cycle
        await both.wait()
        if number == 1:
            gc.collect()
        await ended.wait()

    hooks.coroutine = handler
    for number in range(2):
        tasks.async_store.enqueue(store_id=stores[number], number=number)
    gc.disable()
    try:
        assert Worker(process_id, WorkerOptions(concurrency=2, burst=True), using="default").run()
    finally:
        gc.enable()
    assert ended_as == [stores[0]]
    assert seen("SELECT store_id FROM customer WHERE name = 'ended'") == [(stores[0],)]


def test_the_next_job_on_the_thread_does_not_find_the_loop(database: None, hooks: tasks.Hooks, process_id: int) -> None:
    loops: list[object] = []

    async def look(**_: object) -> None:
        loops.append(asyncio.get_running_loop())

    async def handler(**_: object) -> None:
        await look()
        await sync_to_async(async_to_sync(look))()

    hooks.coroutine = handler
    hooks.system = lambda **_: async_to_sync(look)()
    tasks.async_system.using(priority=-1).enqueue()
    tasks.system.enqueue()
    assert [type(outcome) for outcome in run_due(process_id)] == [Succeeded, Succeeded]
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
def test_it_waits_for_no_thread_that_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, hooks: tasks.Hooks, context: type, perform: Callable[[], object]
) -> None:
    ran_on: list[threading.Thread] = []

    async def handler(**_: object) -> None:
        await sync_to_async(lambda: ran_on.append(threading.current_thread()))()

    def test() -> None:
        perform()
        ended.set()

    hooks.coroutine = handler
    ended = threading.Event()
    monkeypatch.setattr("salon_jobs.db.internals.ThreadSensitiveContext", context)
    threading.Thread(target=test, daemon=True).start()
    assert ended.wait(10)
    assert len(ran_on) == 1


def test_finish_commits_together_with_the_last_transaction(run_here: RunHere, stores: list[UUID]) -> None:
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

    outcome = run_here(handler, tasks.async_store)
    assert isinstance(outcome, Succeeded)
    assert outcome.finished
    assert len(refused) == 1
    assert seen("SELECT id FROM store WHERE name = 'written'") == [(stores[0],)]


def test_a_def_that_returns_something_to_await_is_an_error(
    database: None, process_id: int, recwarn: pytest.WarningsRecorder
) -> None:
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
    assert [warning for warning in recwarn if "never awaited" in str(warning.message)] == []


class AsyncTasksInTestCase(TestCase):
    """The testing kit runs them from synchronous tests, on the test's connection."""

    def setUp(self) -> None:
        self.store_id = new_store_id()
        with tenant_context(self.store_id):
            Store.objects.create(id=self.store_id, name="Salon of the test")
        self.addCleanup(tasks.hooks.reset)

    def test_they_run_on_the_tests_connection(self) -> None:
        found: list[object] = []

        async def handler(**_: object) -> None:
            found.append((await Store.objects.aget()).pk)

        tasks.hooks.coroutine = handler
        tasks.async_store.enqueue(store_id=self.store_id)
        assert [type(run.outcome) for run in drain_jobs()] == [Succeeded]
        assert perform_job(tasks.async_store, store_id=self.store_id, number=7) == 7
        assert found == [self.store_id] * 2
        with pytest.raises(Store.DoesNotExist):
            perform_job(tasks.async_store, store_id=new_store_id())
        assert current_store_id() is None
        assert not Store.objects.exists(), "no store is left on the connection"
