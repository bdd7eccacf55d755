"""Runs jobs inside a host project's tests: on the caller's connection, in Django's TestCase too, with no worker."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ParamSpec, TypeVar, overload
from uuid import UUID

from salon_jobs.conf import settings as conf
from salon_jobs.core.outcomes import Outcome
from salon_jobs.core.records import JobState
from salon_jobs.jobs import registry, store
from salon_jobs.jobs.current import RunningJob
from salon_jobs.jobs.event_loop import run_coroutine
from salon_jobs.jobs.executor import execute, settle
from salon_jobs.jobs.payload import STORE_ARGUMENT
from salon_jobs.jobs.task import Task
from salon_jobs.models import Job, Process
from salon_jobs.tenancy.block import as_system_task
from salon_jobs.tenancy.context import tenant_context, tenant_statements

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class DrainedJob:
    """Names one run of a drain and how it ended; a handler's error is ``outcome.error``, not raised."""

    id: int
    task: str
    store_id: UUID | None
    outcome: Outcome


def drain_jobs(
    *, queues: Sequence[str] | None = None, now: datetime | None = None, limit: int = 1000
) -> list[DrainedJob]:
    """Run due jobs, and those they enqueue, until none is due; returns every run in order.

    ``now`` makes jobs due that wait for a later time (retries, ``run_at``). Raises AssertionError after ``limit`` runs:
    jobs that enqueue each other would never end.
    """
    process = Process.objects.using(conf.database).create(
        kind="test", hostname=socket.gethostname()[:255], pid=os.getpid()
    )
    drained: list[DrainedJob] = []
    try:
        while claimed := store.claim_due(process.pk, registry.task_names(), 1, queues=queues, now=now):
            if len(drained) == limit:
                raise AssertionError(f"{limit} jobs ran and still more are due; the next is {claimed[0].task!r}")
            running = RunningJob(claimed[0], process.pk)
            outcome = settle(running, execute(running))
            drained.append(DrainedJob(running.id, running.task, running.store_id, outcome))
    finally:
        process.delete()
    return drained


@overload
def perform_job(task: Task[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
@overload
def perform_job(task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
def perform_job(task: Task[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
    """Run a task's handler here, with its arguments converted and its store set as a worker would; errors come through.

    An ``async def`` handler is run to its end, and gives what it returns. Not from async code: use sync_to_async there.
    Nothing is enqueued and ``current_job()`` is not there. Raises PayloadInvalid.
    """
    arguments = task.payload.bind(args, kwargs)
    converted = task.payload.decode(arguments.json, arguments.store_id)
    with ExitStack() as stack:
        if arguments.store_id is None:
            stack.enter_context(as_system_task(task.name))
        else:
            store_id = arguments.store_id
            as_store = tenant_statements(store_id) if task.is_async else tenant_context(store_id, atomic=task.atomic)
            stack.enter_context(as_store)
        run: Callable[..., Any] = task.function
        result = run(**converted)
        return run_coroutine(result, lambda _: None) if task.is_async else result


def assert_enqueued(task: Task[..., Any], *, count: int | None = None, **arguments: Any) -> list[int]:
    """Assert that jobs of ``task`` wait whose payload has these arguments; returns their ids.

    ``count`` None means one or more. Raises AssertionError that shows what waits instead.
    """
    waiting = Job.objects.using(conf.database).filter(task=task.name, state=JobState.QUEUED).order_by("id")
    store_id = arguments.pop(STORE_ARGUMENT, None)
    wanted = {name: task.payload.stored(name, value) for name, value in arguments.items()}
    rows: list[tuple[int, UUID | None, dict[str, Any]]] = list(waiting.values_list("pk", "store_id", "payload"))
    found = [
        pk
        for pk, store, payload in rows
        if wanted.items() <= payload.items() and (store_id is None or str(store) == str(store_id))
    ]
    if (count is None and not found) or (count is not None and len(found) != count):
        seen = [(str(store), payload) for _, store, payload in rows[:10]]
        wish = "at least 1" if count is None else str(count)
        raise AssertionError(f"{len(found)} jobs of {task.name!r} with {wanted} wait, not {wish}; waiting are {seen}")
    return found
