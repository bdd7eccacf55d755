"""Tasks of this backend: Django's own, with options for their jobs."""

from __future__ import annotations

import inspect
import pkgutil
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Literal,
    ParamSpec,
    TypedDict,
    TypeGuard,
    TypeVar,
    Unpack,
    overload,
)

from salon_jobs.backend.framework import InvalidTask, Task, TaskContext
from salon_jobs.backend.framework import task as django_task
from salon_jobs.core.backoff import Backoff
from salon_jobs.core.errors import OptionInvalid, suggest
from salon_jobs.core.text import short_repr
from salon_jobs.jobs.options import EnqueueOptions, checked, our_option_for, raise_attribute_error, refuse_repetition

P = ParamSpec("P")
R = TypeVar("R")

if TYPE_CHECKING:
    AnyTask = Task[..., Any]
else:
    AnyTask = Task


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTask(AnyTask):
    """Django task with options for its jobs, set with ``@task`` (if Django passes them on) or ``using``.

    None leaves an option to the backend's ``OPTIONS``. ``job_key`` is a template over the arguments. ``keep_result`` is
    how long the result of a success can be read; zero keeps none.
    """

    max_attempts: int | None = None
    backoff: Backoff | None = None
    timeout: timedelta | None = None
    job_key: str | None = None
    keep_result: timedelta | None = None
    at_most_once: bool | None = None

    if not TYPE_CHECKING:
        __getattr__ = raise_attribute_error

    def __post_init__(self) -> None:
        """Validate the task. Raises InvalidTask."""
        AnyTask.__post_init__(self)
        try:
            check_options({name: getattr(self, name) for name in _OURS})
        except OptionInvalid as error:
            raise InvalidTask(f"{self.module_path}: {error}") from error
        if self.job_key is not None:
            _check_template(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path of the function, not the function: under its name the module holds this task."""
        changes = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "func"}
        return _unpickled, (self.module_path, changes)

    # Has more options than the base class. Type checkers do not see this: to them it is Django's Task.
    def using(self, **options: Any) -> JobTask:
        """Return the task with other options; None keeps one as it is. Raises InvalidTask, TypeError."""
        _refuse_unknown(options, UsingOptions.__annotations__)
        return replace(self, **{name: value for name, value in options.items() if value is not None})


class _JobTaskOptions(TypedDict, total=False):
    max_attempts: int | None
    backoff: Backoff | None
    timeout: timedelta | None
    job_key: str | None
    keep_result: timedelta | None
    at_most_once: bool | None


class UsingOptions(_JobTaskOptions, total=False):
    """Options of ``using``: Django's, and those of a ``JobTask``; None keeps one as it is."""

    priority: int | None
    queue_name: str | None
    run_after: datetime | None
    backend: str | None


if TYPE_CHECKING:

    class TypedTask(Task[P, R]):
        """Type checkers' view of a task declared with ``task``, which is a ``JobTask``."""

        def using(self, **options: Unpack[UsingOptions]) -> TypedTask[P, R]: ...


class DjangoTaskOptions(_JobTaskOptions, total=False):
    """Options of ``task``: Django's, and those of a ``JobTask``."""

    priority: int
    queue_name: str
    backend: str


@overload
def task(function: Callable[P, R], /) -> TypedTask[P, R]: ...
@overload
def task(
    *, takes_context: Literal[True], **options: Unpack[DjangoTaskOptions]
) -> Callable[[Callable[Concatenate[TaskContext[Any, Any], P], R]], TypedTask[P, R]]: ...
@overload
def task(
    *, takes_context: Literal[False] = False, **options: Unpack[DjangoTaskOptions]
) -> Callable[[Callable[P, R]], TypedTask[P, R]]: ...
def task(function: Any = None, /, *, takes_context: bool = False, **options: Unpack[DjangoTaskOptions]) -> Any:
    """Declare a task as Django's ``task`` does, with the options of this backend, on every version of Django.

    Raises InvalidTask, or TypeError for an unknown option.
    """
    _refuse_unknown(options, DjangoTaskOptions.__annotations__)
    given: dict[str, Any] = dict(options)
    ours = {name: given.pop(name) for name in _OURS if name in given}

    make: Any = django_task

    def declare(function: Any) -> Any:
        declared: AnyTask = make(takes_context=takes_context, **given)(function)
        if not ours:
            return declared
        if not isinstance(declared, JobTask):
            raise InvalidTask(
                f"{declared.module_path}: {', '.join(ours)} are options of SalonJobsBackend, but "
                f"TASKS[{declared.backend!r}] is another backend; name one of ours with backend='…'"
            )
        return declared.using(**ours)

    return declare if function is None else declare(function)


_OURS: Final = tuple(_JobTaskOptions.__annotations__)
# Options that ``OPTIONS`` can have, too.
BACKEND_OPTIONS: Final = tuple(name for name in _OURS if name != "job_key")
# Options of a task that one enqueue can change. The worker reads the rest from the task as declared.
ENQUEUED: Final = (
    "priority",
    "queue_name",
    "run_after",
    *(name for name in _OURS if name in EnqueueOptions.__annotations__),
)
# Names of ``run_after`` in native tasks and other libraries.
_DUE: Final = frozenset({"run_at", "run_in", "eta", "countdown", "schedule_at"})


def _refuse_unknown(options: Mapping[str, Any], known: Collection[str]) -> None:
    for name in options:
        if name not in known:
            word = "run_after=…" if name in _DUE and "run_after" in known else our_option_for(name, known)
            raise TypeError(
                f"a task has no option {short_repr(name)}; {f'use {word}' if word else suggest(name, known)}"
            )


def check_options(options: Mapping[str, Any]) -> None:
    """Check the options of a task or of ``OPTIONS``. Raises OptionInvalid."""
    if checked(options).get("at_most_once"):
        refuse_repetition(options)


def option(task: AnyTask, name: str, default: Any = None) -> Any:
    """Return an option of a task, or the default; a task declared for another backend has none."""
    value = getattr(task, name, None)
    return default if value is None else value


def job_key(task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Fill in the task's job key from the arguments. Raises TypeError if they do not fit the function."""
    template: str | None = option(task, "job_key")
    if template is None or "{" not in template:
        return template
    context = (None,) if task.takes_context else ()
    bound = inspect.signature(task.func).bind(*context, *args, **kwargs)
    bound.apply_defaults()
    return template.format_map(bound.arguments)


def is_task(found: object) -> TypeGuard[AnyTask]:
    """Return whether an object is a task, of any backend."""
    return isinstance(found, Task)


def import_task(path: str) -> AnyTask:
    """Return the task with this dotted path. Raises ValueError if there is none, or another object."""
    try:
        found = pkgutil.resolve_name(path)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{short_repr(path)} cannot be imported: {error}") from error
    if not is_task(found):
        raise ValueError(f"{short_repr(path)} is not a task")
    return found


def changed(task: AnyTask, changes: Mapping[str, Any]) -> AnyTask:
    """Return a copy with other values, without checking them: the settings may now refuse earlier options."""
    if all(getattr(task, name) == value for name, value in changes.items()):
        return task
    copy = object.__new__(type(task))
    for field in fields(task):
        object.__setattr__(copy, field.name, changes.get(field.name, getattr(task, field.name)))
    return copy


def _unpickled(path: str, changes: Mapping[str, Any]) -> AnyTask:
    return changed(import_task(path), changes)


def _check_template(task: JobTask) -> None:
    assert task.job_key is not None  # noqa: S101 - the caller checked
    parameters = inspect.signature(task.func).parameters
    try:
        used = {name for _, name, _, _ in string.Formatter().parse(task.job_key) if name is not None}
    except ValueError as error:
        raise InvalidTask(f"{task.module_path}: the job_key template is wrong: {error}") from error
    if unknown := used - parameters.keys():
        raise InvalidTask(f"{task.module_path}: job_key uses {sorted(unknown)}, which are not arguments")
