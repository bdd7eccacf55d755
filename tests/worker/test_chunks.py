"""Tests that jobs of one store and task run in chunks, in one transaction, and one by one after a chunk that failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial, partialmethod
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction

from salon_jobs import Discard, Snooze, current_job, current_store_id, get_job
from salon_jobs.control import cancel_jobs, limit, pause
from salon_jobs.core.errors import NoCurrentJob
from salon_jobs.core.outcomes import Split, Succeeded
from salon_jobs.jobs.limits import load_limits
from salon_jobs.jobs.options import Timeouts
from salon_jobs.worker import chunk_claim as chunks_module
from salon_jobs.worker import worker as worker_module
from salon_jobs.worker.buffer import JobBuffer
from salon_jobs.worker.chunk_claim import ChunkClaimer
from salon_jobs.worker.chunks import joins_chunk
from salon_jobs.worker.maintenance import rescue_process
from tests import tasks
from tests.support import (
    change,
    chunk_of,
    claim,
    elsewhere,
    event_fields,
    leases_of,
    run_on_threads,
    running_on_a_thread,
    seen,
    wait_until_waiting,
    working,
)
from tests.tasks import Hooks, Sale
from tests.waiting import eventually
from tests.worker.conftest import Busy
from tests.worker.effects import job_events, states, write, written

ROWS = "SELECT state, attempts, leased_by FROM salon_jobs_job ORDER BY id"
ALONE = "SELECT alone FROM salon_jobs_job ORDER BY id"


def add(store_id: UUID, *numbers: int, task: Any = tasks.in_chunks) -> list[int]:
    """Enqueue one job for each number; return their ids."""
    return [handle.id for handle in task.enqueue_many(task.call(store_id, Sale(number)) for number in numbers)]


class Calls:
    """Handler that records which jobs came together, writes a row for each, and fails for some numbers."""

    def __init__(self, *bad: int, error: BaseException | None = None) -> None:
        self.calls: list[list[int]] = []
        self.bad, self.error = set(bad), error or ValueError("bad")

    def __call__(self, store_id: UUID, sales: Sequence[Sale]) -> list[int]:
        assert store_id == current_store_id()
        self.calls.append([sale.number for sale in sales])
        for sale in sales:
            write(str(sale.number))
        if self.bad & {sale.number for sale in sales}:
            raise self.error
        return [10 * sale.number for sale in sales]


def run_all(process_id: int) -> None:
    """Run what is due on a worker's thread, until nothing is."""
    while jobs := claim(process_id):
        with running_on_a_thread(process_id, jobs):
            pass


def test_jobs_of_one_store_and_task_run_together(stores: list[UUID], hooks: Hooks, process_id: int) -> None:
    hooks.store = calls = Calls()
    with transaction.atomic():
        for number in range(3):
            add(stores[0], number)
            add(stores[1], 10 + number)
            tasks.in_store.enqueue(store_id=stores[0])
    hooks.store = lambda **call: calls(**call) if "sales" in call else None
    run_all(process_id)
    assert sorted(calls.calls) == [[0, 1, 2], [10, 11, 12]]
    assert seen(ROWS) == []
    assert seen("SELECT store_id, count(*) FROM customer GROUP BY 1 ORDER BY 1") == [(stores[0], 3), (stores[1], 3)]


def test_one_bad_job_costs_the_others_no_attempt(
    stores: list[UUID], hooks: Hooks, process_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    hooks.store = calls = Calls(2)
    ids = add(stores[0], *range(4))
    run_on_threads(process_id)
    assert calls.calls == [[0, 1, 2, 3]]
    assert written() == []
    assert seen(ROWS) == [("queued", 0, None)] * 4
    assert seen(ALONE) == [(True,)] * 4
    run_all(process_id)
    assert calls.calls[1:] == [[0], [1], [2], [3]]
    assert written() == ["0", "1", "3"]
    assert seen("SELECT id, state, attempts FROM salon_jobs_job") == [(ids[2], "queued", 1)]
    [record] = [record for record in caplog.records if vars(record).get("event") == "chunk_split"]
    assert vars(record)["event_fields"] == {
        "task_name": "test-chunk",
        "job_id": ids[0],
        "store_id": stores[0],
        "attempt": 1,
        "jobs": 4,
        "queue": "default",
        "error_class": "builtins.ValueError",
        "code": "",
        "error": "bad",
    }
    assert record.exc_info is not None
    assert record.exc_info[1] is calls.error
    for job_id, fields in zip(ids, event_fields(caplog, "job_released"), strict=True):
        named = {"task_name": "test-chunk", "job_id": job_id, "store_id": stores[0], "attempt": 1}
        assert {**named, "reason": "chunk split"}.items() <= fields.items()


@pytest.mark.parametrize("error", [Snooze(timedelta(hours=1)), Discard("no")], ids=["snooze", "discard"])
def test_snooze_and_discard_are_for_the_job_that_raises_them_alone(
    stores: list[UUID], hooks: Hooks, process_id: int, error: BaseException
) -> None:
    hooks.store = Calls(1, error=error)
    add(stores[0], 0, 1, 2)
    run_all(process_id)
    assert written() == ["0", "2"]
    ended = ("queued", 0, None) if isinstance(error, Snooze) else ("cancelled", 1, None)
    assert seen(ROWS) == [ended]


@pytest.mark.parametrize("kept", [False, True], ids=["deleted", "RETAIN_SUCCEEDED"])
def test_all_finish_in_the_handlers_transaction(
    stores: list[UUID], hooks: Hooks, process_id: int, settings: Any, kept: bool
) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": 60 * kept}
    hooks.store = Calls()
    add(stores[0], 0, 1, 2)
    chunk = chunk_of(claim(process_id), process_id)
    assert chunk.execute() == Succeeded(finished=True)
    assert all(run.finished for run in chunk.runs)
    assert seen(ROWS) == [("succeeded", 1, None)] * (3 * kept)
    assert written() == ["0", "1", "2"]


def test_a_payload_that_no_longer_fits_fails_alone(stores: list[UUID], hooks: Hooks, process_id: int) -> None:
    hooks.store = calls = Calls()
    ids = add(stores[0], 0, 1, 2)
    change("""UPDATE salon_jobs_job SET payload = '{"number": "x"}' WHERE id = %s""", ids[1])
    run_all(process_id)
    assert calls.calls == [[0], [2]]
    assert seen("SELECT id, state, reason FROM salon_jobs_job") == [(ids[1], "failed", "JOB.PAYLOAD_INVALID")]


def test_a_job_that_lost_its_lease_rolls_the_chunk_back(
    stores: list[UUID], hooks: Hooks, process_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    ids = add(stores[0], 0, 1, 2)
    calls = Calls()

    def lose(**call: Any) -> None:
        calls(**call)
        if len(call["sales"]) == 3:
            change("UPDATE salon_jobs_job SET lease = lease # (1::bigint << 40) WHERE id = %s", ids[1])

    hooks.store = lose
    run_on_threads(process_id)
    assert written() == []
    assert seen(ROWS) == [("queued", 0, None), ("running", 0, process_id), ("queued", 0, None)]
    assert [fields["job_id"] for fields in event_fields(caplog, "job_lease_lost")] == [ids[1]]
    run_all(process_id)
    assert calls.calls == [[0, 1, 2], [0], [2]]


def test_a_row_that_another_transaction_has_locked_is_waited_for(
    stores: list[UUID], hooks: Hooks, process_id: int
) -> None:
    ids = add(stores[0], 0, 1)
    hooks.store = Calls()
    chunk = chunk_of(claim(process_id), process_id)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("UPDATE salon_jobs_job SET attempts = attempts WHERE id = %s", [ids[1]])
            running = elsewhere(pool, lambda: chunk_of([run.job for run in chunk.runs], process_id).execute())
            wait_until_waiting()
        assert running.result(10) == Succeeded(finished=True)
    assert seen(ROWS) == []
    assert written() == ["0", "1"]


def test_a_callback_that_fails_undoes_nothing(
    stores: list[UUID], hooks: Hooks, process_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def handler(**_: object) -> None:
        write()
        transaction.on_commit(lambda: 1 / 0)

    hooks.store = handler
    add(stores[0], 0, 1)
    run_on_threads(process_id)
    assert seen(ROWS) == []
    assert sorted(job_events(caplog)) == ["job_callback_failed", "job_succeeded", "job_succeeded"]


def test_there_is_no_current_job(stores: list[UUID], hooks: Hooks, process_id: int) -> None:
    refused: list[int] = []

    def handler(sales: Sequence[Sale], **_: object) -> None:
        with pytest.raises(NoCurrentJob, match="several jobs at once"):
            current_job()
        refused.append(len(sales))

    hooks.store = handler
    add(stores[0], 0, 1)
    run_all(process_id)
    add(stores[0], 0)
    run_all(process_id)
    assert refused == [2, 1]


def test_each_job_keeps_its_result(stores: list[UUID], hooks: Hooks, process_id: int) -> None:
    hooks.store = Calls()
    ids = add(stores[0], 1, 2, 3, task=tasks.in_chunks_with_results)
    run_all(process_id)
    assert [get_job(job_id).value for job_id in ids] == [10, 20, 30]
    hooks.store = lambda **_: [1]
    add(stores[0], 1, 2, task=tasks.in_chunks_with_results)
    run_all(process_id)
    assert seen(ROWS) == []


def test_results_must_be_one_for_each_job(stores: list[UUID], hooks: Hooks, process_id: int) -> None:
    hooks.store = lambda **_: [1, 2]
    add(stores[0], 1, 2, 3, task=tasks.in_chunks_with_results)
    outcome = chunk_of(claim(process_id), process_id).execute()
    assert isinstance(outcome, Split)
    assert str(outcome.error) == (
        "task 'test-chunk-results' keeps results: for 3 jobs it must return None, or a list of 3"
    )


def test_one_run_that_takes_too_long_is_split(
    stores: list[UUID], hooks: Hooks, process_id: int, monkeypatch: pytest.MonkeyPatch, busy: Busy
) -> None:
    monkeypatch.setattr(tasks.in_chunks, "timeouts", Timeouts(timeout=timedelta(seconds=0.2)))
    calls = Calls()

    def handler(**call: Any) -> None:
        calls(**call)
        deadline = time.monotonic() + 30
        try:
            while len(call["sales"]) > 1 and time.monotonic() < deadline:
                busy.set()
        finally:
            busy.clear()

    hooks.store = handler
    add(stores[0], 0, 1)
    run_all(process_id)
    assert calls.calls == [[0, 1], [0], [1]]
    assert written() == ["0", "1"]
    assert seen("SELECT count(*) FROM salon_jobs_job_error") == [(0,)]


def test_one_job_of_a_running_chunk_is_cancelled(
    stores: list[UUID], hooks: Hooks, process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("salon_jobs.worker.deadlines.CANCEL_GRACE_S", 0.1)
    started, calls = threading.Event(), Calls()

    def handler(**call: Any) -> None:
        calls(**call)
        started.set()
        deadline = time.monotonic() + 10
        while len(call["sales"]) == 3 and time.monotonic() < deadline:
            pass

    hooks.store = handler
    ids = add(stores[0], 0, 1, 2)
    with working(process_id):
        assert started.wait(10)
        cancel_jobs([ids[1]], using="operator")
        eventually(states, ["cancelled"])
    assert seen("SELECT id, reason, attempts FROM salon_jobs_job") == [(ids[1], "cancelled", 0)]
    assert calls.calls == [[0, 1, 2], [0, 2]]
    assert written() == ["0", "2"]


def test_a_stop_gives_the_whole_chunk_back(stores: list[UUID], hooks: Hooks, process_id: int, settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "SHUTDOWN_GRACE": 1}
    started = threading.Event()

    def handler(**call: Any) -> None:
        write()
        started.set()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            pass

    hooks.store = handler
    add(stores[0], 0, 1, 2)
    with working(process_id):
        assert started.wait(10)
    assert seen(ROWS) == [("queued", 0, None)] * 3
    assert seen(ALONE) == [(False,)] * 3
    assert written() == []


def test_a_worker_claims_more_for_a_chunk_that_begins(stores: list[UUID], hooks: Hooks, process_id: int) -> None:
    hooks.store = calls = Calls()
    with transaction.atomic():
        add(stores[0], *range(7))
        add(stores[1], 10)
    with working(process_id):
        eventually(lambda: seen(ROWS), [])
    assert sorted(calls.calls) == [[0, 1, 2, 3, 4], [5, 6], [10]]


def test_more_jobs_are_those_of_the_same_store_that_may_join(stores: list[UUID], process_id: int) -> None:
    with transaction.atomic():
        first, failed, second = add(stores[0], 0, 1, 2)
        add(stores[1], 3)
        tasks.in_chunks.using(queue="other").enqueue(stores[0], Sale(4))
    change("UPDATE salon_jobs_job SET attempts = 1 WHERE id = %s", failed)
    [job] = leases_of(process_id).claim_due(["test-chunk"], 1)
    buffer = JobBuffer(1)
    chunks = ChunkClaimer(leases_of(process_id), buffer, partial(load_limits, using="default"))
    assert [each.id for each in chunks.claim(job, 10)] == [second]
    assert (job.id, chunks.claimed) == (first, 2)
    alone = buffer.take(0)
    assert alone is not None
    assert (alone.id, buffer.has_waiting()) == (failed, False)
    assert sorted(job_id for job_id, _ in buffer.leases()) == sorted([second, failed])


def test_where_a_limit_counts_jobs_a_chunk_claims_no_more(stores: list[UUID], process_id: int) -> None:
    rules: list[Callable[[], object]] = [
        lambda: limit(task="test-chunk", max_concurrency=2),
        lambda: limit(queue="default", rate="1/h"),
        lambda: limit(store_id=stores[0], max_concurrency=2),
        lambda: pause(task="test-chunk"),
    ]
    add(stores[0], 0, 1)
    [job] = leases_of(process_id).claim_due(["test-chunk"], 1)
    for rule in rules:
        change("DELETE FROM salon_jobs_limit")
        rule()
        assert (
            ChunkClaimer(leases_of(process_id), JobBuffer(1), partial(load_limits, using="default")).claim(job, 10)
            == []
        )


def test_a_limit_counts_the_jobs_of_a_chunk(stores: list[UUID], hooks: Hooks, process_id: int) -> None:
    hooks.store = calls = Calls()
    limit(task="test-chunk", max_concurrency=2)
    add(stores[0], *range(6))
    with working(process_id):
        eventually(lambda: seen(ROWS), [])
    assert max(map(len, calls.calls)) == 2
    assert sorted(number for call in calls.calls for number in call) == list(range(6))


def test_two_processes_never_share_a_job(stores: list[UUID], process_id: int) -> None:
    add(stores[0], *range(6))
    [job] = leases_of(process_id).claim_due(["test-chunk"], 1)
    chunks = ChunkClaimer(leases_of(process_id), JobBuffer(1), partial(load_limits, using="default"))
    with transaction.atomic():
        mine = chunks.claim(job, 3)
        with ThreadPoolExecutor(1) as pool:
            theirs = elsewhere(pool, lambda: chunks.claim(job, 10)).result(10)
    ids = [each.id for each in (job, *mine, *theirs)]
    assert len(ids) == len(set(ids)) == 6


def test_a_claim_that_hangs_holds_up_neither_other_chunks_nor_the_worker(
    stores: list[UUID], hooks: Hooks, process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (chunks_module, worker_module):
        monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    monkeypatch.setattr(worker_module, "_SWEEP_S", 0.0)
    hooks.store = calls = Calls()
    monkeypatch.setattr(ChunkClaimer, "__init__", partialmethod(hanging, ChunkClaimer.__init__))
    with working(process_id):
        add(stores[0], 0)
        eventually(lambda: seen(ROWS), [])
        add(stores[1], 1)
        eventually(lambda: seen(ROWS), [])
    assert calls.calls == [[0], [1]]


def hanging(claimer: ChunkClaimer, create: Callable[..., None], *arguments: Any) -> None:
    """Create a claimer one of whose claims never gets its answer."""
    create(claimer, *arguments)
    claimer.lock.acquire()


def test_the_jobs_of_a_process_that_died_join_no_chunk(stores: list[UUID], process_id: int) -> None:
    ids = add(stores[0], 0, 1)
    tasks.in_store.enqueue(store_id=stores[0])
    claim(process_id)
    rescue_process(process_id, None, charged=[ids[0]], using="default")
    assert seen("SELECT rescues, attempts FROM salon_jobs_job ORDER BY id") == [(1, 0), (0, 0), (0, 0)]
    assert seen(ALONE) == [(True,), (True,), (False,)]


def test_who_may_join(stores: list[UUID], process_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    add(stores[0], 0)
    [job] = claim(process_id)
    assert joins_chunk(tasks.in_chunks, job)
    assert not joins_chunk(tasks.in_store, job)
    for alone in ({"attempts": 1}, {"expired": True}, {"alone": True}, {"payload": ""}):
        assert not joins_chunk(tasks.in_chunks, job._replace(**alone)), "a large payload is read later"
    monkeypatch.setattr(tasks.in_chunks, "timeouts", Timeouts(wait_timeout=timedelta(seconds=1)))
    assert joins_chunk(tasks.in_chunks, job._replace(due_at=time.monotonic()))
    assert not joins_chunk(tasks.in_chunks, job._replace(due_at=time.monotonic() - 2))
