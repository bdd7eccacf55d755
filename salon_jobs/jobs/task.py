"""Tasks: functions that can be enqueued, with their options and argument types."""

from __future__ import annotations

import inspect
import re
import string
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, Unpack, cast, overload

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.exceptions import AppRegistryNotReady
from msgspec import Struct

from salon_jobs.conf import settings as conf
from salon_jobs.core.arguments import check_text
from salon_jobs.core.backoff import Backoff
from salon_jobs.core.errors import OptionInvalid, PayloadInvalid, SalonJobsError, TaskInvalid, UnknownTask
from salon_jobs.core.records import GivenStore, StoreId
from salon_jobs.core.text import short_repr
from salon_jobs.jobs import enqueue, registry
from salon_jobs.jobs.enqueue import JobContent
from salon_jobs.jobs.options import (
    LONGEST,
    DeclaredLimits,
    EnqueueOptions,
    ErrorRules,
    JobOptions,
    NewJob,
    TaskOptions,
    Timeouts,
    check_number,
    checked,
    raise_attribute_error,
    refuse_repetition,
    refuse_unknown,
)
from salon_jobs.jobs.payload import STORE_ARGUMENT, Arguments, ChunkPayload, PayloadType
from salon_jobs.jobs.results import JobHandle

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
# Covariant: code that expects a wider return type accepts the task, such as Coroutine for a coroutine's own type.
R_co = TypeVar("R_co", covariant=True)

# A chunk is one transaction: beyond some hundreds of jobs it gains nothing, and a rollback costs more.
LARGEST_CHUNK: Final = 1000

_TASK_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


class Call(Struct, Generic[P], frozen=True, gc=False):
    """One validated call of a task, for ``enqueue_many``."""

    task: str
    arguments: Arguments
    trace: str | None = None


def check_call(takes: str, call: object, error: type[SalonJobsError], *, of_djangos: str) -> None:
    """Raise the error for a value that is not a task call; ``of_djangos`` is what to write for a task of Django's.

    Calling ``call`` of such a task runs it, so its return value may have been given here.
    """
    if not isinstance(call, Call):
        raise error(f"{takes}, not {short_repr(call)}; the call() of a task of Django's runs it at once: {of_djangos}")


def follow_up(then: Call[...]) -> NewJob:
    """Return the job to enqueue for this call, with its task's own options. Raises PayloadInvalid."""
    takes = "then is the call of a task, such as summarize.call(day=day)"
    check_call(takes, then, PayloadInvalid, of_djangos="let a task of salon_jobs enqueue it")
    task = get_task(then.task)
    return replace(task.new_job(then.arguments, task.options), trace=then.trace)


class BoundTask(Generic[P]):
    """A task with options, as returned by ``using``; enqueueable with the function's typed arguments."""

    if not TYPE_CHECKING:
        __getattr__ = raise_attribute_error

    def __init__(self, task: Task[P, Any], options: JobOptions) -> None:
        self.task = task
        self.options = options

    @property
    def is_ordered_by_calls(self) -> bool:
        """Whether the order of its calls matters and ``enqueue_many`` would not keep it: ordered jobs with job keys."""
        has_job_key = bool(self.options.job_key) or "job_key" in self.task.key_templates
        return self.task.ordered is not None and has_job_key

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """Enqueue one job in the caller's transaction. Raises PayloadInvalid, or EnqueueRefused under another store."""
        job = self.task.new_job(self.task.payload.bind(args, kwargs), self.options)
        return enqueue.run_at_once_in_tests(enqueue.add(job))

    def enqueue_many(self, calls: Iterable[Call[P]], *, then: Call[...] | None = None) -> list[JobHandle]:
        """Enqueue many jobs in one transaction and return their handles in order.

        ``calls`` can be a generator: without job keys, only a few thousand calls are in memory at a time. ``then`` is
        the call of any task, enqueued in the transaction that ends the last of these jobs. Raises PayloadInvalid if one
        of ``calls`` is another task's.
        """
        pattern = self.task.new_job(None, self.options.for_batch())
        if self.is_ordered_by_calls:
            raise OptionInvalid(
                "enqueue_many adds jobs with a job_key in the order of their keys, and these are ordered: enqueue them "
                "one by one"
            )
        after = None if then is None else follow_up(then)
        return enqueue.run_at_once_in_tests(enqueue.add_many(pattern, self.contents(calls), then=after))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """Enqueue like ``enqueue``, from a coroutine: on the thread whose connection the ORM uses there."""
        return await sync_to_async(self.enqueue)(*args, **kwargs)

    async def aenqueue_many(self, calls: Iterable[Call[P]], *, then: Call[...] | None = None) -> list[JobHandle]:
        """Enqueue like ``enqueue_many``, from a coroutine."""
        return await sync_to_async(self.enqueue_many)(calls, then=then)

    def contents(self, calls: Iterable[Call[P]]) -> Iterator[JobContent]:
        """Yield the differing columns of these jobs. Raises PayloadInvalid."""
        task, given = self.task, self.options
        for call in calls:
            if not isinstance(call, Call) or call.task != task.name:  # pyright: ignore[reportUnnecessaryIsInstance]
                other = f"a call of {call.task!r}" if isinstance(call, Call) else short_repr(call)  # pyright: ignore[reportUnnecessaryIsInstance]
                raise PayloadInvalid(f"task {task.name!r}: enqueue_many got {other}; use its own call(...)")
            arguments = call.arguments
            keys = task.keys_for(arguments.store_id, arguments, given)
            yield JobContent(
                arguments.store_id,
                arguments.json,
                keys.get("job_key", given.job_key),
                keys.get("concurrency_key", given.concurrency_key),
                call.trace,
            )


class Task(BoundTask[P], Generic[P, R_co]):
    """A declared task with its own options: still callable as a function, and enqueueable with the same arguments."""

    def __init__(
        self,
        function: Callable[P, R_co],
        *,
        name: str | None,
        options: JobOptions,
        is_store_task: bool,
        atomic: bool,
        job_key_template: str | None,
        backoff: Backoff | None,
        errors: ErrorRules,
        timeouts: Timeouts,
        limits: DeclaredLimits,
        at_most_once: bool,
        max_deaths: int | None,
        chunk: int | None,
    ) -> None:
        _check_function(name, function)
        if name is None:
            name = _derived_name(function)
        if not isinstance(name, str) or not _TASK_NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TaskInvalid(
                f"{name!r} cannot be a task's name: use up to 255 ASCII letters and digits, '.', '_' and '-', the "
                f"first a letter or digit; give {function.__qualname__} another one with name='…'"
            )
        if atomic and inspect.iscoroutinefunction(function):
            raise TaskInvalid(
                f"task {name!r}: an async def handler cannot run in one transaction, which would stay open while it "
                "awaits; declare it with atomic=False, or with def"
            )
        super().__init__(self, options)
        self.name = name
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.is_store_task = is_store_task
        self.atomic = atomic
        self._backoff = backoff
        self.errors = errors
        self.on_end = None
        self.timeouts = timeouts if timeouts.any else None
        self.limits = limits
        self.ordered = "strict" if limits.ordered is True else limits.ordered or None
        self.at_most_once = at_most_once
        self.max_deaths = max_deaths
        self.chunk = chunk
        self.payload: PayloadType
        if chunk is None:
            self.payload = PayloadType(name, function, with_store=is_store_task)
        else:
            self.payload = ChunkPayload(name, function)
        templates = {"job_key": job_key_template, "concurrency_key": limits.concurrency_key}
        self.key_templates = {name: template for name, template in templates.items() if template is not None}
        for option, template in self.key_templates.items():
            self._check_template(option, template)
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__module__ = function.__module__
        registry.register(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function directly, without enqueueing."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[P]:
        """Validate one call for ``enqueue_many``. Raises PayloadInvalid."""
        return Call(self.name, self.payload.bind(args, kwargs))

    def using(self, **options: Unpack[EnqueueOptions]) -> BoundTask[P]:
        """Return the task with different options for this enqueue. Raises OptionInvalid naming the field."""
        refuse_unknown(options, EnqueueOptions.__annotations__)
        changes = checked(options)
        if self.at_most_once:
            refuse_repetition({"max_attempts": changes.get("max_attempts")})
        bound = replace(self.options, **changes)
        if bound.max_wait is not None:
            has_key = bound.job_key is not None or "job_key" in self.key_templates
            if not has_key or bound.job_key_mode != "replace":
                raise OptionInvalid(
                    "max_wait bounds how long job_key_mode='replace' postpones a job: pass a job_key, and no other mode"
                )
        return BoundTask(self, bound)

    def new_job(self, arguments: Arguments | None, options: JobOptions) -> NewJob:
        """Return the job to add for these arguments and options; without arguments, a pattern for many jobs."""
        values = options.values()
        if options.max_attempts is None:
            # Read the default now, not at import: a system check can then report an invalid setting.
            values["max_attempts"] = 1 if self.at_most_once else conf.max_attempts
        if options.keep_result == self.options.keep_result:
            values["keep_result"] = None
        if arguments is None:
            return NewJob(task=self.name, store_id=None, payload="{}", ordered=self.ordered, **values)
        if self.key_templates:
            values |= self.keys_for(arguments.store_id, arguments, options)
        return NewJob(
            task=self.name, store_id=arguments.store_id, payload=arguments.json, ordered=self.ordered, **values
        )

    def job_of(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], /, *, like: Mapping[str, Any] | None = None
    ) -> NewJob:
        """Return the job that enqueueing these arguments adds, with the declared options: a payload has none.

        Raises PayloadInvalid.
        """
        return self.new_job(self.payload.bind(args, kwargs), self.options)

    def stored_job(self, store_id: StoreId | None, payload: str, /) -> NewJob:
        """Return the job of arguments that were bound before. Raises PayloadInvalid."""
        return self.new_job(Arguments(store_id, payload), self.options)

    def keys_for(self, store: object, arguments: Arguments, options: JobOptions) -> dict[str, Any]:
        """Fill in the templates of the keys missing in ``options``. Raises PayloadInvalid if one does not fit."""
        keys: dict[str, Any] = {}
        for name, template in self.key_templates.items():
            if getattr(options, name) is not None:
                continue
            given = {**arguments.plain, STORE_ARGUMENT: store, str(self.payload.store_name): store}
            key = keys[name] = template.format_map(given)
            least = 1 if name == "concurrency_key" else 0
            if not least <= len(key) <= LONGEST[name]:
                word = name.replace("_", " ")
                raise PayloadInvalid(f"task {self.name!r}: the {word} must have {least} to {LONGEST[name]} characters")
        return keys

    @property
    def origin(self) -> str:
        """The dotted path of the function."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def backoff(self) -> Backoff:
        """The task's own backoff, or the one from the settings."""
        return self._backoff or conf.backoff

    def _check_template(self, option: str, template: str) -> None:
        try:
            check_text(option, template, LONGEST[option])
            parts = list(string.Formatter().parse(template))
        except (OptionInvalid, ValueError) as error:
            raise TaskInvalid(f"task {self.name!r}: the {option} template is wrong: {error}") from error
        if any(spec or conversion for _, _, spec, conversion in parts):
            raise TaskInvalid(
                f"task {self.name!r}: {option} takes plain arguments: {{day}}, not {{day!r}} or {{day:…}}"
            )
        known = {*self.payload.names, STORE_ARGUMENT} if self.is_store_task else self.payload.names
        if unknown := {field for _, field, _, _ in parts if field is not None} - known:
            raise TaskInvalid(f"task {self.name!r}: {option} uses {sorted(unknown)}, which are not arguments")


class ChunkTask(Task[[GivenStore, T], R_co], Generic[T, R_co]):
    """A task whose handler takes the payloads of several jobs; enqueued with the store and one payload."""

    def __call__(self, store_id: GivenStore, jobs: list[T], /) -> R_co:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        """Call the function directly with a list of payloads, without enqueueing."""
        handler: Callable[[GivenStore, list[T]], R_co] = self.function  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        return handler(store_id, jobs)


def get_task(name: str) -> Task[..., Any]:
    """Return the task with this name, to enqueue it. Raises UnknownTask, even if another library has one."""
    declaration = registry.get_declaration(name)
    if not isinstance(declaration, Task):
        raise UnknownTask(
            f"{name!r} ({declaration.origin}) is not declared with salon_jobs: enqueue it as its library does. Flows, "
            "then= and consumers take tasks of salon_jobs alone; let one of these enqueue it"
        )
    return cast("Task[..., Any]", declaration)


def enqueue_job(name: str, payload: dict[str, Any], **options: Unpack[EnqueueOptions]) -> JobHandle:
    """Enqueue a job by its task's name; ``options`` are those of ``using``.

    No type checker knows the name or the payload, since the name may be data: both are checked here.

    Raises UnknownTask, PayloadInvalid naming path and expected type, OptionInvalid naming the field, EnqueueRefused.
    """
    task = get_task(name)
    if not isinstance(payload, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PayloadInvalid(f"task {name!r}: the payload must be a dict of arguments, not {type(payload).__name__}")
    return task.using(**options).enqueue(**payload)


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(*, name: str | None = None, **options: Unpack[TaskOptions]) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(function: Any = None, /, *, name: str | None = None, **options: Unpack[TaskOptions]) -> Any:
    """Declare a system task: it has no store and no surrounding transaction, and runs at least once.

    ``name`` defaults to the app label and the function's name, ``orders.send_receipt``, since two apps may each have a
    ``send_receipt``; a given name is by convention kebab-case, without a prefix. Raises TaskInvalid, OptionInvalid.
    """
    if "atomic" in options:
        raise OptionInvalid("no option 'atomic' of a system task, which never runs in one transaction; use store_task")
    return _declare(function, name, options, is_store_task=False, atomic=False, chunk=None)


@overload
def store_task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def store_task(
    *, chunk: int, name: str | None = None, **options: Unpack[TaskOptions]
) -> Callable[[Callable[[Any, list[T]], R]], ChunkTask[T, R]]: ...
@overload
def store_task(
    *, name: str | None = None, atomic: bool = True, chunk: None = None, **options: Unpack[TaskOptions]
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def store_task(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    atomic: bool = True,
    chunk: int | None = None,
    **options: Unpack[TaskOptions],
) -> Any:
    """Declare a store task. Raises TaskInvalid, OptionInvalid.

    Its function takes the store as ``store_id``, or under the name of the store model (``organization_id``), annotated
    with the type of the model's primary key: UUID, int or str.

    The handler runs in one transaction with the store set, in which the job finishes too: its database effects happen
    exactly once. With ``atomic=False`` (for e-mail, HTTP), the store is set in every transaction that the handler
    opens, and the job runs at least once. ``async def`` handlers require it. ``name`` defaults as for ``task``.

    With ``chunk``, the function takes the store and the payloads of up to ``chunk`` due jobs of one store, such as
    ``jobs: list[Sale]`` of a dataclass or a msgspec.Struct. They all finish in one transaction. If the function raises,
    it rolls back and the jobs run one by one; see docs/how-to/chunks.md. Such a task is enqueued with the store and one
    payload.
    """
    if chunk is not None:
        check_number("chunk", chunk, 1, LARGEST_CHUNK)
        if not atomic:
            raise OptionInvalid("chunk needs atomic=True: the jobs of a chunk finish together, in one transaction")
    return _declare(function, name, options, is_store_task=True, atomic=atomic, chunk=chunk)


def _declare(
    function: Any, name: str | None, options: TaskOptions, *, is_store_task: bool, atomic: bool, chunk: int | None
) -> Any:
    """Declare the task, or without a function return the decorator. Raises OptionInvalid for an unknown option."""
    refuse_unknown(options, TaskOptions.__annotations__)
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    # The keys of a task are templates: it checks them itself, and they are not options of its jobs.
    given |= checked({name: value for name, value in given.items() if name not in LONGEST})
    if given.get("at_most_once"):
        refuse_repetition({**given, "chunk": chunk})

    def taken(kind: type[T]) -> T:
        names = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        names -= LONGEST.keys() if kind is JobOptions else set()
        return kind(**{name: value for name, value in given.items() if name in names})

    declare: Callable[..., Any] = partial(
        Task if chunk is None else ChunkTask,
        name=name,
        options=taken(JobOptions),
        is_store_task=is_store_task,
        atomic=atomic,
        job_key_template=given.get("job_key"),
        backoff=given.get("backoff"),
        errors=taken(ErrorRules),
        timeouts=taken(Timeouts),
        limits=taken(DeclaredLimits),
        at_most_once=given.get("at_most_once", False),
        max_deaths=given.get("max_deaths"),
        chunk=chunk,
    )
    return declare if function is None else declare(function)


def _derived_name(function: Callable[..., Any]) -> str:
    """Return ``label.function``, with the label of the app that contains the module, or else its last package."""
    module = function.__module__
    try:
        app = apps.get_containing_app_config(module)
    except AppRegistryNotReady as error:
        raise TaskInvalid(
            f"the name of task {module}.{function.__qualname__} comes from its app, and Django has not loaded the apps "
            "yet: import the module later, or give it a name with name='…'"
        ) from error
    package: str = getattr(sys.modules.get(module), "__package__", None) or module.rpartition(".")[0] or module
    label = package.rpartition(".")[2] if app is None else app.label
    return f"{label}.{function.__name__}"


def _check_function(name: str | None, function: object) -> None:
    """Reject classes and generators: calling one would look like a success without running anything."""
    label = f"task {getattr(function, '__qualname__', function) if name is None else name!r}"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TaskInvalid(f"{label}: the handler is a generator, so calling it would run nothing; remove the yield")
    if isinstance(function, str) and name is None:
        raise TaskInvalid(f"pass a task's name as a keyword: name={short_repr(function)}")
    if not inspect.isfunction(function):
        raise TaskInvalid(
            f"{label}: only a function declared with def or async def can be a task, not {short_repr(function)}"
        )
