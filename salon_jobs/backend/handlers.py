"""Handlers by which workers run the tasks of this backend, and the search for tasks in modules not yet imported."""

from __future__ import annotations

import inspect
import json
import logging
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial, reduce
from typing import Any, Final, cast
from uuid import uuid4

import msgspec
from asgiref.sync import sync_to_async
from django.utils.functional import Promise

from salon_jobs.backend.framework import (
    LOGGER,
    InvalidTask,
    TaskContext,
    TaskError,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from salon_jobs.backend.results import STATUS, BackendResult, TaskCall, changes_of, new_result, result_of, update
from salon_jobs.backend.tasks import AnyTask, import_task, is_task, job_key, option
from salon_jobs.conf import settings as conf
from salon_jobs.core.as_json import why_not
from salon_jobs.core.backoff import Backoff
from salon_jobs.core.error_report import report
from salon_jobs.core.errors import OptionInvalid, PayloadInvalid, PayloadUnknown, suggest
from salon_jobs.core.events import logger
from salon_jobs.core.extensions import Extension
from salon_jobs.core.records import JobState, StoreId
from salon_jobs.db import statements
from salon_jobs.db.instants import to_project
from salon_jobs.jobs import registry
from salon_jobs.jobs.current import FinishedWith, current_job
from salon_jobs.jobs.options import DeclaredLimits, ErrorRules, JobOptions, NewJob, Timeouts, checked
from salon_jobs.jobs.registry import EndedRun
from salon_jobs.jobs.results import load_result
from salon_jobs.jobs.run import JobRun
from salon_jobs.tenancy.active import current_store_id

_handlers: dict[str, TaskHandler] = {}
# Options that the worker reads from the declared task, so that one enqueue cannot change them.
_OF_THE_WORKER: Final = ("timeout", "backoff", "at_most_once")


def effective(task: AnyTask, name: str) -> Any:
    """Return an option of a task; the default is that of its backend's OPTIONS."""
    return option(task, name, task.get_backend().options.get(name))


def options_of(task: AnyTask) -> JobOptions:
    """Return the options of a task's jobs, which have one attempt by default. Raises OptionInvalid."""
    options = {
        "queue": task.queue_name,
        "priority": -int(task.priority),  # here, lower comes first
        "max_attempts": 1 if effective(task, "at_most_once") else effective(task, "max_attempts") or 1,
        "keep_result": keep_result(task),
    }
    return JobOptions(**checked(options))


class PayloadUnwritable(PayloadInvalid, ValueError):
    """An argument that jsonb cannot hold: an error of ours and of Django's own backends at once."""


class TaskHandler:
    """Declaration of one Django task, by which workers run its jobs.

    Its options are those of the task that the module holds under the function's name. They are read when needed, since
    a module can replace its task while it is imported: ``f = f.using(…)``.
    """

    def __init__(self, task: AnyTask) -> None:
        self.name = self.origin = task.module_path
        self.is_store_task = self.atomic = False
        self.chunk = self.store_name = None
        self.limits, self.errors = DeclaredLimits(), ErrorRules()
        self.func = task.func
        self.is_async = inspect.iscoroutinefunction(task.func)
        self._first = task
        self._declared: AnyTask | None = None

    @property
    def task(self) -> AnyTask:
        """The declared task: the one in its module, or else the first one made of the function."""
        if self._declared is None:
            module: object = sys.modules.get(self.func.__module__)
            found = reduce(lambda held, name: getattr(held, name, None), self.func.__qualname__.split("."), module)
            if not is_task(found) or found.func is not self.func:
                return self._first
            self._declared = found
        return self._declared

    @property
    def signature(self) -> inspect.Signature:
        """The arguments that enqueueing it takes."""
        signature = inspect.signature(self.func)
        parameters = [*signature.parameters.values()][1 if self.task.takes_context else 0 :]
        return signature.replace(parameters=parameters)

    @property
    def options(self) -> JobOptions:
        return options_of(self.task)

    @property
    def at_most_once(self) -> bool:
        return bool(effective(self.task, "at_most_once"))

    @property
    def max_deaths(self) -> int | None:
        return None

    @property
    def timeouts(self) -> Timeouts | None:
        timeout = effective(self.task, "timeout")
        return None if timeout is None else Timeouts(timeout=timeout)

    @property
    def backoff(self) -> Backoff:
        return effective(self.task, "backoff") or conf.backoff

    @property
    def payload(self) -> TaskHandler:
        return self

    def check_reach(self, task: AnyTask) -> None:
        """Raise InvalidTask if the task differs from the declared one in options that the worker reads from it."""
        if task is self.task:
            return
        for name in _OF_THE_WORKER:
            if effective(task, name) != effective(self.task, name):
                raise InvalidTask(
                    f"{self.name}: the worker reads {name} from the task in its module, not from one enqueue; declare "
                    f"it there: {self.func.__name__} = {self.func.__name__}.using({name}=…)"
                )

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], /, task: AnyTask | None = None) -> TaskCall:
        """Return the call of the declared task, or of one with other options, with these arguments.

        Raises PayloadInvalid if they do not fit, or are not JSON.
        """
        try:
            self.signature.bind(*args, **kwargs)
            return self.call_of(task or self.task, args, kwargs)
        except (TypeError, ValueError) as error:
            raise PayloadInvalid(f"task {self.name!r}: {error}") from error

    def call_of(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskCall:
        """Return the call that a task enqueues. Raises TypeError or ValueError naming the argument that is not JSON."""
        try:
            arguments: Any = normalize_json(_with_text({"args": args, "kwargs": kwargs}))
        except (TypeError, ValueError, RecursionError):
            for name, value in [*zip(self.signature.parameters, args, strict=False), *kwargs.items()]:
                _as_json(name, value)
            raise
        fits = not self._unknown_argument(arguments["args"], arguments["kwargs"])
        return TaskCall(backend=task.backend, changes=changes_of(task, self.task), fits=fits, **arguments)

    def job_of(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], /, *, like: Mapping[str, Any] | None = None
    ) -> NewJob:
        """Return the job that enqueueing these arguments adds. Raises PayloadInvalid, InvalidTask.

        It has the alias and the options of the call ``like``, but not its ``run_after``. Without ``args``,
        positional-only arguments may be named, as ``named`` does.
        """
        if not args:
            args, kwargs = self._placed(kwargs)
        task, earlier = self.task, TaskCall.of(like) if isinstance(like, Mapping) else None
        if earlier is not None and earlier.backend in task_backends.settings:
            earlier.changes.pop("run_after", None)
            task = earlier.task(task)
        return self.new_job(task, self.bind(args, kwargs, task), job_key(task, args, kwargs))

    def new_job(self, task: AnyTask, call: TaskCall, key: str | None) -> NewJob:
        """Return the job of a call, with the options of the task that was enqueued.

        Raises InvalidTask, PayloadUnwritable.
        """
        try:
            values = replace(options_of(task), **checked({"run_at": task.run_after, "job_key": key})).values()
        except OptionInvalid as error:
            raise InvalidTask(f"{task.module_path}: {error}") from error
        if values["keep_result"] == keep_result(self.task):
            values["keep_result"] = None
        return NewJob(
            task=self.name, store_id=current_store_id(), payload=self.written(call), public_id=uuid4(), **values
        )

    def written(self, call: TaskCall) -> str:
        """Return a call as a payload. Raises PayloadUnwritable for an argument that jsonb cannot hold."""
        try:
            return call.encode()
        except ValueError as error:
            given = self.named({"args": call.args, "kwargs": call.kwargs, "backend": call.backend})
            text = f"task {self.name!r}: an argument cannot be JSON: {why_not(given, error)}"
            raise PayloadUnwritable(text) from error

    def stored_job(self, store_id: StoreId | None, payload: str, /) -> NewJob:
        """Return the job of a stored call. Raises PayloadInvalid, InvalidTask; TypeError for a job key."""
        call: TaskCall = self.decode(payload, store_id)["call"]
        task = call.task(self.task)
        return replace(self.new_job(task, call, job_key(task, call.args, call.kwargs)), store_id=store_id)

    def stored(self, name: str, value: object) -> object:
        """Return one argument in its form in a payload. Raises PayloadInvalid for an unknown name."""
        parameters = self.signature.parameters
        if name not in parameters and all(each.kind is not each.VAR_KEYWORD for each in parameters.values()):
            raise PayloadInvalid(f"task {self.name!r} has no argument {name!r}; {suggest(name, parameters)}")
        return _as_json(name, value)

    def named(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a payload by name, or its raw content if they no longer fit."""
        call = TaskCall.of(payload)
        if call is None:
            return payload
        try:
            bound = self.signature.bind(*call.args, **call.kwargs)
        except TypeError:
            return payload
        named = dict(bound.arguments)
        for parameter in bound.signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                named |= named.pop(parameter.name, {})
            elif parameter.kind is parameter.VAR_POSITIONAL and parameter.name in named:
                named[parameter.name] = list(named[parameter.name])  # as JSON has it
        return named

    def _placed(self, named: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return named arguments by position and by keyword: all by keyword, if none needs a position."""
        parameters = self.signature.parameters
        # ``named`` does not group **kwargs: an argument with that name is one of them.
        given = {
            name: named[name]
            for name, each in parameters.items()
            if name in named and each.kind is not each.VAR_KEYWORD
        }
        needs_position = any(
            parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY
            or (parameters[name].kind is inspect.Parameter.VAR_POSITIONAL and isinstance(value, (list, tuple)))
            for name, value in given.items()
        )
        if not needs_position:
            return (), named
        bound = inspect.BoundArguments(self.signature, OrderedDict(given))
        return bound.args, {**bound.kwargs, **{name: named[name] for name in named.keys() - given.keys()}}

    def positional(self, payload: dict[str, Any]) -> Sequence[str]:
        """Return the names of the arguments in ``args``; those that ``*args`` takes share its name."""
        parameters = self.signature.parameters.values()
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        by_position = [each.name for each in parameters if each.kind in kinds]
        rest = next((each.name for each in parameters if each.kind is each.VAR_POSITIONAL), "")
        given = len(payload["args"])
        return [*by_position, *[rest] * (given - len(by_position))][:given]

    def decode(self, payload: str, store_id: StoreId | None, /) -> dict[str, Any]:
        """Read a job's payload. Raises PayloadInvalid if this backend did not write it.

        Raises PayloadUnknown if another release wrote it, for a function with other arguments or for another alias.
        """
        invalid = f"task {self.name!r}: the payload was not written by django.tasks; enqueue the task itself"
        try:
            call = TaskCall.of(msgspec.json.decode(payload))
        except Exception as error:  # what SQL enqueues can be nested too deep, of other types, out of range
            raise PayloadInvalid(f"{invalid}: {error}") from error
        if call is None:
            raise PayloadInvalid(invalid)
        if call.backend not in task_backends.settings:
            raise PayloadUnknown(f"task {self.name!r}: TASKS of this release has no alias {call.backend!r}")
        if call.fits and (unknown := self._unknown_argument(call.args, call.kwargs)):
            raise PayloadUnknown(f"task {self.name!r}: no {unknown} in this release")
        return {"call": call}

    def _unknown_argument(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return in words the arguments that the function does not take; "" if it takes all. Ignores missing ones."""
        most, names = self._accepted
        if most is not None and len(args) > most:
            return f"argument {len(args)} by position"
        unknown = [] if names is None else [repr(name) for name in kwargs if name not in names]
        return f"argument {', '.join(unknown)}" if unknown else ""

    @cached_property
    def _accepted(self) -> tuple[int | None, frozenset[str] | None]:
        """The most arguments by position, and the names of those by keyword; None for any."""
        kinds = defaultdict[Any, list[str]](list)
        for parameter in self.signature.parameters.values():
            kinds[parameter.kind].append(parameter.name)
        either = kinds[inspect.Parameter.POSITIONAL_OR_KEYWORD]
        most = len(kinds[inspect.Parameter.POSITIONAL_ONLY]) + len(either)
        names = frozenset([*either, *kinds[inspect.Parameter.KEYWORD_ONLY]])
        return (
            None if kinds[inspect.Parameter.VAR_POSITIONAL] else most,
            None if kinds[inspect.Parameter.VAR_KEYWORD] else names,
        )

    def function(self, call: TaskCall) -> Any:
        """Run the task as the current job; for an ``async def`` task, return its coroutine."""
        if self.is_async:
            return self._awaited(call)
        result = self._begin(call)
        returned = self._call(call, result)
        # The worker refuses a result that should have been awaited.
        return returned if inspect.isawaitable(returned) else _returned(returned, result)

    async def _awaited(self, call: TaskCall) -> Any:
        result = await sync_to_async(self._begin)(call)
        return _returned(await self._call(call, result), result)

    def _begin(self, call: TaskCall) -> BackendResult:
        run = current_job().run
        result = run.attach(_Begun(_started(run, self, call))).result
        task_started.send(sender=type(task_backends[call.backend]), task_result=result)
        return result

    def perform(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the function as a worker does, without a job; for an ``async def`` task, return its coroutine.

        Raises PayloadInvalid.
        """
        call = self.bind(args, kwargs)
        result = new_result(self.task, call, uuid4(), datetime.now(UTC))
        update(result, **_running(worker_ids=[""]))
        returned = self._call(call, result)
        return _awaited_and_checked(returned) if self.is_async else _checked(returned)

    def _call(self, call: TaskCall, result: BackendResult) -> Any:
        context = (TaskContext(task_result=result),) if self.task.takes_context else ()
        return self.func(*context, *call.args, **call.kwargs)

    def on_end(self, run: EndedRun, state: JobState, error: BaseException | None) -> None:
        """Send ``task_finished`` for a job that has ended. Raises nothing: its outcome is committed."""
        if state in (JobState.QUEUED, JobState.RUNNING):
            return
        try:
            if (result := _ended(self, run, state, error)) is None:
                return
            send = partial(task_finished.send_robust, type(task_backends[result.backend]), task_result=result)
        except Exception:  # the database is away, or the alias has been removed from TASKS
            logger.exception("task_finished of job %s could not be sent", run.job.id)
            return
        if error is None:
            send()
            return
        try:
            raise error
        except BaseException:  # receivers find the exception being handled
            told = _is_logged.set(True)
            try:
                send()
            finally:
                _is_logged.reset(told)


# Set while receivers learn of a failure, which the record ``job_failed`` has described.
_is_logged: ContextVar[bool] = ContextVar("salon_jobs_failure_is_logged", default=False)


# One failure is one record: Django's own has less detail.
logging.getLogger(LOGGER).addFilter(lambda record: record.levelno < logging.ERROR or not _is_logged.get())


def keep_result(task: AnyTask) -> timedelta:
    """Return how long the result of a success is kept; zero keeps none."""
    kept: timedelta | None = effective(task, "keep_result")
    return conf.result_retention if kept is None else kept


def handler_of(task: AnyTask) -> TaskHandler:
    """Return the handler of a task, registering it for workers. Raises TaskInvalid if its name is taken."""
    path = task.module_path
    handler = _handlers.get(path)
    if handler is None or handler.func is not task.func:
        handler = TaskHandler(task)
        registry.register(handler)
        _handlers[path] = handler
    return handler


def find(path: str) -> TaskHandler | None:
    """Return the handler of the task with this dotted path, importing it; None unless it is a task of this backend.

    The path comes from a row, so modules with effects when imported are left alone: ``__main__``, and Python's own.
    """
    if path not in _handlers:
        parts = path.split(".")
        if "__main__" in parts or parts[0] in sys.stdlib_module_names:
            return None
        try:
            task = import_task(path)
        except ValueError:
            return _handlers.get(path)  # importing the module may have made the task, under another name
        task.get_backend().validate_task(task)  # ours registers it
    return _handlers.get(path)


def _as_json(name: object, value: object) -> Any:
    """Return an argument in JSON's form. Raises TypeError or ValueError that names it."""
    try:
        return normalize_json(_with_text(value))
    except (TypeError, ValueError, RecursionError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"argument {name!r} cannot be JSON: {error}") from error


def _returned(value: Any, result: BackendResult) -> Any:
    normalized = _normalized(value)
    update(result, _return_value=normalized)
    return normalized


def _checked(value: Any) -> Any:
    """Return a result that can be kept. Raises TypeError or ValueError as a worker would."""
    _normalized(value)
    return value


async def _awaited_and_checked(value: Awaitable[Any]) -> Any:
    return _checked(await value)


def _normalized(value: Any) -> Any:
    """Return a result in the form of Django's own interface. Raises TypeError or ValueError."""
    return json.loads(json.dumps(normalize_json(_with_text(value))))


def _with_text(value: Any) -> Any:
    """Return a value with lazy text as text in the current language, since ``normalize_json`` does not take it."""
    if isinstance(value, Promise):
        return str(value)
    if isinstance(value, Mapping):
        return {_with_text(key): _with_text(each) for key, each in cast("Any", value).items()}
    if isinstance(value, (list, tuple)):
        return [_with_text(each) for each in cast("Any", value)]
    return value


@dataclass
class _Begun(Extension):
    """The result at the start of a run, as passed to receivers of ``task_started``."""

    result: BackendResult


def _started(run: JobRun, handler: TaskHandler, call: TaskCall) -> BackendResult:
    """Return the result of a job at the start of an attempt; it is read from the database only after a failure."""
    job = run.job
    task = call.task(handler.task)
    record = (
        None if job.attempt == 1 or job.public_id is None else load_result(job.public_id, using=run.connection.alias)
    )
    if record is not None:
        return result_of(record, task, call)
    result = new_result(task, call, job.public_id, job.created_at)
    update(result, **_running(worker_ids=[str(run.leases.process_id)]))
    return result


def _running(*, worker_ids: list[str]) -> dict[str, Any]:
    """Return the values of a result whose first attempt begins now."""
    now = to_project(datetime.now(UTC))
    return {"status": TaskResultStatus.RUNNING, "started_at": now, "last_attempted_at": now, "worker_ids": worker_ids}


def _ended(handler: TaskHandler, run: EndedRun, state: JobState, error: BaseException | None) -> BackendResult | None:
    """Return the result of a job that has ended; it is read only if this run does not know all of it."""
    begun = run.extension(_Begun)
    if begun is None or state is JobState.CANCELLED:
        public_id = run.job.public_id
        record = None if public_id is None else load_result(public_id, using=run.connection.alias)
        call = None if record is None else TaskCall.of(record.payload)
        return None if record is None or call is None else result_of(record, call.task(handler.task), call)
    result = copy(begun.result)
    update(result, status=STATUS[state], finished_at=to_project(datetime.now(UTC)))
    if run.finished:  # by current_job().finish(): the function's return value came too late
        kept, passed = run.result, run.extension(FinishedWith)
        value = passed and passed.result if kept is None else msgspec.json.decode(kept.value)
        update(result, _return_value=value)
    if error is not None:
        described = report(error)
        last = TaskError(exception_class_path=described.error_class, traceback=described.traceback)
        update(result, errors=[*result.errors, last])
    return result


def _can_import(path: str) -> bool:
    """Return whether a task of this backend has this dotted path. Logs errors of its module."""
    try:
        return find(path) is not None
    except (Exception, SystemExit):
        logger.exception("the module of task %s cannot be imported", path)
        return False


def _find_waiting_tasks(using: str) -> bool:
    """Import the tasks of this backend that waiting jobs name; return whether there were any."""
    known = [*registry.task_names(), *_no_tasks]
    parameters = {"tasks": known, "backends": list(task_backends)}
    waiting = statements.rows("tasks_to_import", parameters, using=using)
    paths = {path for (path,) in waiting}
    found = set(filter(_can_import, paths))
    # They are reported as unknown tasks, and left to workers that know them.
    _no_tasks.update(paths - found)
    return bool(found)


# Dotted paths at which this process found no task, and never will: its code does not change.
_no_tasks: Final[set[str]] = set()
registry.add_finder(_find_waiting_tasks)
