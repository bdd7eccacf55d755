"""Steps of a job: functions that run once, and loops that continue where they stopped, in any number of attempts.

A step is a transaction of its own; its last statement keeps its result under the job's lease.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, TypeVar, cast, get_type_hints
from weakref import WeakSet

import msgspec
from asgiref.sync import sync_to_async
from django.db import transaction

from salon_jobs.core.as_json import as_member, encode
from salon_jobs.core.errors import LeaseLost, StepInvalid
from salon_jobs.core.extensions import Extension
from salon_jobs.core.text import short_repr
from salon_jobs.db.statements import run_raw
from salon_jobs.jobs.payload import unquoted
from salon_jobs.jobs.run import JobRun, refuse_broken_transaction

T = TypeVar("T")
# All results of a job are read at once.
MOST_BYTES: Final = 1_000_000
_LONGEST_NAME: Final = 255
_END: Final = object()


class KeptStep(NamedTuple):
    """The committed part of an earlier run: a result as JSON, or a cursor's position and its last element."""

    value: str
    position: int | None
    ended: bool


class Steps(Extension):
    """Steps of one run. The first one reads the results of earlier runs, by one statement."""

    def __init__(self, running: JobRun) -> None:
        self._running = running
        self._kept: dict[str, KeptStep] | None = None
        # Names used by this run.
        self._taken: set[str] = set()
        self._loops: WeakSet[Generator[Any]] = WeakSet()

    def run(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the function's result, or the one of an earlier run, in its annotated type."""
        self._refuse_loop()
        with self._taking(name):
            kind = _annotation(name, function)
            if (kept := self._find(name, is_cursor=False)) is not None:
                return _decode(name, kept.value, kind)
            with self._transaction(name):
                started = time.monotonic()
                value = function(*args, **kwargs)
                if inspect.isawaitable(value):
                    if inspect.iscoroutine(value):
                        value.close()
                    raise StepInvalid(f"step {name!r} returned something to await: in a coroutine, await job.astep(…)")
                encoded = _encode(name, value)
                result = _decode(name, encoded, kind)
                self._save(name, started, encoded)
            return result

    async def arun(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Do the same from a coroutine; a coroutine function runs outside any transaction, and is kept afterwards."""
        if not inspect.iscoroutinefunction(function):
            return await sync_to_async(self.run)(name, function, args, kwargs)
        with self._taking(name):
            kind = _annotation(name, function)
            if (kept := await sync_to_async(self._alone)(name, self._find, is_cursor=False)) is not None:
                return _decode(name, kept.value, kind)
            started = time.monotonic()
            encoded = _encode(name, await function(*args, **kwargs))
            result = _decode(name, encoded, kind)
            await sync_to_async(self._alone)(name, self._save, started, encoded)
            return result

    def loop(self, name: str, elements: Iterable[Any] | Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
        """Yield the elements after the last committed one, each in a transaction with the writes of the loop."""
        loop = self._loop(name, elements)
        self._loops.add(loop)
        return loop

    def close(self) -> None:
        """Roll back the element of a loop that an error has left while it is still referenced.

        The element of a coroutine's loop is rolled back at the end of the turn of its thread, which is not here.
        """
        if not _is_on_event_loop():
            for loop in list(self._loops):
                loop.close()

    def _loop(self, name: str, elements: Any) -> Generator[Any]:
        self._refuse_loop()
        with self._taking(name):
            kept = self._find(name, is_cursor=True)
            if kept is not None and kept.ended:
                return
            position = 0 if kept is None or kept.position is None else kept.position
            last, started = "null" if kept is None else kept.value, time.monotonic()
            iterator: Iterator[Any] | None = None
            element: Any = None
            while element is not _END:
                with self._transaction(name):
                    if iterator is None:
                        iterator = _after(name, elements, kept)
                    element = next(iterator, _END)
                    if element is not _END:
                        yield element
                        position += 1
                        last = _encode(name, element) if callable(elements) else last
                    self._save(name, started, last, position=position, ended=element is _END)

    @contextmanager
    def _taking(self, name: str) -> Generator[None]:
        """Take a name for this run, unless an error shows that the step is not done."""
        if not (isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable()):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise StepInvalid(
                f"the name of a step is a text of 1 to {_LONGEST_NAME} characters, not {short_repr(name)}"
            )
        if name in self._taken:
            raise StepInvalid(
                f"this run has done step {name!r} already: give each step a name of its own, such as f'{name}-{{id}}'"
            )
        self._taken.add(name)
        try:
            yield
        except BaseException:
            self._taken.discard(name)
            self._kept = None  # the answer to its COMMIT may be missing
            raise

    def _find(self, name: str, *, is_cursor: bool) -> KeptStep | None:
        if self._kept is None:
            rows = run_raw("load_steps", {"id": self._running.id}, using=self._running.leases.using)
            self._kept = {row[0]: KeptStep(*row[1:]) for row in rows}
        kept = self._kept.get(name)
        if kept is not None and (kept.position is not None) is not is_cursor:
            raise StepInvalid(f"step {name!r} is kept as a {'step' if is_cursor else 'cursor'}: give it another name")
        return kept

    def _alone(self, name: str, do: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        with self._transaction(name):
            return do(name, *args, **kwargs)

    @contextmanager
    def _transaction(self, name: str) -> Generator[None]:
        """Open the step's own transaction. Raises StepInvalid inside another one."""
        running = self._running
        block: Any = transaction.atomic(using=running.leases.using, durable=True)
        try:
            block.__enter__()
        except RuntimeError:  # a durable block commits, and refuses to inside another one
            task = running.declaration
            raise StepInvalid(
                f"task {task.name!r} runs in one transaction, whose rollback would take step {name!r} with it: declare "
                "the task with atomic=False"
                if task.is_store_task and task.atomic
                else f"step {name!r} cannot begin inside a transaction or another step, since it commits its own: call "
                "it outside"
            ) from None
        try:
            yield
        except BaseException as error:
            if running.ended is None:  # later the connection belongs to another run, which has cleaned it
                block.__exit__(type(error), error, error.__traceback__)
            raise
        else:
            block.__exit__(None, None, None)

    def _save(self, name: str, started: float, value: str, *, position: int | None = None, ended: bool = True) -> None:
        """Keep a step under the job's lease. Raises errors that keep the run from succeeding, and LeaseLost."""
        running = self._running
        running.refuse_to_go_on()
        refuse_broken_transaction(running.leases.connection)
        values = {"name": name, "attempt": running.job.attempt, "value": value, "position": position, "ended": ended}
        if not running.leases.save_step(running.job, **values, took_s=time.monotonic() - started):
            if running.finished:
                raise StepInvalid(f"step {name!r} comes after finish(), which has ended the job: call that last")
            raise LeaseLost(f"job {running.id} is no longer leased to this run, so step {name!r} is rolled back")

    @staticmethod
    def _refuse_loop() -> None:
        if _is_on_event_loop():
            raise StepInvalid("a coroutine awaits job.astep(…), which has no job.step(…) and no job.cursor(…)")


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _annotation(step: str, function: Callable[..., Any], *, of_argument: bool = False) -> Any:
    """Return the annotated type of a function's result, or of its first argument; Any without an annotation."""
    if isinstance(function, type):
        return Any if of_argument else function
    try:
        signature = inspect.signature(function)
        first = next(iter(signature.parameters.values()), None)
        found = first.annotation if of_argument and first is not None else signature.return_annotation
        if found is inspect.Signature.empty:
            return Any
        names = getattr(inspect.unwrap(getattr(function, "func", function)), "__globals__", {})
        return get_type_hints(SimpleNamespace(__annotations__={"found": found}), names, include_extras=True)["found"]
    except NameError as error:
        raise StepInvalid(
            f"step {step!r}: {error}; its type is needed at run time: import it outside TYPE_CHECKING"
        ) from error
    except (TypeError, ValueError):  # a builtin without a signature
        return Any


def _after(step: str, elements: Any, kept: KeptStep | None) -> Iterator[Any]:
    """Return the elements after the kept ones: after the last one, if a function returns them, or by number."""
    if not callable(elements):
        return islice(elements, kept and kept.position, None)
    if kept is not None and kept.value == "null":
        raise StepInvalid(f"cursor {step!r} is kept without its last element: give it another name")
    last = None if kept is None else _decode(step, kept.value, _annotation(step, elements, of_argument=True))
    return iter(cast("Iterable[Any]", elements(last)))


def _encode(step: str, value: object) -> str:
    try:
        encoded = encode(value)
    except Exception as error:  # the caller's own class may raise anything
        raise StepInvalid(
            f"step {step!r} gave {type(value).__name__}, which cannot be kept as JSON: {error}. Return numbers, texts, "
            "lists, dicts, dates or dataclasses"
        ) from error
    if len(encoded) > MOST_BYTES:
        raise StepInvalid(
            f"step {step!r} gave {len(encoded):,} bytes of JSON, and at most {MOST_BYTES:,} are kept: store the "
            "content and return what identifies it"
        )
    return encoded.decode()


def _decode(step: str, value: str, kind: Any) -> Any:
    try:
        of_kind: dict[str, Any] = {} if kind in (Any, object) else {"type": kind, "dec_hook": as_member}
        return msgspec.json.decode(value, **of_kind)
    except Exception as error:  # a type's own constructor may raise anything
        raise StepInvalid(
            f"the result of step {step!r} does not fit its annotation: {unquoted(error)}. Mend that, give the step "
            "another name, which runs it again, or retry the job from the start"
        ) from None
