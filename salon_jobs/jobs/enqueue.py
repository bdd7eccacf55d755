"""Insertion of jobs in the caller's transaction: one, many, or by job key."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import replace
from datetime import datetime
from itertools import chain, repeat
from operator import attrgetter, is_
from typing import Any, Final, TypeVar
from uuid import UUID

from django.db import connections, transaction
from django.db.backends.utils import CursorWrapper
from msgspec import Struct
from psycopg import Error as PsycopgError

from salon_jobs.core.errors import EnqueueRefused
from salon_jobs.core.records import EnqueueAction, StoreId
from salon_jobs.core.tracing import SYSTEM, Sent, current_trace, is_traced, sending
from salon_jobs.db import statements
from salon_jobs.db.connections import alias_of, translated_errors
from salon_jobs.db.notify import CHANNEL, WakeUps
from salon_jobs.jobs import registry
from salon_jobs.jobs.options import NewJob
from salon_jobs.jobs.results import JobHandle
from salon_jobs.signals import job_enqueued

R = TypeVar("R")

# Payload of the notification that asks for running jobs to be cancelled; each process looks up its own jobs among them.
CANCEL: Final = "cancel"
wake_ups: Final = WakeUps(CHANNEL)
# What runs jobs before an enqueue returns, in tests that need it; the last one is called.
at_once: Final[list[Callable[[], object]]] = []


class JobContent(Struct, frozen=True, gc=False):
    """The columns in which the jobs of one ``enqueue_many`` differ.

    The garbage collector does not track it, nor calls, their arguments and handles: 100,000 objects would start several
    full collections, in each of which the server would wait 20 to 30 ms.
    """

    store_id: StoreId | None
    payload: str
    job_key: str | None
    concurrency_key: str | None
    trace: str | None = None
    run_at: datetime | None = None
    tick: datetime | None = None


_IN_CONTEXT: Final = "a store's jobs are enqueued inside tenant_context(store_id), in a transaction"


@contextmanager
def enqueue_cursor(*, using: str, remedy: str = _IN_CONTEXT) -> Generator[CursorWrapper]:
    """Yield a cursor, and translate database errors. Raises EnqueueRefused, SchemaMissing, ConfigurationError."""
    look_for_another_transaction(using)
    with translated_errors(using, EnqueueRefused, remedy), connections[using].cursor() as cursor:
        yield cursor


def look_for_another_transaction(using: str) -> None:
    """Raise EnqueueRefused if the caller's transaction is on another alias only: its rollback would not undo the job.

    Call this before opening a transaction to enqueue in; inside one, it detects nothing.
    """
    own = connections[using]
    if own.in_atomic_block or len(connections.settings) == 1:
        return
    for connection in connections.all(initialized_only=True):
        if connection is own or not connection.in_atomic_block:
            continue
        raise EnqueueRefused(
            f"the transaction is open on {connection.alias!r}, the jobs are on {own.alias!r}: the job would be "
            f"committed at once, even if that transaction is rolled back. Enqueue in transaction.on_commit(…, "
            f"using={connection.alias!r}), or inside transaction.atomic(using={own.alias!r})"
        )


@contextmanager
def enqueuing(job: NewJob) -> Generator[tuple[NewJob, Sent]]:
    """Trace the statement that adds jobs like ``job``: yield the job with its trace, and a record to complete.

    A job that already has a trace keeps it.
    """
    sent = Sent(emitted=False, system=SYSTEM, destination=job.queue, name=job.task)
    if job.trace is not None or not is_traced():
        yield job, sent
        return
    sent.body_size = len(job.payload.encode())
    with sending(sent):
        yield replace(job, trace=current_trace()), sent


# Measured: 1,000 rows per statement insert 175,000 rows/s, 5,000 insert 245,000, 100,000 (exceeding caches) 150,000.
# The first statement is small, so that the server soon has work. Each next one is half as large again: that many rows
# can be prepared while the server inserts.
_ROWS: Final = 5_000
_FIRST_ROWS: Final = 500
_GROWTH: Final = 1.5
# How long to release the interpreter's lock, so that the statement is sent. The other thread, and the server with it,
# would otherwise wait for the lock for the switch interval, 5 ms.
_SEND_S: Final = 0.0005
# Statements that run or wait to be sent: two, so that the server never waits for this process.
_PENDING: Final = 2
_CHARACTERS: Final = 4_000_000
_CANCEL_S: Final = 2.0
_DEDUPE_TRIES: Final = 5


def add(job: NewJob, *, using: str | None = None) -> JobHandle:
    """Add one job in the caller's transaction. Raises EnqueueRefused, SchemaMissing."""
    using = alias_of(using)
    with enqueuing(job) as (traced, sent):
        if not job.is_plain:
            content = JobContent(job.store_id, job.payload, job.job_key, job.concurrency_key)
            [handle] = _add_distinct(traced, [content], using)
            if job.is_due:
                wake_ups.after_commit(using)
        else:
            if job.is_due:
                look_for_another_transaction(using)
                with translated_errors(using, EnqueueRefused, _IN_CONTEXT):
                    job_id, created_at = wake_ups.run(connections[using], "enqueue", traced.parameters())
            else:
                with enqueue_cursor(using=using) as cursor:
                    cursor.execute(statements.load("enqueue"), traced.parameters())
                    job_id, created_at = cursor.fetchone()
            handle = _handle(job, job_id, EnqueueAction.INSERTED, job.public_id, created_at)
        sent.message_id = str(handle.id)
    _announce(job.task, [handle])
    return handle


def _announce(task: str, handles: list[JobHandle]) -> None:
    if job_enqueued.receivers:
        job_enqueued.send_robust(registry.get_declaration(task), handles=handles)


def _handle(job: NewJob, job_id: int, action: EnqueueAction, public_id: UUID | None, created_at: datetime) -> JobHandle:
    return JobHandle(job_id, action) if job.public_id is None else JobHandle(job_id, action, public_id, created_at)


def add_many(
    pattern: NewJob, contents: Iterable[JobContent], *, then: NewJob | None = None, using: str | None = None
) -> list[JobHandle]:
    """Add jobs like ``pattern`` in one transaction, in order; return a handle for each, even if keys repeat.

    Either all of them have a key or none. ``then`` is enqueued when they have ended. Raises EnqueueRefused or
    SchemaMissing, after which nothing is added.
    """
    using, rest = alias_of(using), iter(contents)
    first = next(rest, None)
    if first is None:
        if then is not None:
            add(then, using=using)
        return []
    contents = chain((first,), rest)
    # Jobs with traces continue their own.
    with nullcontext((pattern, None)) if first.trace is not None else enqueuing(pattern) as (traced, sent):
        look_for_another_transaction(using)
        with transaction.atomic(using=using):
            if first.job_key is not None:
                handles = _add_keyed(traced, list(contents), using)
            else:
                with connections[using].cursor() as cursor:
                    handles = _insert(cursor, traced, contents, using)
            if pattern.is_due:
                wake_ups.after_commit(using)
            if then is not None:
                add_follow_up(then, {handle.id for handle in handles}, using=using)
        _announce(pattern.task, handles)
        if sent is not None:
            sent.count, sent.body_size = len(handles), None
    return handles


def add_follow_up(then: NewJob, ids: Iterable[int], *, using: str) -> None:
    """Enqueue a job in the transaction that ends the last of these new jobs, or at once if there are none."""
    with enqueuing(then) as (traced, _), enqueue_cursor(using=using) as cursor:
        parameters = {**traced.parameters(), "ids": statements.array(ids)}
        cursor.execute(statements.load("add_follow_up"), parameters)
        [waits_for] = cursor.fetchone()
    if not waits_for:
        add(then, using=using)


def _parameters(pattern: NewJob, contents: Sequence[JobContent]) -> dict[str, Any]:
    first, stores = contents[0], _column(contents, "store_id")
    of_one = first.job_key is None and all(map(is_, stores, repeat(first.store_id)))
    return {
        **pattern.parameters(),
        # Text that the server splits: a third of the time of arrays, which psycopg quotes element by element.
        "payloads": "\n".join(_column(contents, "payload")),
        "store_id": first.store_id if of_one else None,
        "store_ids": None if of_one else ",".join(map(_text, stores)),
        # Either all have one or none does.
        "job_keys": None if first.job_key is None else _column(contents, "job_key"),
        "concurrency_keys": None if first.concurrency_key is None else _column(contents, "concurrency_key"),
        "traces": None if first.trace is None else _column(contents, "trace"),
        "run_ats": None if first.tick is None else _column(contents, "run_at"),
        "ticks": None if first.tick is None else _column(contents, "tick"),
    }


def _column(contents: Sequence[JobContent], name: str) -> list[Any]:
    return list(map(attrgetter(name), contents))


def _text(store_id: StoreId | None) -> str:
    return "" if store_id is None else str(store_id)


def _batches(contents: Iterable[JobContent]) -> Iterator[tuple[list[JobContent], bool]]:
    """Yield the jobs of one statement at a time, and whether more may follow."""
    batch: list[JobContent] = []
    size, rows = 0, min(_FIRST_ROWS, _ROWS)
    for content in contents:
        batch.append(content)
        size += len(content.payload)
        if len(batch) == rows or size > _CHARACTERS:
            yield batch, True
            batch, size, rows = [], 0, min(int(_GROWTH * rows), _ROWS)
    if batch:
        yield batch, False


def _insert(cursor: CursorWrapper, pattern: NewJob, contents: Iterable[JobContent], using: str) -> list[JobHandle]:
    """Insert jobs without keys, batch after batch; prepare the next batches while the server works.

    Statements that the caller's generator runs wait for ours: if one of ours ran after a savepoint of the caller,
    rolling back to that savepoint would remove our rows too.
    """

    def run(parameters: dict[str, Any]) -> list[int]:
        with translated_errors(using, EnqueueRefused, _IN_CONTEXT):
            cursor.execute(statements.load("add_jobs_without_keys"), parameters)
        ids: list[int] = cursor.fetchone()[0]
        return ids

    def start(parameters: dict[str, Any]) -> None:
        pending.append(server.submit(copy_context().run, run, parameters))
        if len(pending) == 1:
            wait(pending, _SEND_S)

    def in_order(execute: Callable[..., Any], *call: Any) -> Any:
        if threading.current_thread() is caller:
            wait(pending)
        return execute(*call)

    def finish_first() -> None:
        add_handles(pending[0].result())
        pending.popleft()

    def add_handles(ids: list[int]) -> None:
        handles.extend(map(JobHandle, ids, repeat(EnqueueAction.INSERTED)))

    handles: list[JobHandle] = []
    batches = _batches(contents)
    batch, more = next(batches)
    if not more:
        add_handles(run(_parameters(pattern, batch)))
        return handles
    pending: deque[Future[list[int]]] = deque()
    caller = threading.current_thread()
    wrappers = connections[using].execute_wrappers
    with ThreadPoolExecutor(1, thread_name_prefix="salon-jobs-enqueue") as server:
        start(_parameters(pattern, batch))
        wrappers.append(in_order)
        try:
            for batch, _ in batches:
                parameters = _parameters(pattern, batch)
                while len(pending) >= _PENDING:
                    finish_first()
                start(parameters)
            while pending:
                finish_first()
        except BaseException as error:
            if not isinstance(error, Exception):  # such as Ctrl-C, which does not wait for another transaction's lock
                server.shutdown(wait=False, cancel_futures=True)
                with suppress(PsycopgError):
                    connections[using].connection.cancel_safe(timeout=_CANCEL_S)
                raise
            for statement in pending:
                if (refused := statement.exception()) is not None:
                    raise refused  # noqa: B904 - later errors, in a broken transaction, say less
            raise
        finally:
            # Not always the last one: the caller's generator may have left a context open.
            wrappers.remove(in_order)
    return handles


def _add_keyed(pattern: NewJob, contents: Sequence[JobContent], using: str) -> list[JobHandle]:
    """Add keyed jobs in the caller's transaction, which holds the locks of their keys until it ends.

    Each key once per statement, and the keys in the same order for every enqueuer.
    """
    rounds: list[list[int]] = []  # of positions; a key occurs once in each round
    counts: Counter[tuple[str, str]] = Counter()
    keys = [(_text(content.store_id), content.job_key or "") for content in contents]
    for position in sorted(range(len(keys)), key=keys.__getitem__):
        key = keys[position]
        if counts[key] == len(rounds):
            rounds.append([])
        rounds[counts[key]].append(position)
        counts[key] += 1
    handles: dict[int, JobHandle] = {}
    for positions in rounds:
        for start in range(0, len(positions), _ROWS):
            batch = positions[start : start + _ROWS]
            added = _add_distinct(pattern, [contents[position] for position in batch], using)
            handles.update(zip(batch, added, strict=True))
    return [handles[position] for position in range(len(contents))]


def _add_distinct(pattern: NewJob, contents: Sequence[JobContent], using: str) -> list[JobHandle]:
    """Add jobs with different keys, or one job, in one statement. Raises EnqueueRefused, SchemaMissing."""
    handles: dict[tuple[StoreId | None, str | None], JobHandle] = {}
    parameters = _parameters(pattern, contents)
    with enqueue_cursor(using=using) as cursor:
        for _ in range(_DEDUPE_TRIES):
            cursor.execute(statements.load("add_jobs"), parameters)
            for job_id, action, store_id, key, *described in cursor.fetchall():
                # A first "inserted" stays, even if a later try reports the same row as kept.
                handles.setdefault((store_id, key), _handle(pattern, job_id, EnqueueAction(action), *described))
            if len(handles) == len(contents):
                return [handles[content.store_id, content.job_key] for content in contents]
    raise EnqueueRefused("the holders of these job keys kept changing; enqueue again")


def run_at_once_in_tests(given: R) -> R:
    """Return what an enqueue returns to its caller; in a test that runs jobs at once, run them first.

    A function that enqueues for a caller calls this last, when all is written for the jobs, such as their flow.
    """
    if at_once:
        at_once[-1]()
    return given
