"""Private parts of psycopg, Django and asgiref that we rely on, each behind a name of ours.

Read in psycopg 3.3.9, Django 5.2 to 6.1 and asgiref 3.13; ``tests/db/test_internals.py`` fails if they change. Where we
use an attribute that is undocumented and not named as private, such as ``BaseDatabaseWrapper.close_at``, it stands
where it is used, and the same test knows it.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Generator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from contextvars import Token
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

from asgiref.sync import AsyncToSync, SyncToAsync, ThreadSensitiveContext
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import DatabaseErrorWrapper
from django.dispatch import Signal
from psycopg import generators

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import StreamingHttpResponse

# The steps of sending pending commands, if there are any, and reading all results.
execute_steps: Final = generators.execute
fetch_many: Final = generators.fetch_many
# psycopg makes each exchange with the server by a generator, which it passes to the connection's ``wait``. Their names
# for the ends of transactions, and for the autocommit switch that Django makes around each:
ENDS_TRANSACTION: Final = frozenset({"_commit_gen", "_rollback_gen"})
CHANGES_NOTHING: Final = ENDS_TRANSACTION | {"_set_autocommit_gen"}
# And those of server-side cursors:
DECLARES_CURSOR: Final = "_declare_gen"
OF_SERVER_CURSOR: Final = frozenset({DECLARES_CURSOR, "_close_gen"})
_REFERS_TO_ITS_ERROR: Final = frozenset(
    {DatabaseErrorWrapper.__exit__.__code__, cast("Any", SyncToAsync).__call__.__code__}
)


def watch(raw: Any, watcher: Callable[..., Any]) -> None:
    """Call ``watcher`` in place of a psycopg connection's ``wait``, without the connection."""
    # psycopg calls it only by this name; an instance attribute keeps the connection free of a reference cycle.
    vars(raw)["wait"] = watcher


def watcher_of(raw: Any) -> object:
    """Return the watcher of a psycopg connection, or None."""
    return None if raw is None else cast("dict[str, object]", vars(raw)).get("wait")


def cursor_of(steps: Any) -> Any:
    """Return the server-side cursor that psycopg is about to declare or close by this generator."""
    return inspect.getgeneratorlocals(steps)["self"]


def attach(cursor: Any, connection: object) -> None:
    """Make a psycopg cursor use another object as its connection, which it reaches only by this attribute."""
    cursor._conn = connection


def connect_first(signal: Signal, receiver: Callable[..., object], uid: str) -> None:
    """Connect a receiver to a signal, before all receivers connected now. Idempotent."""
    signal.disconnect(dispatch_uid=uid)
    signal.connect(receiver, dispatch_uid=uid)
    with signal.lock:
        signal.receivers.insert(0, signal.receivers.pop())
        signal.sender_receivers_cache.clear()


def is_only_block(connection: BaseDatabaseWrapper, atomic: object) -> bool:
    """Return whether ``atomic`` is the only open ``transaction.atomic()`` of a connection."""
    return bool(connection.atomic_blocks == [atomic])


def has_callback(connection: BaseDatabaseWrapper, function: object) -> bool:
    """Return whether a function is registered to run on commit."""
    return any(hook[1] is function for hook in connection.run_on_commit)


def replace_callbacks(connection: BaseDatabaseWrapper, replacement: Callable[[Any], Any], *, since: int) -> None:
    """Replace each function that is registered to run on commit, from number ``since`` on."""
    hooks: list[Any] = connection.run_on_commit  # (savepoint ids, function, robust); the stubs declare two of the three
    connection.run_on_commit = hooks[:since] + [
        (savepoints, replacement(function), robust) for savepoints, function, robust in hooks[since:]
    ]


def delete_rows(rows: QuerySet[Any], *, using: str) -> int:
    """Delete rows by one statement, without signals or cascades; return how many."""
    return int(rows._raw_delete(using))  # pyright: ignore[reportPrivateUsage]


def is_non_atomic(view: Callable[..., Any], alias: str) -> bool:
    """Return whether a view is marked with ``non_atomic_requests`` for this alias."""
    return alias in getattr(view, "_non_atomic_requests", ())


def mark_non_atomic(view: Any, alias: str) -> None:
    """Do the same as ``non_atomic_requests``, which would also mark the method that a view shares its marks with."""
    view._non_atomic_requests = {*getattr(view, "_non_atomic_requests", ()), alias}


def resource_closers(response: StreamingHttpResponse) -> list[Callable[[], object]]:
    """Return the functions, to be changed in place, that a response calls when it is closed."""
    return cast("list[Callable[[], object]]", cast("Any", response)._resource_closers)


def thread_sensitive(executor: Executor) -> ThreadSensitiveContext:
    """Make ``sync_to_async`` use this executor inside: through asgiref's API, or through internals of older versions.

    With older versions, this changes the context of the calling task.
    """
    if _takes_executor(ThreadSensitiveContext):
        return ThreadSensitiveContext(executor=executor)
    context = ThreadSensitiveContext()
    SyncToAsync.context_to_thread_executor[context] = executor
    # It would have no effect inside another one, or below async_to_sync: those threads wait for this very run.
    context.token = SyncToAsync.thread_sensitive_context.set(context)
    AsyncToSync.executors.current = None
    return context


def has_shared_thread() -> bool:
    """Return whether ``sync_to_async`` uses the thread shared by all tasks of the process without their own."""
    return not (
        getattr(AsyncToSync.executors, "current", None)
        or SyncToAsync.thread_sensitive_context.get(None)
        or asyncio.get_running_loop() in AsyncToSync.loop_thread_executors
    )


def shared_thread() -> Executor:
    """Return the executor that runs the calls of those tasks."""
    return SyncToAsync.single_thread_executor


def break_cycles(error: BaseException) -> None:
    """Clear the frames of Django and asgiref that lead back to the error, by their own variable or a future.

    Such a cycle would keep every other frame of the error until a garbage collection.
    """
    met: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        if (each := errors.pop()) is None or id(each) in met:
            continue
        met.add(id(each))
        errors += each.__cause__, each.__context__
        if isinstance(each, BaseExceptionGroup):
            errors += cast("BaseExceptionGroup[BaseException]", each).exceptions
        for frame, _ in traceback.walk_tb(each.__traceback__):
            if frame.f_code in _REFERS_TO_ITS_ERROR:
                with suppress(RuntimeError):  # it still runs, in its own task
                    frame.clear()


def give_thread(executor: Executor) -> Token[ThreadSensitiveContext]:
    """Make ``sync_to_async`` use this executor in the current task, and in those that it starts from now on.

    ``ThreadSensitiveContext(executor=…)`` would refuse every call of a task that outlives it.
    """
    context = ThreadSensitiveContext()
    SyncToAsync.context_to_thread_executor[context] = executor
    return SyncToAsync.thread_sensitive_context.set(context)


def take_thread_back(token: Token[ThreadSensitiveContext]) -> None:
    """Undo ``give_thread`` in the task that called it; elsewhere, such as at the end of a generator, do nothing."""
    with suppress(ValueError):
        SyncToAsync.thread_sensitive_context.reset(token)


@cache
def _takes_executor(context: type[ThreadSensitiveContext]) -> bool:
    return "executor" in inspect.signature(context).parameters


@contextmanager
def without_a_loop_afterwards() -> Generator[None]:
    """Make asgiref forget that this thread served a loop: a later async_to_sync here would run on that loop."""
    known = vars(SyncToAsync.threadlocal)
    before = dict(known)
    try:
        yield
    finally:
        known.clear()
        known.update(before)
