"""Registry of declared tasks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from inspect import Signature
from typing import Any, Protocol, cast

from django.db.backends.base.base import BaseDatabaseWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.core.backoff import Backoff
from salon_jobs.core.errors import TaskInvalid, UnknownTask, did_you_mean
from salon_jobs.core.records import JobState, KeptResult, StoreId
from salon_jobs.core.redaction import HIDDEN, redacted
from salon_jobs.core.run_log import LoggedRun
from salon_jobs.core.text import short_repr
from salon_jobs.jobs.options import DeclaredLimits, ErrorRules, JobOptions, NewJob, Timeouts


class Payload(Protocol):
    """The arguments that a task requires, and their form in a job's payload."""

    @property
    def signature(self) -> Signature:
        """The arguments that enqueueing the task takes, for people."""
        ...

    @property
    def store_name(self) -> str | None:
        """The name of the argument for the store; None without one."""
        ...

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], /) -> Any:
        """Check the arguments of a call. Raises PayloadInvalid."""
        ...

    def stored(self, name: str, value: object, /) -> object:
        """Return one argument in its form in a payload. Raises PayloadInvalid."""
        ...

    def named(self, payload: dict[str, Any], /) -> dict[str, Any]:
        """Return the named arguments of a payload."""
        ...

    def positional(self, payload: dict[str, Any], /) -> Sequence[str]:
        """Return the names of the arguments that a payload holds by position, in ``args``; none without such arguments.

        "" is the name of one that the task does not take.
        """
        ...

    def decode(self, payload: str, store_id: StoreId | None, /) -> dict[str, Any]:
        """Return the keyword arguments of the call. Raises PayloadInvalid if the payload does not fit."""
        ...


class EndedRun(LoggedRun, Protocol):
    """The fields of an ended run that declarations, and the statements that end jobs, read."""

    @property
    def connection(self) -> BaseDatabaseWrapper: ...
    @property
    def ran_s(self) -> float: ...
    @property
    def finished(self) -> bool: ...
    @property
    def result(self) -> KeptResult | None: ...


class TaskDeclaration(Protocol):
    """The view that workers, limits and statistics have of a registered task: a ``Task``, or another library's.

    A run calls ``function(**payload.decode(job.payload, job.store_id))``, with ``current_job()`` as its handle. If the
    job has a store, it is set in every transaction that the call opens; otherwise the call is a system task. A
    declaration that is both ``is_store_task`` and ``atomic`` needs a store, and is called in one transaction.
    """

    @property
    def name(self) -> str: ...
    @property
    def origin(self) -> str:
        """Place of its declaration: a later declaration from there replaces it; others may not share its name."""
        ...

    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def is_async(self) -> bool:
        """Whether ``function`` returns a coroutine."""
        ...

    @property
    def is_store_task(self) -> bool: ...
    @property
    def atomic(self) -> bool: ...
    @property
    def at_most_once(self) -> bool:
        """Whether an interrupted run is never repeated."""
        ...

    @property
    def max_deaths(self) -> int | None:
        """At how many deaths of its processes a job fails; None: the setting."""
        ...

    @property
    def chunk(self) -> int | None:
        """The most jobs of one store in one call; None if a call takes the arguments of one job."""
        ...

    @property
    def payload(self) -> Payload: ...
    @property
    def options(self) -> JobOptions: ...
    @property
    def errors(self) -> ErrorRules: ...
    @property
    def timeouts(self) -> Timeouts | None: ...
    @property
    def limits(self) -> DeclaredLimits: ...
    @property
    def backoff(self) -> Backoff: ...
    def job_of(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], /, *, like: Mapping[str, Any] | None = None
    ) -> NewJob:
        """Return the job that enqueueing these arguments adds, with the options that the payload ``like`` has, if any.

        Raises PayloadInvalid.
        """
        ...

    def stored_job(self, store_id: StoreId | None, payload: str, /) -> NewJob:
        """Return the job of arguments that were bound before, for this store or for none. Raises PayloadInvalid."""
        ...

    @property
    def on_end(self) -> Callable[[EndedRun, JobState, BaseException | None], None] | None:
        """Function to call after each outcome is committed, with the job's state and the error; raises nothing."""
        ...


_declarations: dict[str, TaskDeclaration] = {}
# Another object after each change, so that a thread that read an earlier one does not cache a stale result.
_version = object()


def register(declaration: TaskDeclaration) -> None:
    """Register a task. Raises TaskInvalid if a task of another origin has its name."""
    known = _declarations.get(declaration.name)
    if known is not None and known.origin != declaration.origin:
        raise TaskInvalid(
            f"two tasks are named {declaration.name!r}: {known.origin} and {declaration.origin}; give one of them "
            "another name with name='…'"
        )
    _declarations[declaration.name] = declaration
    _change_version()


def unregister(name: str) -> None:
    """Remove a task, for tests that declare their own."""
    _declarations.pop(name, None)
    _change_version()


def _change_version() -> None:
    global _version  # noqa: PLW0603 - one a process
    _version = object()


def get_declaration(name: str) -> TaskDeclaration:
    """Return the task with this name. Raises UnknownTask suggesting the closest registered name."""
    try:
        return _declarations[name]
    except (KeyError, TypeError):
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UnknownTask(f"the name of a task is a string, not {short_repr(name)}") from None
        raise UnknownTask(f"no task is named {name!r}{did_you_mean(name, _declarations)}") from None


def declaration_of(target: object) -> TaskDeclaration:
    """Return the declaration of a task: ours, or one of Django's whose backend is ours. Raises TaskInvalid."""
    if (other := other_backend_of(target)) is not None:
        raise TaskInvalid(
            f"{short_repr(target)} is a task of {other}, not of salon_jobs.backend.SalonJobsBackend: see TASKS"
        )
    name, is_store_task = getattr(target, "name", None), getattr(target, "is_store_task", None)
    if not isinstance(target, type) and isinstance(name, str) and isinstance(is_store_task, bool):
        return cast("TaskDeclaration", target)
    if not is_djangos(target):
        raise TaskInvalid(f"{short_repr(target)} is not a task; declare it with @task")
    return cast("TaskDeclaration", cast("Any", target).get_backend().declaration_of(target))


def is_djangos(target: object) -> bool:
    """Return whether an object is a task of Django's, with any backend."""
    return not isinstance(target, type) and callable(getattr(target, "get_backend", None))


def other_backend_of(target: object) -> str | None:
    """Return the backend name of a task of Django's if the backend is not ours; None for anything else."""
    if not is_djangos(target):
        return None
    backend = cast("Any", target).get_backend()
    return None if hasattr(backend, "declaration_of") else type(backend).__name__


_finders: list[Callable[[str], bool]] = []


def add_finder(find: Callable[[str], bool]) -> None:
    """Add a function that registers tasks of jobs that wait in a database, and returns whether it found any."""
    _finders.append(find)


def find_waiting_tasks(*, using: str) -> bool:
    """Let the finders register tasks that queued jobs name and no module has declared; return whether any did.

    Raises database errors. Worker role.
    """
    registered = [find(using) for find in _finders]
    return any(registered)


def visible(task: str, payload: Any) -> Any:
    """Return the payload of a task's job for display: without the values of arguments that ``REDACT`` names.

    Positional arguments of Django's tasks are hidden by their names in the signature; those without a name there,
    perhaps from another release, are hidden too, and so are all of them if this process does not know the task.
    """
    held = cast("dict[str, Any]", payload if isinstance(payload, dict) and "backend" in payload else {})
    args = held.get("args")
    if not isinstance(args, list):
        return redacted(payload, conf.redact)
    given = cast("Any", args)
    try:
        names = get_declaration(task).payload.positional(held)
    except UnknownTask:
        return redacted({**held, "args": [HIDDEN] * len(given)}, conf.redact)
    visible_args = [
        redacted({name: value}, conf.redact)[name] if name else HIDDEN
        for name, value in zip(names, given, strict=False)
    ]
    return redacted({**held, "args": visible_args or given}, conf.redact)


def visible_arguments(task: str, shown: Any) -> dict[str, Any]:
    """Return the arguments of a task's job by their names, from the result of ``visible``.

    For a Django task that this process does not know, only the named arguments. ``*args`` are a list.
    """
    if not isinstance(shown, dict):
        return {}
    call = cast("dict[str, Any]", shown)
    if "backend" not in call or not isinstance(call.get("args"), list):
        return call
    named: dict[str, Any] = {}
    with suppress(UnknownTask):
        names = get_declaration(task).payload.positional(call)
        for name, value in zip(names, call["args"], strict=False):
            named[name] = value if names.count(name) == 1 else [*named.get(name, ()), value]
    given = call.get("kwargs")
    return {**named, **(cast("dict[str, Any]", given) if isinstance(given, dict) else {})}


def tasks() -> list[TaskDeclaration]:
    """Return the registered tasks."""
    return list(_declarations.values())


def task_names(*, is_async: bool | None = None) -> list[str]:
    """Return the registered task names, sorted; ``is_async``: only those of coroutines, or of other functions."""
    return list(_names(is_async, _version))


def has_coroutines() -> bool:
    """Return whether any registered task has an async handler."""
    return bool(_names(True, _version))


@lru_cache(maxsize=3)
def _names(is_async: bool | None, _: object) -> tuple[str, ...]:
    # Every claim asks for them.
    declarations = tuple(_declarations.items())  # other threads can import modules in the meantime
    return tuple(sorted(name for name, each in declarations if is_async is None or each.is_async is is_async))


def queue_names() -> set[str]:
    """Return the queues of the registered tasks; ``using`` can name others."""
    return {task.options.queue for task in _declarations.values()}
