"""Jobs of one store and task run in chunks, in one transaction, and one by one after a chunk that failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial, partialmethod
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction

from salon_jobs import Discard, Retry, Snooze, current_job, current_store_id, get_job
from salon_jobs.control import cancel_jobs, limit, pause
from salon_jobs.core.errors import NoCurrentJob
from salon_jobs.core.outcomes import Split, Succeeded
from salon_jobs.dashboard.processes import processes
from salon_jobs.jobs.limits import load_limits
from salon_jobs.jobs.options import ErrorRules, Timeouts
from salon_jobs.worker import chunk_claim as chunks_module
from salon_jobs.worker import worker as worker_module
from salon_jobs.worker.buffer import JobBuffer
from salon_jobs.worker.chunk_claim import ChunkClaimer
from salon_jobs.worker.chunks import can_join_chunk
from salon_jobs.worker.executor import execute
from salon_jobs.worker.maintenance import rescue_process
from tests import tasks
from tests.support import (
    another_process,
    behind_transaction,
    change,
    chunk_of,
    claim,
    in_thread,
    leases_of,
    row_of,
    seen,
)
from tests.tasks import Sale
from tests.waiting import LIMIT_S, eventually
from tests.worker.conftest import Busy
from tests.worker.effects import spin, write, written
from tests.worker.work import Work, error_classes, rows, states

ALONE = "SELECT alone FROM salon_jobs_job ORDER BY id"
WAITS = ("queued", 0, None)


class Calls:
    """Handler that records which jobs came together, writes a row for each, and fails for some numbers."""

    def __init__(self, work: Work, *bad: int, error: BaseException | None = None) -> None:
        self.calls: list[list[int]] = []
        self.bad, self.error = set(bad), error or ValueError("bad")
        work.hooks.store = self

    def __call__(self, store_id: UUID, sales: Sequence[Sale]) -> list[int]:
        assert store_id == current_store_id()
        self.calls.append([sale.number for sale in sales])
        for sale in sales:
            write(str(sale.number))
        if self.bad & {sale.number for sale in sales}:
            raise self.error
        return [10 * sale.number for sale in sales]


def add(store_id: UUID, *numbers: int, task: Any = tasks.in_chunks) -> list[int]:
    """Enqueue one job for each number; return their ids."""
    return [handle.id for handle in task.enqueue_many(task.call(store_id, Sale(number)) for number in numbers)]


def run_all(work: Work) -> None:
    """Run what is due on a worker's thread, until nothing is."""
    with work.on_thread() as runner:
        while jobs := work.claim():
            runner.end_all(jobs)


def claimer_of(process_id: int, buffer: JobBuffer | None = None) -> ChunkClaimer:
    return ChunkClaimer(leases_of(process_id), buffer or JobBuffer(1), partial(load_limits, using="default"))


def test_same_store_and_task_run_together(work: Work) -> None:
    calls, stores = Calls(work), work.stores
    with transaction.atomic():
        for number in range(3):
            add(stores[0], number)
            add(stores[1], 10 + number)
            tasks.in_store.enqueue(store_id=stores[0])
    work.hooks.store = lambda **call: calls(**call) if "sales" in call else None
    run_all(work)
    assert sorted(calls.calls) == [[0, 1, 2], [10, 11, 12]]
    assert rows() == []
    assert seen("SELECT store_id, count(*) FROM customer GROUP BY 1 ORDER BY 1") == [(stores[0], 3), (stores[1], 3)]


def test_failed_chunk_runs_one_by_one(work: Work) -> None:
    """One bad job costs the others no attempt."""
    calls = Calls(work, 2)
    ids = add(work.stores[0], *range(4))
    work.run_on_thread()
    assert (calls.calls, written()) == ([[0, 1, 2, 3]], [])
    assert (rows(), seen(ALONE)) == ([WAITS] * 4, [(True,)] * 4)
    run_all(work)
    assert calls.calls[1:] == [[0], [1], [2], [3]]
    assert written() == ["0", "1", "3"]
    assert seen("SELECT id, state, attempts FROM salon_jobs_job") == [(ids[2], "queued", 1)]
    [record] = [record for record in work.log.records if vars(record).get("event") == "chunk_split"]
    job = {"task_name": "test-chunk", "job_id": ids[0], "store_id": work.stores[0], "attempt": 1}
    error = {"error_class": "builtins.ValueError", "code": "", "error": "bad"}
    assert vars(record)["event_fields"] == {**job, "jobs": 4, "queue": "default", **error}
    assert record.exc_info is not None
    assert record.exc_info[1] is calls.error
    for job_id, fields in zip(ids, work.fields("job_released"), strict=True):
        assert {**job, "job_id": job_id, "reason": "chunk split"}.items() <= fields.items()


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (Snooze(timedelta(hours=1)), WAITS),
        (Discard("no"), ("cancelled", 1, None)),
        (Retry(timedelta(hours=1)), ("queued", 1, None)),
    ],
    ids=["snooze", "discard", "retry"],
)
def test_snooze_discard_and_retry_in_chunk(work: Work, error: BaseException, ended: tuple[Any, ...]) -> None:
    """They are for the job that raises them alone."""
    Calls(work, 1, error=error)
    add(work.stores[0], 0, 1, 2)
    run_all(work)
    assert (written(), rows()) == (["0", "2"], [ended])


def test_discarded_error_splits_chunk(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Together the jobs would meet it again and again."""
    monkeypatch.setattr(tasks.in_chunks, "errors", ErrorRules(discard_on=(ValueError,)))
    calls = Calls(work, 1)

    def handler(**call: Any) -> None:
        if len(calls.calls) < 10:  # or it would never end
            calls(**call)

    work.hooks.store = handler
    add(work.stores[0], 0, 1, 2)
    run_all(work)
    assert calls.calls == [[0, 1, 2], [0], [1], [2]]
    assert (written(), rows()) == (["0", "2"], [("cancelled", 1, None)])


@pytest.mark.parametrize("kept", [False, True], ids=["deleted", "RETAIN_SUCCEEDED"])
def test_finish_in_handlers_transaction(work: Work, settings: Any, kept: bool) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "RETAIN_SUCCEEDED": 60 * kept}
    Calls(work)
    add(work.stores[0], 0, 1, 2)
    chunk = chunk_of(work.claim(), work.process_id)
    assert execute(chunk) == Succeeded(finished=True)
    assert all(run.finished for run in chunk.runs)
    assert rows() == [("succeeded", 1, None)] * (3 * kept)
    assert written() == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("payload", "ended"),
    [('{"number": "x"}', ("failed", 1, "JOB.PAYLOAD_INVALID")), ('{"number": 1, "size": 2}', ("queued", 0, ""))],
    ids=["invalid", "unknown argument"],
)
def test_unreadable_payload_ends_alone(work: Work, payload: str, ended: tuple[Any, ...]) -> None:
    calls = Calls(work)
    ids = add(work.stores[0], 0, 1, 2)
    change("UPDATE salon_jobs_job SET payload = %s WHERE id = %s", payload, ids[1])
    run_all(work)
    assert calls.calls == [[0], [2]]
    assert seen("SELECT id, state, attempts, reason FROM salon_jobs_job") == [(ids[1], *ended)]


def test_lost_lease_rolls_back_chunk(work: Work) -> None:
    ids = add(work.stores[0], 0, 1, 2)
    calls = Calls(work)

    def lose(**call: Any) -> None:
        calls(**call)
        if len(call["sales"]) == 3:
            change("UPDATE salon_jobs_job SET lease = lease # (1::bigint << 40) WHERE id = %s", ids[1])

    work.hooks.store = lose
    work.run_on_thread()
    assert written() == []
    assert rows() == [WAITS, ("running", 0, work.process_id), WAITS]
    assert [fields["job_id"] for fields in work.fields("job_lease_lost")] == [ids[1]]
    run_all(work)
    assert calls.calls == [[0, 1, 2], [0], [2]]


def test_locked_row_is_waited_for(work: Work) -> None:
    Calls(work)
    ids = add(work.stores[0], 0, 1)
    jobs = work.claim()
    with behind_transaction(lambda: execute(chunk_of(jobs, work.process_id))) as running:
        connection.cursor().execute("UPDATE salon_jobs_job SET attempts = attempts WHERE id = %s", [ids[1]])
    assert running.result() == Succeeded(finished=True)
    assert (rows(), written()) == ([], ["0", "1"])


def test_failing_callback_undoes_nothing(work: Work) -> None:
    def handler(**_: object) -> None:
        write()
        transaction.on_commit(lambda: 1 / 0)

    work.hooks.store = handler
    add(work.stores[0], 0, 1)
    work.run_on_thread()
    assert rows() == []
    assert sorted(work.events) == ["job_callback_failed", "job_succeeded", "job_succeeded"]


def test_no_current_job_in_chunk(work: Work) -> None:
    refused: list[int] = []

    def handler(sales: Sequence[Sale], **_: object) -> None:
        with pytest.raises(NoCurrentJob, match="several jobs at once"):
            current_job()
        refused.append(len(sales))

    work.hooks.store = handler
    for numbers in ((0, 1), (0,)):
        add(work.stores[0], *numbers)
        run_all(work)
    assert refused == [2, 1]


def test_results_of_chunk(work: Work) -> None:
    """Each job keeps its own; a wrong number of them splits the chunk."""
    Calls(work)
    ids = add(work.stores[0], 1, 2, 3, task=tasks.in_chunks_with_results)
    run_all(work)
    assert [get_job(job_id).value for job_id in ids] == [10, 20, 30]
    work.hooks.store = lambda **_: [1]
    add(work.stores[0], 1, 2, 3, task=tasks.in_chunks_with_results)
    outcome = execute(chunk_of(work.claim(), work.process_id))
    assert isinstance(outcome, Split)
    assert str(outcome.error) == (
        "task 'test-chunk-results' keeps results: for 3 jobs it must return None, or a list of 3"
    )
    change("UPDATE salon_jobs_job SET state = 'queued', leased_by = NULL, lease = 0")
    run_all(work)
    assert rows() == []


def test_timeout_splits_chunk(work: Work, limit_runs: Callable[..., None], busy: Busy) -> None:
    limit_runs(timeout=timedelta(seconds=0.02))
    calls = Calls(work)

    def handler(**call: Any) -> None:
        calls(**call)
        if len(call["sales"]) > 1:
            spin(busy)

    work.hooks.store = handler
    add(work.stores[0], 0, 1)
    run_all(work)
    assert calls.calls == [[0, 1], [0], [1]]
    assert (written(), error_classes()) == (["0", "1"], [])


def test_cancel_one_job_of_running_chunk(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("salon_jobs.worker.deadlines.CANCEL_GRACE_S", 0.1)
    started, calls = threading.Event(), Calls(work)

    def handler(**call: Any) -> None:
        calls(**call)
        started.set()
        if len(call["sales"]) == 3:
            spin()

    work.hooks.store = handler
    ids = add(work.stores[0], 0, 1, 2)
    with work.working():
        assert started.wait(LIMIT_S)
        cancel_jobs([ids[1]], using="operator")
        eventually(states, ["cancelled"])
    assert seen("SELECT id, reason, attempts FROM salon_jobs_job") == [(ids[1], "cancelled", 0)]
    assert calls.calls == [[0, 1, 2], [0, 2]]
    assert written() == ["0", "2"]


def test_stop_gives_back_whole_chunk(work: Work, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "SHUTDOWN_GRACE": 1}
    monkeypatch.setattr(worker_module, "_LEAVE_S", -LIMIT_S)  # the handler is interrupted soon, and may end late
    started = threading.Event()

    def handler(**call: Any) -> None:
        write()
        started.set()
        spin()

    work.hooks.store = handler
    add(work.stores[0], 0, 1, 2)
    with work.working():
        assert started.wait(LIMIT_S)
    assert (rows(), seen(ALONE)) == ([WAITS] * 3, [(False,)] * 3)
    assert written() == []


def test_worker_claims_more_for_chunk(work: Work) -> None:
    calls = Calls(work)
    with transaction.atomic():
        add(work.stores[0], *range(7))
        add(work.stores[1], 10)
    with work.working():
        eventually(rows, [])
    assert sorted(calls.calls) == [[0, 1, 2, 3, 4], [5, 6], [10]]


def test_more_jobs_of_same_store(work: Work) -> None:
    """Only those are claimed for a chunk that may join it."""
    with transaction.atomic():
        first, failed, second = add(work.stores[0], 0, 1, 2)
        add(work.stores[1], 3)
        tasks.in_chunks.using(queue="other").enqueue(work.stores[0], Sale(4))
    change("UPDATE salon_jobs_job SET attempts = 1 WHERE id = %s", failed)
    [job] = work.leases.claim_due(["test-chunk"], 1)
    buffer = JobBuffer(1)
    chunks = claimer_of(work.process_id, buffer)
    assert [each.id for each in chunks.claim(job, 10)] == [second]
    assert (job.id, chunks.claimed) == (first, 2)
    alone = buffer.take(0)
    assert alone is not None
    assert (alone.id, buffer.has_waiting()) == (failed, False)
    assert sorted(job_id for job_id, _ in buffer.leases()) == sorted([second, failed])


@pytest.mark.parametrize("rule", ["concurrency", "rate", "store", "pause"])
def test_limited_chunk_claims_no_more(work: Work, rule: str) -> None:
    rules: dict[str, Callable[[], object]] = {
        "concurrency": lambda: limit(task="test-chunk", max_concurrency=2),
        "rate": lambda: limit(queue="default", rate="1/h"),
        "store": lambda: limit(store_id=work.stores[0], max_concurrency=2),
        "pause": lambda: pause(task="test-chunk"),
    }
    add(work.stores[0], 0, 1)
    [job] = work.leases.claim_due(["test-chunk"], 1)
    rules[rule]()
    assert claimer_of(work.process_id).claim(job, 10) == []


def test_limit_counts_jobs_of_chunk(work: Work) -> None:
    calls = Calls(work)
    limit(task="test-chunk", max_concurrency=2)
    add(work.stores[0], *range(6))
    with work.working():
        eventually(rows, [])
    assert max(map(len, calls.calls)) == 2
    assert sorted(number for call in calls.calls for number in call) == list(range(6))


def test_chunks_of_two_processes(work: Work) -> None:
    """They never share a job."""
    add(work.stores[0], *range(6))
    [job] = work.leases.claim_due(["test-chunk"], 1)
    chunks = claimer_of(work.process_id)
    with transaction.atomic():
        mine = chunks.claim(job, 3)
        theirs = in_thread(lambda: chunks.claim(job, 10))
    ids = [each.id for each in (job, *mine, *theirs)]
    assert len(ids) == len(set(ids)) == 6


def test_hanging_chunk_claim(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds up neither other chunks nor the worker."""
    for module in (chunks_module, worker_module):
        monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    monkeypatch.setattr(worker_module, "_SWEEP_S", 0.0)
    monkeypatch.setattr(ChunkClaimer, "__init__", partialmethod(hanging, ChunkClaimer.__init__))
    calls = Calls(work)
    with work.working():
        for number in range(2):
            add(work.stores[number], number)
            eventually(rows, [])
    assert calls.calls == [[0], [1]]


def hanging(claimer: ChunkClaimer, create: Callable[..., None], *arguments: Any) -> None:
    """Create a claimer one of whose claims never gets its answer."""
    create(claimer, *arguments)
    claimer.lock.acquire()


def test_jobs_of_dead_process_join_no_chunk(work: Work) -> None:
    ids = add(work.stores[0], 0, 1)
    work.add()
    work.claim()
    rescue_process(work.process_id, None, charged=[ids[0]], using="default")
    assert seen("SELECT rescues, attempts FROM salon_jobs_job ORDER BY id") == [(1, 0), (0, 0), (0, 0)]
    assert seen(ALONE) == [(True,), (True,), (False,)]


def test_chunk_is_one_run(work: Work) -> None:
    """It takes one thread; two of them and a job that must run alone take as many as are left, and one more waits."""
    change("UPDATE salon_jobs_process SET concurrency = 2")
    assert tasks.in_chunks.chunk == 5
    add(work.stores[0], *range(6))
    [alone] = add(work.stores[0], 9)
    change("UPDATE salon_jobs_job SET alone = true WHERE id = %s", alone)
    work.claim()
    [process] = processes(using="default")
    assert (process.held, process.runs, process.running, process.claimed) == (7, 3, 2, 1)


def test_job_of_chunk_that_killed_process(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another of the chunk may have: it fails when it has killed one alone."""
    monkeypatch.setattr(tasks.in_chunks, "max_deaths", 1)
    [first, _] = add(work.stores[0], 0, 1)
    for state in ("queued", "failed"):
        process = another_process()
        claim(process)
        rescue_process(process, None, charged=[first], using="default")
        assert row_of(first)["state"] == state


def test_expiry_while_chunk_is_gathered(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its jobs were in time when they joined it."""
    monkeypatch.setattr(tasks.in_chunks, "timeouts", Timeouts(wait_timeout=timedelta(minutes=5)))
    calls = Calls(work)
    add(work.stores[0], 0, 1)
    chunk = chunk_of(work.claim(), work.process_id)
    chunk.started = chunk.job.due_at + 301
    assert execute(chunk) == Succeeded(finished=True)
    assert calls.calls == [[0, 1]]


def test_who_may_join(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    add(work.stores[0], 0)
    [job] = work.claim()
    assert can_join_chunk(tasks.in_chunks, job)
    assert not can_join_chunk(tasks.in_store, job)
    for alone in ({"attempts": 1}, {"expired": True}, {"alone": True}, {"payload": ""}):
        assert not can_join_chunk(tasks.in_chunks, job._replace(**alone)), "a large payload is read later"
    monkeypatch.setattr(tasks.in_chunks, "timeouts", Timeouts(wait_timeout=timedelta(minutes=5)))
    assert can_join_chunk(tasks.in_chunks, job._replace(due_at=time.monotonic()))
    assert not can_join_chunk(tasks.in_chunks, job._replace(due_at=time.monotonic() - 301))
