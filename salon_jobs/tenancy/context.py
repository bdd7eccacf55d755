"""``tenant_context``, stores on the session, and handing a store over to threads and tasks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar, cast
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg import Connection

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import TenantContextError
from salon_jobs.db.connections import at_transaction_start, can_run_in_transaction, in_transaction
from salon_jobs.tenancy import active, guc
from salon_jobs.tenancy.active import ActiveContext, check_nesting, current_store_id, refuse_if_held, session_context
from salon_jobs.tenancy.session_reset import discard, reset_raw


def reset_store(connection: Connection[Any]) -> None:
    """Reset the session of a connection returned to Django's pool: for ``OPTIONS["pool"]["reset"]``.

    psycopg's pool calls it on each return, and discards the connection if it raises. If sessions are not watched, it
    only clears the store.
    """
    if not reset_raw(connection):
        guc.clear_session(connection)


@contextmanager
def in_session(store: UUID, *, switch: bool, using: str | None, **_: object) -> Generator[None]:
    """Run a block with the store on the session of its connection: now, or as soon as there is one.

    Raises TenantContextError inside a transaction, behind a pooler, and with a pool that does not reset. At the end the
    connection is reset, or discarded if that fails. Raises TenantContextError at the end if a transaction was left
    open, unless the block itself raised.
    """
    check_nesting(store, switch=switch)
    connection = connections[using or conf.database]
    refuse_if_held(connection)
    _refuse_pool_without_reset(connection)
    if connection.in_atomic_block or in_transaction(connection):
        raise TenantContextError("scope='session' cannot begin inside a transaction, whose rollback would end it")
    around = session_context(connection)
    connection.close_if_health_check_failed()
    with ActiveContext(connection, store, holds=True, in_session=True) as own:
        if connection.connection is not None:
            _put_on(connection, store)
        try:
            yield
        except BaseException:
            _take_off(own, around)  # the block's own error says more
            raise
        if (problem := _take_off(own, around)) is not None:
            raise problem


def _refuse_pool_without_reset(connection: BaseDatabaseWrapper) -> None:
    pool: Any = connection.settings_dict["OPTIONS"].get("pool")
    if pool and (pool is True or pool.get("reset") is not reset_store):
        raise TenantContextError(
            f"scope='session' on a pool needs DATABASES[{connection.alias!r}]['OPTIONS']['pool']['reset'] = "
            "salon_jobs.tenancy.reset_store, or the next to take the connection could read as this store"
        )


def _put_on(connection: BaseDatabaseWrapper, store: UUID) -> None:
    try:
        guc.set_session(connection, store)
    except BaseException as error:
        discard(connection, error)
        raise


def _take_off(own: ActiveContext, around: ActiveContext | None) -> TenantContextError | None:
    """Put the outer store, if any, on the session, or discard the connection; return what was wrong in the block."""
    connection = own.connection
    if connection.connection is None:
        return None  # closed, or returned to the pool, which has reset it
    try:
        guc.set_session(connection, None if around is None else around.store)
    except TenantContextError as error:
        discard(connection, error)
        return error
    except DatabaseError as error:  # it carries the store or is gone; it is never used again, so nothing is wrong
        discard(connection, error)
    except BaseException as error:
        discard(connection, error)
        raise
    return None


def _put_on_when_acquired(connection: BaseDatabaseWrapper, **_: object) -> None:
    if (own := session_context(connection)) is not None:
        _put_on(connection, own.store)


# Django sends it for each connection that it opens or takes from its pool.
connection_created.connect(_put_on_when_acquired, dispatch_uid="salon_jobs.session")


async def sync_step(step: Callable[[], None]) -> None:
    """Call ``step`` once on the thread-sensitive thread and wait until it has ended, even if the task is cancelled.

    asgiref abandons a call whose task is cancelled: it may be waiting, running or done by then. The thread makes one
    call at a time, so a second call comes after the first. Raises what the step raised; CancelledError, after the step
    has ended, if the task was cancelled.
    """
    ended: Future[None] = Future()

    def once() -> None:
        if ended.done():
            return
        try:
            step()
        except BaseException as error:  # it belongs to whoever awaits the step
            ended.set_exception(error)
        else:
            ended.set_result(None)

    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await sync_to_async(once)()
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from ended.exception()
    ended.result()


def tenant_context(
    store_id: UUID | str,
    *,
    atomic: bool = True,
    switch: bool = False,
    scope: Literal["transaction", "session"] = "transaction",
    using: str | None = None,
) -> TenantContext:
    """Return a context that puts the store on the connection, so that row-level security shows only that store.

    For ``with``, and in a coroutine for ``async with``. ``atomic=True`` opens a transaction (or a savepoint) and sets
    the store locally in it. ``atomic=False`` holds no transaction: the store is set in every transaction the block
    begins; a statement between them sees no rows, and with ``async with`` gets its own transaction.
    ``scope="session"``, with ``atomic=False``, puts the store on the session of a direct connection, where statements
    outside a transaction see it too.

    ``on_commit`` callbacks registered inside also run with the store; those of a bare ``transaction.atomic()`` in a
    block without a transaction run between its transactions.

    Nesting with the same store is fine; with another store it raises TenantContextError unless ``switch=True``, which
    returns to the outer store at its end. Also raises TenantContextError for a store that is not a UUID, in a system
    task, on a connection that another task or generator holds, and when the server does not confirm that it carries the
    store.
    """
    store = guc.as_uuid(store_id)
    if scope == "session":
        if atomic:
            raise TenantContextError("scope='session' holds no transaction: give it atomic=False")
        return TenantContext(partial(in_session, store, switch=switch, using=using))
    if scope != "transaction":
        raise TenantContextError(f"scope must be 'transaction' or 'session', not {scope!r}")
    return TenantContext(partial(_opened, store, atomic=atomic, switch=switch, using=using))


class TenantContext:
    """Context for ``with`` or ``async with``; it can be entered again only after it has ended."""

    def __init__(self, make: Callable[..., AbstractContextManager[None]]) -> None:
        self._make = make
        self._opened: AbstractContextManager[None] | None = None
        self._surrounding: tuple[ActiveContext, ...] = ()

    def __enter__(self) -> None:
        self._open(by_statement=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.__exit__(kind, error, traceback)

    async def __aenter__(self) -> None:
        try:
            await sync_step(partial(self._open, by_statement=True))
        except asyncio.CancelledError as error:
            if self._opened is not None:
                active.surround_with(self._surrounding)
                await self.__aexit__(type(error), error, error.__traceback__)
            raise
        active.surround_with(self._surrounding)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await sync_step(partial(self.__exit__, kind, error, traceback))
        finally:
            active.forget_closed()

    def _open(self, *, by_statement: bool) -> None:
        if self._opened is not None:
            raise TenantContextError("this context is open already: call tenant_context() for each block")
        opening = self._make(by_statement=by_statement)
        opening.__enter__()
        self._opened, self._surrounding = opening, active.surrounding()


@contextmanager
def _opened(
    store: UUID, *, atomic: bool, switch: bool = False, using: str | None = None, by_statement: bool = False
) -> Generator[None]:
    active.check_nesting(store, switch=switch)
    connection = connections[using or conf.database]
    active.refuse_if_held(connection)
    around = active.innermost(connection)
    changes = around is None or around.store != store
    goes_on_outside = connection.in_atomic_block or not connection.get_autocommit()
    if changes and not atomic and not goes_on_outside and session_context(connection) is not None:
        raise TenantContextError(
            "between transactions the session's store would show: switch in it with scope='session'"
        )
    with ExitStack() as stack:
        # The transaction (or savepoint) first, then whatever sets the store: a rollback then removes the store too, and
        # the end of our savepoint ends those made inside, one of which could bring the store back.
        if atomic or (changes and connection.in_atomic_block):
            stack.enter_context(transaction.atomic(using=connection.alias))
        if atomic or changes or by_statement:
            holds = (atomic or changes) and (in_transaction(connection) or not connection.get_autocommit())
            own = ActiveContext(connection, store, holds=holds, by_statement=by_statement and not atomic)
            stack.enter_context(own)
            if holds:
                stack.callback(_refuse_to_leave_open, own)
            if changes and (goes_on_outside or not atomic):
                stack.callback(_restore, own, around)
        if connection.in_atomic_block:
            stack.callback(hand_over, connection, store, waiting=len(connection.run_on_commit))
        begins = changes and in_transaction(connection)
        if begins or (connection.in_atomic_block and (changes or at_transaction_start(connection))):
            guc.set_local(connection, store)
        yield


def tenant_statements(store_id: UUID) -> AbstractContextManager[None]:
    """Return what ``async with tenant_context(store_id, atomic=False)`` enters, for the thread that runs a coroutine.

    Django's async methods cannot run in a transaction, and would see no rows without one.
    """
    return _opened(store_id, atomic=False, by_statement=True)


def _restore(own: ActiveContext, around: ActiveContext | None) -> None:
    """Restore the outer store, or none, on a transaction that continues outside.

    RELEASE SAVEPOINT keeps a local set, so this is explicit; ROLLBACK TO restores the old value by itself, and in a
    broken transaction nothing can run before it. If another task has begun a transaction meanwhile, since our block
    holds none, that transaction keeps the task's store.
    """
    if own.held_inside() is None and can_run_in_transaction(own.connection):
        guc.set_local(own.connection, None if around is None else around.store)


def _refuse_to_leave_open(own: ActiveContext) -> None:
    """End what a task opened inside and has not ended: otherwise Django takes our savepoint or COMMIT for its own."""
    if (inner := own.held_inside()) is not None:
        own.connection.close()
        raise TenantContextError(
            f"a context of store {inner.store}, opened inside by another task or generator, is open still: "
            "everything is rolled back; wait for it before the outer one ends"
        )


def hand_over(connection: BaseDatabaseWrapper, store: UUID, *, waiting: int) -> None:
    """Pass the store to the callbacks registered inside, unless they have it or need none."""
    hooks: list[Any] = connection.run_on_commit  # (savepoint ids, function, robust); the stubs declare two of the three
    connection.run_on_commit = hooks[:waiting] + [
        (sids, function if hasattr(function, "storeless") else _InStore(connection.alias, function, store), robust)
        for sids, function, robust in hooks[waiting:]
    ]


class _InStore:
    """Callback that runs in the context of the store it was registered in."""

    # An outer context has nothing to add.
    storeless = True

    def __init__(self, alias: str, function: Callable[[], object], store: UUID) -> None:
        self._alias, self._function, self._store = alias, function, store
        # Django uses it to name a robust callback that fails.
        self.__qualname__ = getattr(function, "__qualname__", repr(function))

    def __call__(self) -> None:
        """Run the callback in its own transaction, which holds the store, whichever block's end commits."""
        with _opened(self._store, atomic=True, switch=True, using=self._alias):
            self._function()


P = ParamSpec("P")
R = TypeVar("R")


def carry_store(function: Callable[P, R], *, atomic: bool = True, using: str | None = None) -> Callable[P, R]:
    """Return ``function``, ``def`` or ``async def``, wrapped to run in a ``tenant_context`` of the current store.

    For code that runs elsewhere or later: a thread, an executor, a task. The context opens on the connection of the
    thread that runs it. A ``def`` closes that connection afterwards unless it was already open: a thread that ends
    would leave it open, and never return it to a pool. ``atomic`` and ``using`` are those of ``tenant_context``. Raises
    TenantContextError outside of any context.
    """
    store_id = current_store_id()
    if store_id is None:
        raise TenantContextError("there is no store to carry: call carry_store inside a tenant_context")
    alias = using or conf.database

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            async with tenant_context(store_id, atomic=atomic, using=alias):
                return await function(*args, **kwargs)

        return cast("Callable[P, R]", run_async)

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        connection = connections[alias]
        was_open = connection.connection is not None
        try:
            with tenant_context(store_id, atomic=atomic, using=alias):
                return function(*args, **kwargs)
        finally:
            if not was_open:
                connection.close()

    return run
