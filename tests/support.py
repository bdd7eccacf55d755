"""Helpers that run jobs in the test's thread, and read rows as the superuser."""

from __future__ import annotations

import ast
import itertools
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest
from django.db import connections, transaction
from django.utils import timezone

from salon_jobs.conf.store_key import store_key
from salon_jobs.core.outcomes import Outcome
from salon_jobs.core.records import ClaimedJob, KeptResult, StoreId
from salon_jobs.jobs import registry
from salon_jobs.jobs.leases import Leases
from salon_jobs.jobs.run import JobRun
from salon_jobs.models import Process
from salon_jobs.process.loop import Loop
from salon_jobs.worker.buffer import JobBuffer
from salon_jobs.worker.chunks import run_of
from salon_jobs.worker.deadlines import DeadlineWatcher
from salon_jobs.worker.ends import settle
from salon_jobs.worker.executor import execute
from salon_jobs.worker.finisher import Finisher
from salon_jobs.worker.in_flight import IdleTable, InFlightTable
from salon_jobs.worker.lane import CoroutineRunner
from salon_jobs.worker.maintenance import Rescuer
from salon_jobs.worker.runner import Runner
from salon_jobs.worker.worker import Worker, WorkerOptions
from tests.waiting import LIMIT_S, eventually

T = TypeVar("T")
_process_ids = itertools.count(1)


def leases_of(process_id: int, *, is_direct: bool = False) -> Leases:
    """Return the leases of a process, on the job tables as the worker sees them, with or without a pooler."""
    return Leases(process_id, using="default", is_direct=lambda: is_direct)


def claim(process_id: int, room: int = 100) -> list[ClaimedJob]:
    """Claim due jobs of every registered task."""
    return leases_of(process_id).claim_due(registry.task_names(), room)


def running_job(job: ClaimedJob, process_id: int) -> JobRun:
    """Return a claimed job as a handler sees it."""
    task = registry.get_declaration(job.task)
    leases = leases_of(process_id)
    return run_of([job], task, leases, leases.connection)


def chunk_of(jobs: Sequence[ClaimedJob], process_id: int) -> JobRun:
    """Return claimed jobs as one chunk."""
    leases = leases_of(process_id)
    return run_of(jobs, registry.get_declaration(jobs[0].task), leases, leases.connection)


def finish(job: ClaimedJob, process_id: int, result: KeptResult | None = None) -> bool:
    """End the run of a claimed job as succeeded; return whether it still owned the job."""
    running = running_job(job, process_id)
    running.result = result
    return running.leases.finish([running]) == 1


def finish_many(jobs: Sequence[ClaimedJob], process_id: int, result: KeptResult | None = None) -> set[int]:
    """End the runs of claimed jobs as succeeded, in one statement; return the fences of those still owned."""
    runs = [running_job(job, process_id) for job in jobs]
    for running in runs:
        running.result = result
    return leases_of(process_id).finish_many(runs)


def run(job: ClaimedJob, process_id: int) -> Outcome:
    """Execute and settle one claimed job."""
    running = running_job(job, process_id)
    return settle(running, execute(running))


def run_due(process_id: int) -> list[Outcome]:
    """Claim once and run what was claimed."""
    return [run(job, process_id) for job in claim(process_id)]


def rescuer() -> Rescuer:
    """Return a rescuer that met the server long ago, so that it judges at once."""
    offset_s = -3600.0
    found = Rescuer(clock=lambda: time.monotonic() + offset_s, using="default")
    found.run_once()
    offset_s = 0.0
    return found


def seen(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Query as the superuser, whom policies do not restrict."""
    with connections["owner"].cursor() as cursor:
        cursor.execute(statement, parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def job_row(job_id: int) -> dict[str, Any] | None:
    """Return one job's columns by name; None when the row is gone."""
    with connections["owner"].cursor() as cursor:
        cursor.execute("SELECT * FROM salon_jobs_job WHERE id = %s", [job_id])
        row = cursor.fetchone()
        return None if row is None else dict(zip([column.name for column in cursor.description], row, strict=True))


def row_of(job_id: int) -> dict[str, Any]:
    """Return the columns of a job that there is, by name."""
    row = job_row(job_id)
    assert row is not None
    return row


def change(statement: str, *parameters: Any) -> None:
    """Run a statement as the superuser."""
    with connections["owner"].cursor() as cursor:
        cursor.execute(statement, parameters)


def row(table: str, **columns: Any) -> UUID:
    """Write a row of a business table, by default with a random ID; return its ID."""
    values = {"id": uuid4(), **columns}
    change(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(['%s'] * len(values))})", *values.values())
    return UUID(str(values["id"]))


def in_state(state: str, **columns: str) -> dict[str, str]:
    """Return the columns of a job in this state as our statements leave them, all in SQL, with these besides."""
    return {
        "state": state,
        "lease": f"CASE {state} WHEN 'queued' THEN 0 ELSE 1 END",
        "leased_by": f"CASE {state} WHEN 'running' THEN 1 END",
        "started_at": f"CASE WHEN {state} <> 'queued' THEN now() END",
        "begun_once_at": "NULL",
        "finished_at": f"CASE WHEN {state} NOT IN ('queued', 'running') THEN now() END",
        "cancel_requested_at": "NULL",
        "error_class": f"CASE {state} WHEN 'failed' THEN 'E' END",
        "reason": f"CASE {state} WHEN 'failed' THEN 'not_retried' WHEN 'cancelled' THEN 'cancelled' ELSE '' END",
        **columns,
    }


def moved_to(state: str, **columns: str) -> str:
    """Return what UPDATE sets for a job to be in this state."""
    return ", ".join(f"{name} = {value}" for name, value in in_state(f"'{state}'", **columns).items())


def selected(columns: Mapping[str, str]) -> str:
    """Return what INSERT takes: the names and a SELECT without FROM."""
    return f"({', '.join(columns)}) SELECT {', '.join(columns.values())}"


@contextmanager
def connected(sent: Any, receiver: Callable[..., object]) -> Generator[None]:
    """Have a function receive a signal meanwhile."""
    sent.connect(receiver)
    try:
        yield
    finally:
        sent.disconnect(receiver)


class OneRunner(Runner):
    """Thread of a worker, with what it works with. Each process has some; a test has one."""

    def __init__(self, process_id: int, abandon: threading.Event, **bounds: int) -> None:
        self.jobs = JobBuffer(1)
        leases = leases_of(process_id)
        self.finisher = Finisher(leases, self.jobs, abandon, **bounds)
        self.deadlines = DeadlineWatcher(using="default")
        self.table = InFlightTable(1)
        super().__init__(self.jobs, self.finisher, leases, 0, in_flight=self.table, watcher=self.deadlines)

    def end_all(self, jobs: Sequence[ClaimedJob]) -> None:
        """Run claimed jobs, and wait until the end of each is written."""
        self.jobs.put(list(jobs))
        assert self.jobs.wait_until_empty(LIMIT_S)


@contextmanager
def running_on_a_thread(
    process_id: int, jobs: Sequence[ClaimedJob], *, abandon: threading.Event | None = None, **bounds: int
) -> Generator[OneRunner]:
    """Run claimed jobs on a worker's thread until all have ended, then end the threads.

    ``bounds`` are those of the finisher, which writes nothing more once ``abandon`` is set.
    """
    runner = OneRunner(process_id, abandon or threading.Event(), **bounds)
    runner.finisher.start()
    runner.deadlines.start()
    runner.start()
    try:
        runner.end_all(jobs)
        yield runner
    finally:
        runner.jobs.close()
        assert runner.join(LIMIT_S)
        _end(runner.finisher, runner.deadlines)


def _end(*loops: Loop) -> None:
    for loop in loops:
        loop.stop()
        assert loop.join(LIMIT_S)


@contextmanager
def running_coroutines(process_id: int, *, threads: int = 1) -> Generator[tuple[CoroutineRunner, JobBuffer]]:
    """Yield a worker's lane for coroutines, and the buffer that knows which have not ended; wait until all have."""
    queue, leases, deadlines = JobBuffer(1), leases_of(process_id), DeadlineWatcher(using="default")
    finisher = Finisher(leases, queue, threading.Event())
    rooms: dict[str, Any] = {"places": 100, "threads": threads, "first_slot": 0, "in_flight": InFlightTable(100)}
    lane = CoroutineRunner(queue, finisher, leases, **rooms, watcher=deadlines)
    finisher.start()
    deadlines.start()
    try:
        yield lane, queue
        assert queue.wait_until_empty(LIMIT_S)
        assert not deadlines._watched, "no run that ended is watched"
    finally:
        lane.end(LIMIT_S)
        _end(finisher, deadlines)


@contextmanager
def working(process_id: int, concurrency: int = 1, *, idle: IdleTable | None = None) -> Generator[Worker]:
    """Run a worker, with its listener, in this process."""
    loop = Worker(process_id, WorkerOptions(concurrency=concurrency), idle=idle, using="default")
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.stop()
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def run_on_threads(process_id: int, room: int = 100) -> None:
    """Run what is due on a worker's thread, until it has ended."""
    with running_on_a_thread(process_id, claim(process_id, room)):
        pass


def new_store_id() -> StoreId:
    """Return a key that no store has yet, of the type that stores have."""
    number = uuid4()
    kind = store_key().type
    return number if kind is UUID else 1 + number.int % (2**63 - 1) if kind is int else f"store-{number.hex}"


def store_id_of(number: int) -> StoreId:
    """Return the same key whenever it is given the same number."""
    kind = store_key().type
    return UUID(int=number) if kind is UUID else 1 + number if kind is int else f"store-{number}"


def store_id_sql(number: str = "(random() * 1e15)::bigint") -> str:
    """Return SQL for ``store_id_of`` a number, itself SQL; by default a random one."""
    kind = store_key().sql
    texts = {
        "uuid": f"lpad(to_hex({number}), 32, '0')",
        "bigint": f"1 + {number}",
        "text": f"concat('store-', {number})",
    }
    return f"({texts[kind]})::{kind}"


def a_process(**columns: Any) -> int:
    """Register a worker, as alive for as long as the test takes: nobody sends heartbeats of it."""
    ahead = timezone.now() + timedelta(hours=1)
    return int(Process.objects.create(kind="worker", hostname="test", heartbeat_at=ahead, **columns).pk)


def another_process() -> int:
    """Register one more process. Ids that are drawn in one millisecond conflict now and then."""
    return a_process(id=next(_process_ids), pid=2)


def be_silent(process_id: int, seconds: int = 3600) -> None:
    """Have the last heartbeat of a process be so long ago."""
    ago = "now() - %s * interval '1 s'"
    change(f"UPDATE salon_jobs_process SET heartbeat_at = {ago} WHERE id = %s", seconds, process_id)


def waiting_count() -> int:
    """Return how many connections to this database wait for a lock; other tests use others of this server.

    What ``pg_stat_activity`` says does not change during a transaction, which the test may have open here.
    """
    here = "SELECT pid FROM pg_locks JOIN pg_database ON database = pg_database.oid WHERE datname = current_database()"
    return int(seen(f"SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted AND pid IN ({here})")[0][0])


def wait_until_waiting(count: int = 1) -> None:
    """Return when so many connections wait for a lock."""
    eventually(lambda: waiting_count() >= count)


@contextmanager
def behind_transaction(work: Callable[[], T], using: str = "default") -> Generator[Future[T]]:
    """Open a transaction, and start at its end what waits for it, elsewhere; then commit, and yield what that gives."""
    given: Future[T] = Future()
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(using=using):
            yield given
            waiting = elsewhere(pool, work)
            wait_until_waiting()
            assert not waiting.done()
        given.set_result(waiting.result(LIMIT_S))


def event_names(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the event of each record, in the order of the log; that of a record without one is empty."""
    return [getattr(record, "event", "") for record in caplog.records]


def event_fields(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """Return the fields of each record of an event, in the order of the log."""
    return [vars(record)["event_fields"] for record in caplog.records if vars(record).get("event") == event]


def elsewhere(pool: ThreadPoolExecutor, work: Callable[[], T]) -> Future[T]:
    """Run on another thread, and therefore on another connection."""

    def run() -> T:
        try:
            return work()
        finally:
            connections.close_all()

    return pool.submit(run)


def in_thread(work: Callable[[], T]) -> T:
    """Run in a new thread, on a connection of its own; return what it returns."""
    with ThreadPoolExecutor(1) as pool:
        return elsewhere(pool, work).result(LIMIT_S)


def plan_nodes(plan: Any) -> list[dict[str, Any]]:
    """Return every node of a plan from ``EXPLAIN (FORMAT JSON)``, as text or parsed."""
    found: list[dict[str, Any]] = []

    def walk(node: dict[str, Any]) -> None:
        found.append(node)
        for child in node.get("Plans", ()):
            walk(child)

    walk((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
    return found


def freeze(pid: int) -> None:
    """Stop a process, and wait until each of its threads has stopped. SIGCONT lets it go on."""
    os.kill(pid, signal.SIGSTOP)
    while not all(_stopped(thread) for thread in Path(f"/proc/{pid}/task").iterdir()):
        os.sched_yield()


def _stopped(thread: Path) -> bool:
    return (thread / "stat").read_text().rpartition(") ")[2].startswith("T")


@contextmanager
def closed_port() -> Generator[int]:
    """Yield a port of this host that refuses connections: it is bound, but nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def public_names(module: ModuleType) -> set[str]:
    """Return the names a module exports: those of ``__all__``, or those it imports as themselves."""
    if hasattr(module, "__all__"):
        return set(module.__all__)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    aliases = (alias for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names)
    return {alias.name for alias in aliases if alias.asname == alias.name}
