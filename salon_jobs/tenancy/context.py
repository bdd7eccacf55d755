"""``tenant_context``, stores on the session, and the hand-over of a store to threads and tasks."""

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
    """Reset the session of a connection that goes back to Django's pool: for ``OPTIONS["pool"]["reset"]``.

    psycopg's pool calls it on each return, and discards the connection when it raises. Where nobody watches sessions,
    it takes off the store alone.
    """
    if not reset_raw(connection):
        guc.clear_session(connection)


@contextmanager
def in_session(store: UUID, *, switch: bool, using: str | None, **_: object) -> Generator[None]:
    """Run a block with the store on the session of its connection: now, or as soon as there is one.

    Raises TenantContextError inside a transaction, behind a pooler, and with a pool that does not reset. At the end the
    connection is reset, or discarded where that can not be done; TenantContextError is raised then for a transaction
    that was left open, unless the block raised itself.
    """
    check_nesting(store, switch=switch)
    connection = connections[using or conf.database]
    refuse_if_held(connection)
    _refuse_pool_without_reset(connection)
    if connection.in_atomic_block or in_transaction(connection):
        raise TenantContextError("scope='session' can not begin inside a transaction, whose rollback would end it")
    around = session_context(connection)
    connection.close_if_health_check_failed()
    with ActiveContext(connection, store, holds=True, in_session=True) as own:
        if connection.connection is not None:
            _put_on(connection, store)
        try:
            yield
        except BaseException:
            _take_off(own, around)  # what the block raised says more
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
    """Put the outer store or none on the session, or discard the connection; returns what was wrong in the block."""
    connection = own.connection
    if connection.connection is None:
        return None  # closed, or back in the pool, which has reset it
    try:
        guc.set_session(connection, None if around is None else around.store)
    except TenantContextError as error:
        discard(connection, error)
        return error
    except DatabaseError as error:  # it carries the store or is gone; nobody uses it again, so nothing is wrong
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
    """Call ``step`` once on the thread-sensitive thread and wait until it ended, whoever cancels the task meanwhile.

    asgiref lets go of a call whose task is cancelled: it may be waiting, running or done then. The thread makes one
    call at a time, so a second call comes after the first. Raises what the step raised; CancelledError, after the step
    has ended, when the task was cancelled.
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
    store_id: UUID | str, *,
    atomic: bool = True, switch: bool = False,
    scope: Literal["transaction", "session"] = "transaction", using: str | None = None,
) -> TenantContext:  # fmt: skip
    """Return what runs a block with the store on the connection, so that row-level security shows that store alone.

    For ``with``, and in a coroutine for ``async with``. ``atomic=True`` opens a transaction (or a savepoint) and sets
    the store locally in it. ``atomic=False`` holds no transaction: the store is set at every transaction the block
    begins; a statement between them sees no rows, and with ``async with`` gets a transaction of its own.
    ``scope="session"``, with ``atomic=False``, puts it on the session of a direct connection, where statements outside
    a transaction see it too.

    ``on_commit`` callbacks registered inside run with the store as well; those of a bare ``transaction.atomic()`` in
    a block without a transaction run between its transactions.

    Nested with the same store is fine; with another one raises TenantContextError unless ``switch=True``, which comes
    back to the outer store at its end. Raises it too for a store that is no uuid, in a system task, on a connection
    that another task or generator holds, and when the server does not answer that it carries the store.
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
    """Opens a context with ``with`` or ``async with``: the same one again only after it has ended."""

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
        # The transaction (or savepoint) first, then whatever sets the store: a rollback takes the store with it, and
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

    Django's async methods can not be put in a transaction, and would see no rows without.
    """
    return _opened(store_id, atomic=False, by_statement=True)


def _restore(own: ActiveContext, around: ActiveContext | None) -> None:
    """Put the outer store, or none, back on a transaction that goes on outside.

    RELEASE SAVEPOINT keeps a local set, so it is done explicitly; ROLLBACK TO restores the old value by itself, and
    in a broken transaction nothing can run before it. A transaction that another task has begun meanwhile, since our
    block holds none, is that task's: it keeps its store.
    """
    if own.held_inside() is None and can_run_in_transaction(own.connection):
        guc.set_local(own.connection, None if around is None else around.store)


def _refuse_to_leave_open(own: ActiveContext) -> None:
    """End what a task opened inside and has not ended: Django would take our savepoint or COMMIT for its."""
    if (inner := own.held_inside()) is not None:
        own.connection.close()
        raise TenantContextError(
            f"a context of store {inner.store}, opened inside by another task or generator, is open still: "
            "everything is rolled back; wait for it before the outer one ends"
        )


def hand_over(connection: BaseDatabaseWrapper, store: UUID, *, waiting: int) -> None:
    """Give the store to the callbacks registered inside, unless they have it or need none."""
    hooks: list[Any] = connection.run_on_commit  # (savepoint ids, function, robust); the stubs know two of the three
    connection.run_on_commit = hooks[:waiting] + [
        (sids, function if hasattr(function, "storeless") else _InStore(connection.alias, function, store), robust)
        for sids, function, robust in hooks[waiting:]
    ]


class _InStore:
    """Runs a callback in the context of the store it was registered in."""

    # An outer context has nothing to add.
    storeless = True

    def __init__(self, alias: str, function: Callable[[], object], store: UUID) -> None:
        self._alias, self._function, self._store = alias, function, store
        # Django names a robust callback by it when it fails.
        self.__qualname__ = getattr(function, "__qualname__", repr(function))

    def __call__(self) -> None:
        """Run it. A transaction of its own holds the store, whichever block's end commits."""
        with _opened(self._store, atomic=True, switch=True, using=self._alias):
            self._function()


P = ParamSpec("P")
R = TypeVar("R")


def carry_store(function: Callable[P, R], *, atomic: bool = True, using: str | None = None) -> Callable[P, R]:
    """Return ``function``, ``def`` or ``async def``, so that it runs in a ``tenant_context`` of the current store.

    For what runs elsewhere or later: a thread, an executor, a task. The context is opened on the connection of the
    thread that runs it. A ``def`` closes that connection afterwards unless it was open before: a thread that ends would
    leave it open, and never give it back to a pool. ``atomic`` and ``using`` are those of ``tenant_context``. Raises
    TenantContextError outside of every context.
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
