"""``tenant_context`` and its modes, and passing a store on to threads and tasks."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial, wraps
from typing import Any, Literal, ParamSpec, Self, TypeVar, cast

from asgiref.sync import sync_to_async
from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg import Connection

from salon_jobs.core.errors import TenantContextError
from salon_jobs.core.records import GivenStore, StoreId
from salon_jobs.core.text import short_repr
from salon_jobs.db.connections import alias_of, in_transaction, is_lost
from salon_jobs.db.internals import is_only_block
from salon_jobs.db.session import discard, guard_of
from salon_jobs.db.statements import in_one_trip
from salon_jobs.tenancy import active, guc
from salon_jobs.tenancy.active import ActiveContext, carry_to_callbacks, current_store_id, open_store, session_context
from salon_jobs.tenancy.threads import OwnThread


def reset_store(connection: Connection[Any]) -> None:
    """Reset the session of a connection returned to Django's pool: for ``OPTIONS["pool"]["reset"]``.

    psycopg's pool calls this on each return, and discards the connection if it raises. If the session is not watched,
    only the store is cleared.
    """
    if (guard := guard_of(connection)) is None:
        guc.clear_session(connection)
    else:
        guard.clean()


class SessionContext(ActiveContext):
    """Context that holds the session of its connection, with the store on it; a lazy connection gets it on connecting.

    Entering raises TenantContextError inside a transaction, behind a pooler, and with a pool that does not reset. At
    the end the connection is reset, or discarded if that fails. Leaving raises TenantContextError if a transaction was
    left open, unless the block itself raised.
    """

    __slots__ = ("_outer",)
    in_session = True

    def __enter__(self) -> Self:
        self.check_entry()
        connection = self.connection
        _refuse_pool_without_reset(connection)
        if connection.in_atomic_block or in_transaction(connection):
            raise TenantContextError("scope='session' cannot begin inside a transaction, whose rollback would end it")
        self._outer = session_context(connection)
        connection.close_if_health_check_failed()
        self.open()
        if connection.connection is not None:
            try:
                self.put_on()
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            problem = self._take_off()
        finally:
            self.close()
        if problem is not None and error is None:  # the block's own error has more detail
            raise problem

    def put_on(self) -> None:
        """Set the store on the session; discard the connection if that fails."""
        try:
            guc.set_session(self.connection, self.store)
        except BaseException as error:
            discard(self.connection, error)
            raise

    def _take_off(self) -> TenantContextError | None:
        """Set the outer store or none on the session, or discard the connection; return the block's fault, if any."""
        connection = self.connection
        if connection.connection is None:
            return None  # closed, or returned to the pool, which has reset it
        try:
            guc.set_session(connection, None if self._outer is None else self._outer.store)
        except TenantContextError as error:
            discard(connection, error)
            return error
        except DatabaseError as error:  # the connection is never used again, so nothing is wrong
            discard(connection, error)
        except BaseException as error:
            discard(connection, error)
            raise
        return None


def _refuse_pool_without_reset(connection: BaseDatabaseWrapper) -> None:
    pool: Any = connection.settings_dict["OPTIONS"].get("pool")
    if pool and (pool is True or pool.get("reset") is not reset_store):
        raise TenantContextError(
            f"scope='session' on a pool needs DATABASES[{connection.alias!r}]['OPTIONS']['pool']['reset'] = "
            "salon_jobs.tenancy.reset_store, or the next to take the connection could read as this store"
        )


def _put_on_when_acquired(connection: BaseDatabaseWrapper, **_: object) -> None:
    if isinstance(context := session_context(connection), SessionContext):
        context.put_on()


# Django sends it for each connection that it opens or takes from its pool.
connection_created.connect(_put_on_when_acquired, dispatch_uid="salon_jobs.session")


class StoreJobContext(ActiveContext):
    """Context of a job, from BEGIN to COMMIT on an idle connection, equivalent to ``tenant_context(store)``.

    Takes the same steps without the branches for nesting, and in two round trips, where a store's job spends most of
    its time. ``answer`` is the value of ``expression``, evaluated as the store. With ``clears``, a store that was set
    directly on the whole session is cleared first; with ``resets``, a session that the block has used is reset in the
    round trip that commits.
    """

    __slots__ = ("_clears", "_committed", "_expression", "_resets", "_transaction", "answer")

    def __init__(
        self,
        connection: BaseDatabaseWrapper,
        store: StoreId,
        expression: str,
        *,
        clears: bool = False,
        resets: bool = False,
    ) -> None:
        super().__init__(connection, store)
        self._transaction: Any = transaction.atomic(using=connection.alias)
        self._expression, self._clears, self._resets = expression, clears, resets
        self._committed = self.answer = False

    @staticmethod
    def fits(connection: BaseDatabaseWrapper) -> bool:
        """Return whether the connection is idle, in autocommit and outside every context."""
        return (
            current_store_id() is None
            and connection.get_autocommit()  # not within atomic either
            and open_store(connection) is None
        )

    def __enter__(self) -> Self:
        self._transaction.__enter__()
        try:
            self.open()
            self.answer = guc.begin_as(self.connection, self.store, self._expression, clears=self._clears)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def commit_after(self, statement: str) -> bool:
        """Run a last statement and commit in one round trip; return False, having done nothing, if a block is open.

        Call this at the end of the block. If the statement fails, nothing is committed. Raises Django's errors.
        """
        if not is_only_block(self.connection, self._transaction):
            return False
        guard = guard_of(self.connection.connection)
        if guard is None:
            in_one_trip(self.connection, f"{statement}; COMMIT")
        else:  # callbacks run before a reset
            guard.commit(self.connection, statement, cleans=self._resets and not self.connection.run_on_commit)
        self._committed = True
        return True

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self.connection.run_on_commit:
            carry_to_callbacks(self.connection, self.store)
        self.close()
        # After the commit the callbacks run, even if the block was interrupted since.
        self._transaction.__exit__(*((None, None, None) if self._committed else (kind, error, traceback)))


async def sync_step(step: Callable[[], None]) -> None:
    """Call ``step`` once on the thread-sensitive thread and wait until it has ended, even if the task is cancelled.

    asgiref abandons a call when its task is cancelled, whether it waits, runs or is done. The thread makes one call at
    a time, so a second call comes after the first. Raises the step's error; if the task was cancelled, CancelledError
    once the step has ended.
    """
    ended: Future[None] = Future()

    def once() -> None:
        if ended.done():
            return
        try:
            step()
        except BaseException as error:  # raised again in the coroutine
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
    store_id: GivenStore,
    *,
    atomic: bool = True,
    switch: bool = False,
    scope: Literal["transaction", "session"] = "transaction",
    using: str | None = None,
) -> TenantContext:
    """Return a context that puts the store on the connection, so that row-level security shows only that store's rows.

    Use it with ``with``, or in a coroutine with ``async with``. ``atomic=True`` opens a transaction (or a savepoint)
    and sets the store locally in it. ``atomic=False`` holds no transaction: the store is set in every transaction that
    the block begins; a statement between them sees no rows, or with ``async with`` gets its own transaction.
    ``scope="session"``, with ``atomic=False``, puts the store on the session of a direct connection, where statements
    outside a transaction see it too. With ``async with``, a block that holds a transaction or session gets a thread and
    a connection if its task shares them with others, perhaps after a wait.

    ``on_commit`` callbacks registered inside also run as the store; those of a bare ``transaction.atomic()`` in a block
    without a transaction run between the block's transactions.

    Nesting with the same store is fine; with another store it raises TenantContextError unless ``switch=True``, which
    returns to the outer store at its end. Also raises TenantContextError for an invalid key of a store, in a system
    task, on a connection that another task or generator holds, and if the server does not confirm that it carries the
    store.
    """
    store = guc.as_store(store_id)
    if scope == "session":
        if atomic:
            raise TenantContextError("scope='session' holds no transaction: pass atomic=False")
        return TenantContext(partial(SessionContext, store=store, switch=switch), using, holds=True)
    if scope != "transaction":
        raise TenantContextError(f"scope must be 'transaction' or 'session', not {short_repr(scope)}")
    return TenantContext(partial(ActiveContext, store=store, atomic=atomic, switch=switch), using, holds=atomic)


def context_of(store_id: StoreId | None, *, using: str | None = None) -> TenantContext | nullcontext[None]:
    """Return the context of a row's store, or one that does nothing for a row without a store."""
    return nullcontext() if store_id is None else tenant_context(store_id, using=using)


class TenantContext:
    """Context for ``with`` or ``async with``; it can be entered again only after it has ended.

    Each entry opens its own ``ActiveContext``, so that code left over from an earlier entry is outside the next.
    """

    def __init__(self, make: Callable[..., ActiveContext], using: str | None, *, holds: bool) -> None:
        self._make, self.alias, self._holds = make, alias_of(using), holds
        self._thread: OwnThread | None = None
        self._active: ActiveContext | None = None
        self._surrounding: tuple[ActiveContext, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether it was entered and has not been left."""
        return self._active is not None

    def __enter__(self) -> Self:
        self._enter(by_statement=False)
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            self._leave(kind, error, traceback)
        finally:
            self._end_thread()

    @property
    def is_lost(self) -> bool:
        """Whether its transaction can only roll back."""
        return self._active is not None and is_lost(self._active.connection)

    async def __aenter__(self) -> Self:
        thread = await OwnThread.taken() if self._holds and not self.is_open else None
        try:
            await sync_step(partial(self._enter, by_statement=True))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and self.is_open:
                self._thread = thread
                active.surround_with(self._surrounding)
                await self.__aexit__(type(error), error, error.__traceback__)
            elif thread is not None:
                thread.end()
            raise
        self._thread = thread
        active.surround_with(self._surrounding)
        return self

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            await sync_step(partial(self._leave, kind, error, traceback))
        finally:
            self._end_thread()
            active.forget_closed()

    def roll_back(self) -> None:
        """Leave the context and roll back its transaction, if it is open."""
        self.__exit__(_RolledBack, _RolledBack(), None)

    async def aroll_back(self) -> None:
        """Do the same in a coroutine."""
        await self.__aexit__(_RolledBack, _RolledBack(), None)

    def abandon(self) -> None:
        """Discard the connection on which the context was left open for good, in any thread."""
        context, self._active = self._active, None
        if context is None:
            return
        connection: Any = context.connection
        connection.inc_thread_sharing()
        try:
            connection.in_atomic_block = False  # otherwise Django would keep the wrapper, unusable
            discard(connection, "a streamed body was neither ended nor closed")
        finally:
            connection.dec_thread_sharing()
            context.close()
            self._end_thread()

    def _enter(self, *, by_statement: bool) -> None:
        if self.is_open:
            raise TenantContextError("this context is already open: call tenant_context() for each block")
        context = self._make(connections[self.alias], by_statement=by_statement)
        context.__enter__()
        self._active, self._surrounding = context, active.surrounding()

    def _leave(self, kind: Any, error: Any, traceback: Any) -> None:
        context, self._active = self._active, None
        if context is not None:
            leave = partial(context.__exit__, kind, error, traceback)
            leave() if self._thread is None else self._thread.call(leave)

    def _end_thread(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.end()


class _RolledBack(Exception):
    """Error that makes Django roll back; it never leaves the context."""


P = ParamSpec("P")
R = TypeVar("R")


def carry_store(function: Callable[P, R], *, atomic: bool = True, using: str | None = None) -> Callable[P, R]:
    """Return ``function``, ``def`` or ``async def``, wrapped to run in a ``tenant_context`` of the current store.

    For code that runs elsewhere or later: in a thread, an executor, a task. The context opens on the connection of the
    thread that runs it. A ``def`` closes that connection afterwards unless it was already open: a thread that ends
    would leave it open, and never return it to a pool. ``atomic`` and ``using`` are those of ``tenant_context``. Raises
    TenantContextError outside any context.
    """
    store_id = current_store_id()
    if store_id is None:
        raise TenantContextError("there is no store to carry: call carry_store inside a tenant_context")

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            async with tenant_context(store_id, atomic=atomic, using=using):
                return await function(*args, **kwargs)

        return cast("Callable[P, R]", run_async)

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        context = tenant_context(store_id, atomic=atomic, using=using)
        connection = connections[context.alias]
        was_open = connection.connection is not None
        try:
            with context:
                return function(*args, **kwargs)
        finally:
            if not was_open:
                connection.close()

    return run
