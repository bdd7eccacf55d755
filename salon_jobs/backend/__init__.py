"""Backend for Django's tasks: ``django.tasks``, or its backport on Django 5.2.

TASKS = {"default": {"BACKEND": "salon_jobs.backend.SalonJobsBackend"}}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar, cast

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from salon_jobs.backend import handlers
from salon_jobs.backend.framework import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    task_enqueued,
)
from salon_jobs.backend.results import AnyResult, TaskCall, new_result, result_of, update
from salon_jobs.backend.tasks import BACKEND_OPTIONS, AnyTask, JobTask, check_options, job_key, option
from salon_jobs.backend.tasks import task as task
from salon_jobs.conf import settings as conf
from salon_jobs.core.arguments import as_uuid, check_text
from salon_jobs.core.errors import ConfigurationError, OptionInvalid, TaskInvalid, suggest
from salon_jobs.core.records import EnqueueAction, JobState
from salon_jobs.core.text import short_repr
from salon_jobs.jobs import enqueue, registry
from salon_jobs.jobs.options import refuse_repetition
from salon_jobs.jobs.payload import Arguments
from salon_jobs.jobs.results import JobHandle, load_result
from salon_jobs.jobs.task import Call
from salon_jobs.tenancy.active import current_store_id

P = ParamSpec("P")
R = TypeVar("R")


def wait(result: TaskResult[..., Any], timeout: timedelta | float) -> Any:
    """Wait for the end of a result's job as ``JobHandle.wait`` does; return the task's return value, if that is kept.

    The result itself stays as it was read: call its ``refresh``.
    """
    return _handle_of(result).wait(timeout)


async def await_result(result: TaskResult[..., Any], timeout: timedelta | float) -> Any:
    """Wait like ``wait``, from a coroutine."""
    handle = _handle_of(result) if hasattr(result, "job_id") else await sync_to_async(_handle_of)(result)
    return await handle.await_result(timeout)


def _handle_of(result: TaskResult[..., Any]) -> JobHandle:
    if (public_id := as_uuid(result.id)) is None:
        raise OptionInvalid(
            f"result must be one of a task of salon_jobs.backend.SalonJobsBackend, not {short_repr(result)}"
        )
    job_id: int | None = getattr(result, "job_id", None)
    if job_id is None and (record := load_result(public_id)) is not None:
        job_id = record.id
    return JobHandle(job_id or 0, EnqueueAction.KEPT, public_id)


def call(task: Task[P, Any], *args: P.args, **kwargs: P.kwargs) -> Call[P]:
    """Return one call of a task, for ``salon_jobs.schedule``. The task's own ``call`` runs it.

    Its jobs are those of the store in the open context, or of no store, like those of ``enqueue``. Raises TaskInvalid
    for a task of another backend, InvalidTask for one with ``run_after``, PayloadInvalid.
    """
    registry.declaration_of(task)
    handler = handlers.handler_of(task)
    handler.check_reach(task)
    if task.run_after is not None:
        raise InvalidTask(f"{task.module_path}: run_after is one instant; leave it out, the schedule says when")
    handler.bind(args, kwargs)
    stored = handler.call_of(task, args, kwargs)
    return Call(handler.name, Arguments(current_store_id(), handler.written(stored)))


class SalonJobsBackend(BaseTaskBackend):
    """Backend that stores tasks as jobs, enqueued in the caller's transaction and run by ``runworker``.

    A task enqueued inside ``tenant_context`` is a job of that store and runs with it set. ``OPTIONS`` can have defaults
    for ``max_attempts`` (1), ``backoff``, ``timeout``, ``keep_result`` and ``at_most_once``.
    """

    task_class = JobTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        """Read the backend's settings. Raises ImproperlyConfigured naming the wrong option."""
        super().__init__(alias, params)
        path = f"TASKS[{alias!r}]['OPTIONS']"
        for name in self.options.keys() - set(BACKEND_OPTIONS):
            raise ImproperlyConfigured(f"{path} has an unknown key {name!r}; {suggest(str(name), BACKEND_OPTIONS)}")
        try:
            check_options(self.options)
        except OptionInvalid as error:
            name, _, fault = str(error).partition(" ")
            raise ImproperlyConfigured(f"{path}[{name!r}] {fault}") from error

    def validate_task(self, task: AnyTask) -> None:
        """Validate a task and register it for the workers of this process. Raises InvalidTask.

        Raises ImproperlyConfigured if the app is missing, which Django's checks notice only if ``django.tasks`` is
        imported before they begin.
        """
        super().validate_task(task)
        if apps.apps_ready and (missing := self._missing_app()) is not None:
            raise ImproperlyConfigured(f"{missing.msg}: {missing.hint}")
        try:
            check_text("queue_name", task.queue_name, 100)
            check_text("the dotted path", task.module_path, 255)
            handlers.handler_of(task)
            if option(task, "at_most_once") is None and self.options.get("at_most_once"):
                self._refuse_repetition(task)
        except (OptionInvalid, TaskInvalid) as error:
            raise InvalidTask(f"{task.module_path}: {error}") from error

    def _refuse_repetition(self, task: AnyTask) -> None:
        """Refuse options of a task that contradict the ``at_most_once`` of ``OPTIONS``. Raises OptionInvalid."""
        try:
            refuse_repetition({name: option(task, name) for name in BACKEND_OPTIONS})
        except OptionInvalid as error:
            where = f"at_most_once is set by TASKS[{self.alias!r}]['OPTIONS']; the task can have at_most_once=False"
            raise OptionInvalid(f"{error} ({where})") from None

    def enqueue(self, task: Task[P, R], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult[P, R]:
        """Enqueue one job in the caller's transaction, in one query.

        Raises InvalidTask, EnqueueRefused, and TypeError or ValueError that names an argument that is not JSON.
        """
        super().validate_task(task)
        handler = handlers.handler_of(task)
        handler.check_reach(task)
        call = handler.call_of(task, args, kwargs)
        added = enqueue.add(handler.new_job(task, call, job_key(task, args, kwargs)))
        result = new_result(task, call, added.public_id, added.created_at)
        update(result, job_id=added.id)
        # The job may be committed already, so a failing receiver must not look as if it had prevented it.
        task_enqueued.send_robust(type(self), task_result=result)
        if enqueue.at_once:
            enqueue.run_at_once_in_tests(None)
            with suppress(TaskResultDoesNotExist):  # a success without a kept result leaves none
                result.refresh()
        return cast("TaskResult[P, R]", result)

    def declaration_of(self, task: AnyTask) -> handlers.TaskHandler:
        """Return the declaration of a task for workers, cron and test helpers, registering it. Raises TaskInvalid."""
        return handlers.handler_of(task)

    def get_result(self, result_id: str) -> AnyResult:
        """Read a result of this alias, in any store. Raises TaskResultDoesNotExist, also for a value not kept."""
        if (public_id := as_uuid(result_id)) is None:
            raise TaskResultDoesNotExist(result_id)
        record = load_result(public_id)
        call = None if record is None else TaskCall.of(record.payload)
        if record is None or call is None or call.backend != self.alias:
            raise TaskResultDoesNotExist(result_id)
        if record.state is JobState.SUCCEEDED and not record.has_value:  # RETAIN_SUCCEEDED keeps the job
            raise TaskResultDoesNotExist(f"{result_id}: what the task returned is not kept")
        if (handler := handlers.find(record.task)) is None:
            raise TaskResultDoesNotExist(f"{result_id}: its task {record.task!r} is no longer a task of this backend")
        return result_of(record, call.task(handler.task), call)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Report a missing app, and a database that is not PostgreSQL; does not connect to it."""
        if (missing := self._missing_app()) is not None:
            return [missing]
        try:
            database = conf.database
        except ConfigurationError:
            return []  # reported by salon_jobs.E001
        if connections[database].vendor == "postgresql":
            return []
        text = f"the jobs of TASKS[{self.alias!r}] are kept in the database {database!r}, which is not PostgreSQL"
        hint = "set SALON_JOBS['DATABASE'] to an alias of DATABASES whose ENGINE is django.db.backends.postgresql"
        return [Error(text, hint=hint, id="salon_jobs.E071")]

    def _missing_app(self) -> CheckMessage | None:
        if apps.is_installed("salon_jobs"):
            return None
        text = f"the backend of TASKS[{self.alias!r}] needs the app salon_jobs, which is not installed"
        return Error(text, hint="add 'salon_jobs' and 'pgtrigger' to INSTALLED_APPS", id="salon_jobs.E070")
