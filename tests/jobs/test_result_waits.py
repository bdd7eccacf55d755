"""Tests of waiting for the end of a job: what it returns or raises, what wakes it, and what it leaves alone."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction

from salon_jobs import Discard, current_job, flow, tenant_context
from salon_jobs.backend import await_result, wait
from salon_jobs.core.errors import (
    FlowInvalid,
    JobCancelled,
    JobDoesNotExist,
    JobFailed,
    NoResult,
    OptionInvalid,
    WaitRefused,
    WaitTimedOut,
)
from salon_jobs.core.records import EnqueueAction, JobState
from salon_jobs.jobs import JobHandle, result_waits
from salon_jobs.jobs.flows import Flow, get_flow
from salon_jobs.jobs.result_waits import AwaitedJobs, awaited
from salon_jobs.testing import drain_jobs
from salon_jobs.worker import finisher
from salon_jobs.worker.worker import Worker
from tests import tasks
from tests.backend import calls
from tests.inside import has_answer_listener, is_told_to_workers, waits_begun
from tests.support import in_thread, run_due, seen, working
from tests.tasks import Hooks
from tests.waiting import LIMIT_S, eventually

LISTENERS = (
    "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
    " AND query ~ 'LISTEN .salon_jobs_ended|NOTIFY salon_jobs_job, .awaited'"
)


@pytest.fixture(autouse=True)
def looking_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave waiting to notifications, and each test without a listener of another, nor what another waited for."""
    monkeypatch.setattr(result_waits, "_LISTENS_ON_FOR_S", 0.0)
    monkeypatch.setattr(result_waits, "_FIRST_LOOKS_S", (60.0,))
    monkeypatch.setattr(result_waits, "_DEAF_LOOK_EVERY_S", 60.0)
    eventually(lambda: not has_answer_listener())
    awaited.until.clear()
    yield
    eventually(lambda: not has_answer_listener())


def on_a_thread(handle: JobHandle) -> Any:
    """Wait on a thread of its own; return what the job returned, or the kind and the text of what was raised."""
    try:
        return handle.wait(timedelta(seconds=LIMIT_S))
    except (JobFailed, JobCancelled) as error:
        return type(error), str(error)
    finally:
        connections.close_all()


@contextmanager
def listening_worker(process_id: int, concurrency: int = 1) -> Iterator[Worker]:
    """Run a worker that hears who waits."""
    with working(process_id, concurrency) as worker:
        eventually(lambda: worker.facts()["listening"] is True)
        yield worker


async def closing(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await work
    finally:
        await sync_to_async(connections.close_all)()


def test_every_end_wakes_all_waiters(process_id: int, hooks: Hooks, stores: list[UUID]) -> None:
    """Threads and coroutines hear of it by one connection."""
    known = threading.Event()
    returned = {"returned": {"note": "returned"}, "failed": ValueError("no such card"), "discarded": Discard("gone")}

    def when_awaited(note: str = "", **_: object) -> Any:
        known.wait(LIMIT_S)
        result = returned.get(note)
        if isinstance(result, Exception):
            raise result
        return result

    hooks.system = hooks.store = when_awaited
    handles = [
        tasks.kept_result.enqueue(note="returned"),
        tasks.system.enqueue(note="returned"),
        tasks.in_store.enqueue(store_id=stores[0]),
        tasks.system.using(max_attempts=1).enqueue(note="failed"),
        tasks.kept_result.enqueue(note="discarded"),
    ]
    failed, discarded = (handle.id for handle in handles[3:])
    ends = [
        {"note": "returned"},
        None,
        None,
        (JobFailed, f"job {failed} of task 'test-system' failed: builtins.ValueError: no such card"),
        (JobCancelled, f"job {discarded} of task 'test-kept-result' was cancelled: discarded: gone"),
    ]

    def known_to_the_worker() -> None:
        eventually(waits_begun, 2 * len(handles))
        eventually(lambda: is_told_to_workers(0) and len(seen(LISTENERS)), 1)

    async def await_all() -> list[Any]:
        waits = [asyncio.ensure_future(handle.await_result(LIMIT_S)) for handle in handles]
        await asyncio.to_thread(in_thread, known_to_the_worker)
        known.set()
        ended = await asyncio.gather(*waits, return_exceptions=True)
        return [(type(end), str(end)) if isinstance(end, Exception) else end for end in ended]

    with listening_worker(process_id, 5), ThreadPoolExecutor(5) as threads:
        waits = [threads.submit(on_a_thread, handle) for handle in handles]
        assert asyncio.run(closing(await_all())) == ends
        assert [each.result() for each in waits] == ends
    # Forgotten with its end, save what was named again after that, as all are at intervals.
    assert len(awaited.until.keys() - {"0"}) < len(handles)


def test_awaited_end_is_written_at_once(process_id: int, hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait to be written together."""
    monkeypatch.setattr(finisher, "_GATHER_S", LIMIT_S)
    both, known = threading.Barrier(2), threading.Event()

    def handler(note: str) -> object:
        both.wait(LIMIT_S)  # the end of a job that runs alone would be written at once
        return 7 if note else known.wait(LIMIT_S)

    hooks.system = handler
    tasks.system.enqueue()
    handle = tasks.kept_result.enqueue(note="ends")
    with listening_worker(process_id, 2) as worker:
        eventually(worker.finisher.unwritten_ids)
        assert handle.refresh().state is JobState.RUNNING
        assert handle.wait(LIMIT_S) == 7
        known.set()


def test_only_end_is_written_at_once(process_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finisher, "_GATHER_S", 60.0)
    tasks.system.enqueue()
    with working(process_id):
        eventually(lambda: not seen("SELECT FROM salon_jobs_job"))


@pytest.mark.parametrize("listens", [True, False])
def test_looking_replaces_lost_notification(
    process_id: int, settings: Any, monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "LISTEN": listens}
    monkeypatch.setattr(AwaitedJobs, "announce", lambda *_, **__: None)
    monkeypatch.setattr(result_waits, "_FIRST_LOOKS_S", ())
    monkeypatch.setattr(result_waits, "_LOOK_EVERY_S" if listens else "_DEAF_LOOK_EVERY_S", 0.2)
    handle = tasks.kept_result.enqueue()
    with working(process_id):
        assert handle.wait(LIMIT_S) is None
    awaited.until.clear()


def test_wait_for_ended_and_lasting_jobs(process_id: int, hooks: Hooks) -> None:
    """What has ended needs no listener; what lasts times out."""
    hooks.system = lambda **_: 7
    kept, plain = tasks.kept_result.enqueue(), tasks.system.enqueue()
    run_due(process_id)
    with transaction.atomic():
        assert (kept.wait(0), plain.wait(0)) == (7, None)
    assert not has_answer_listener()
    with pytest.raises(WaitTimedOut, match=r"is still queued after 0\.01 s"):
        tasks.system.enqueue().wait(0.01)
    for nonsense in ("soon", None):
        with pytest.raises(OptionInvalid, match="timeout must be a timedelta or seconds"):
            kept.wait(nonsense)  # type: ignore[arg-type]


@pytest.mark.parametrize("inside", [nullcontext, transaction.atomic])
def test_wait_in_enqueuing_transaction_is_refused(process_id: int, inside: Callable[[], Any]) -> None:
    with transaction.atomic():
        with inside():
            own = tasks.kept_result.enqueue()
        committed = in_thread(lambda: tasks.keyed_system.enqueue(note="x"))
        with pytest.raises(WaitRefused, match=f"this transaction has enqueued job {own.id}, .* would never end"):
            own.wait(LIMIT_S)
        with pytest.raises(WaitTimedOut):
            committed.wait(0)
        assert own.refresh().is_uncommitted
        assert tasks.keyed_system.enqueue(note="x").action is EnqueueAction.REPLACED
        with pytest.raises(WaitRefused):
            committed.wait(0)
    assert not own.refresh().is_uncommitted


def test_role_and_store_limit_waiting(process_id: int, hooks: Hooks, stores: list[UUID], settings: Any) -> None:
    hooks.system, hooks.store = lambda **_: 3, lambda **_: 4
    of_store = tasks.in_store.enqueue(store_id=stores[0])
    kept, system = tasks.kept_result_in_store.enqueue(store_id=stores[0]), tasks.kept_result.enqueue()
    of_django = calls.add.enqueue(1, 2)
    run_due(process_id)
    settings.SALON_JOBS = {**settings.SALON_JOBS, "DATABASE": "web"}
    assert wait(of_django, 0) == asyncio.run(closing(await_result(of_django, 0))) == 3
    for unseen in (of_store, kept, system):
        with pytest.raises(JobDoesNotExist, match="cannot be seen: with roles, wait for a store's job as that store"):
            unseen.wait(0)
    with tenant_context(stores[0]):
        assert (of_store.wait(0), kept.wait(0)) == (None, 4)
        waiting = tasks.in_store.enqueue(store_id=stores[0])
    with tenant_context(stores[0], atomic=False):
        assert (of_store.wait(0), kept.wait(0), waiting.status()) == (None, 4, JobState.QUEUED)
        with pytest.raises(WaitTimedOut):
            waiting.wait(0)


def outcomes(flow: Flow, timeout: float = 0) -> list[str | None]:
    """Wait on a thread of its own."""
    try:
        return [member.outcome for member in flow.wait(timeout)]
    finally:
        connections.close_all()


def test_ends_of_members_wake_who_waits(process_id: int, hooks: Hooks) -> None:
    """Each run in its turn; a member that is skipped has no run, so its end is not announced."""
    known = {number: threading.Event() for number in (1, 2)}
    hooks.system = lambda number: known[number].wait(LIMIT_S) and None
    with flow("order") as order:
        first = order.add(tasks.in_flow.call(1))
        second = order.add(tasks.in_flow.call(2), after=first)
        order.add(tasks.in_flow.call(3), after=[first, second], when="failed")

    async def ends() -> list[str | None]:
        return [member.outcome for member in await order.await_members(LIMIT_S)]

    with listening_worker(process_id), ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(outcomes, order, LIMIT_S), threads.submit(lambda: asyncio.run(closing(ends())))]
        for number, member in ((1, first), (2, second)):
            eventually(partial(awaited.holds, [member.id]))
            known[number].set()
        assert [wait.result() for wait in waits] == [["succeeded", "succeeded", "skipped"]] * 2
    assert get_flow(order.id or 0).results_of(tasks.in_flow) == [1, 2]
    with pytest.raises(FlowInvalid, match="this flow has 2 of 'test-flow': use results_of"):
        order.result_of(tasks.in_flow)
    with pytest.raises(NoResult, match="this flow has no 'test-kept-result' that succeeded"):
        order.result_of(tasks.kept_result)


def test_wait_for_lasting_flow(process_id: int, hooks: Hooks) -> None:
    """It is refused where it would never end: in the enqueuing transaction, before that, and in a member."""
    refused: list[str] = []

    def wait_for_own_flow(number: int) -> None:
        with pytest.raises(FlowInvalid) as error:
            current_job().flow.wait(LIMIT_S)
        refused.append(str(error.value))
        raise ValueError("no such card")

    hooks.system = wait_for_own_flow
    with transaction.atomic():
        with flow("order") as order:
            first = order.add(tasks.in_flow.call(1))
            order.add(tasks.in_flow.call(2), after=first)
            with pytest.raises(FlowInvalid, match="has no members yet: they are enqueued at the end of its with block"):
                order.wait(LIMIT_S)
        with pytest.raises(WaitRefused, match=f"this transaction has enqueued job {first.id}, "):
            order.wait(LIMIT_S)
    with pytest.raises(WaitTimedOut, match=f"job {first.id} is still queued after 0 s"):
        order.wait(0)
    drain_jobs(raise_errors=False)
    assert outcomes(order) == ["failed", "skipped"]
    assert refused == ["a member would wait for its own end: add one that comes after those that it needs"]


def test_store_limits_waiting_for_flows(process_id: int, hooks: Hooks, stores: list[UUID], settings: Any) -> None:
    """Its own store sees it, even between two transactions."""
    hooks.store = lambda **_: 4
    with tenant_context(stores[0]), flow("order") as order:
        order.add(tasks.kept_result_in_store.call(store_id=stores[0]))
    run_due(process_id)
    settings.SALON_JOBS = {**settings.SALON_JOBS, "DATABASE": "web"}
    unseen = "wait for a flow as the store that it belongs to"
    for atomic in (True, False):
        with tenant_context(stores[0], atomic=atomic):
            seen_flow = get_flow(order.id or 0)
            assert [member.outcome for member in seen_flow.wait(0)] == ["succeeded"]
            assert seen_flow.result_of(tasks.kept_result_in_store) == 4
        with tenant_context(stores[1], atomic=atomic), pytest.raises(JobDoesNotExist, match=unseen):
            seen_flow.wait(0)
    with pytest.raises(JobDoesNotExist, match=unseen):
        seen_flow.wait(0)


def test_fork_listens_anew(process_id: int, hooks: Hooks) -> None:
    go_on = threading.Event()

    def when_awaited(note: str) -> str:
        eventually(lambda: awaited.holds([current_job().id]))
        go_on.wait(LIMIT_S)
        return note

    hooks.system = when_awaited
    with listening_worker(process_id), ThreadPoolExecutor(1) as threads:
        first = threads.submit(on_a_thread, tasks.kept_result.enqueue(note="before"))
        eventually(lambda: result_waits._waiters.listening)
        if not (child := os.fork()):
            os._exit(has_answer_listener())
        assert os.waitpid(child, 0)[1] == 0
        go_on.set()
        assert first.result() == "before"
        assert on_a_thread(tasks.kept_result.enqueue(note="after")) == "after"


def test_remembered_jobs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_waits, "_MOST_REMEMBERED", 3)
    jobs = AwaitedJobs()
    jobs.remember(f"awaited 1 2 x {'9' * 5000}")
    jobs.remember("awaited 3")
    assert jobs.holds([0, 2])
    assert not jobs.holds([3])
    monkeypatch.setattr(result_waits, "_REMEMBERED_S", -1.0)
    jobs = AwaitedJobs()
    jobs.remember("awaited 1")
    jobs.remember("awaited")
    assert not jobs.until
