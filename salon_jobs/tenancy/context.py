"""Runs a block as one store: ``tenant_context``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Literal
from uuid import UUID

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import TenantContextError
from salon_jobs.tenancy import block, guc
from salon_jobs.tenancy.block import Block, session_block
from salon_jobs.tenancy.session import in_session
from salon_jobs.tenancy.thread_step import run_to_its_end


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
        self._surrounding: tuple[Block, ...] = ()

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
            await run_to_its_end(partial(self._open, by_statement=True))
        except asyncio.CancelledError as error:
            if self._opened is not None:
                block.surround_with(self._surrounding)
                await self.__aexit__(type(error), error, error.__traceback__)
            raise
        block.surround_with(self._surrounding)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await run_to_its_end(partial(self.__exit__, kind, error, traceback))
        finally:
            block.forget_closed()

    def _open(self, *, by_statement: bool) -> None:
        if self._opened is not None:
            raise TenantContextError("this context is open already: call tenant_context() for each block")
        opening = self._make(by_statement=by_statement)
        opening.__enter__()
        self._opened, self._surrounding = opening, block.surrounding()


@contextmanager
def _opened(
    store: UUID, *, atomic: bool, switch: bool = False, using: str | None = None, by_statement: bool = False
) -> Generator[None]:
    block.admit(store, switch=switch)
    connection = connections[using or conf.database]
    block.refuse_if_held(connection)
    around = block.innermost(connection)
    changes = around is None or around.store != store
    goes_on_outside = connection.in_atomic_block or not connection.get_autocommit()
    if changes and not atomic and not goes_on_outside and session_block(connection) is not None:
        raise TenantContextError(
            "between transactions the session's store would show: switch in it with scope='session'"
        )
    with ExitStack() as stack:
        # The transaction (or savepoint) first, then whatever sets the store: a rollback takes the store with it, and
        # the end of our savepoint ends those made inside, one of which could bring the store back.
        if atomic or (changes and connection.in_atomic_block):
            stack.enter_context(transaction.atomic(using=connection.alias))
        if atomic or changes or by_statement:
            holds = (atomic or changes) and (guc.in_transaction(connection) or not connection.get_autocommit())
            own = Block(connection, store, holds=holds, by_statement=by_statement and not atomic)
            stack.enter_context(own)
            if holds:
                stack.callback(_refuse_to_leave_open, own)
            if changes and (goes_on_outside or not atomic):
                stack.callback(_restore, own, around)
        if connection.in_atomic_block:
            stack.callback(hand_over, connection, store, waiting=len(connection.run_on_commit))
        begins = changes and guc.in_transaction(connection)
        if begins or (connection.in_atomic_block and (changes or guc.at_transaction_start(connection))):
            guc.set_local(connection, store)
        yield


def tenant_statements(store_id: UUID) -> AbstractContextManager[None]:
    """Return what ``async with tenant_context(store_id, atomic=False)`` enters, for the thread that runs a coroutine.

    Django's async methods can not be put in a transaction, and would see no rows without.
    """
    return _opened(store_id, atomic=False, by_statement=True)


def _restore(own: Block, around: Block | None) -> None:
    """Put the outer store, or none, back on a transaction that goes on outside.

    RELEASE SAVEPOINT keeps a local set, so it is done explicitly; ROLLBACK TO restores the old value by itself, and
    in a broken transaction nothing can run before it. A transaction that another task has begun meanwhile, since our
    block holds none, is that task's: it keeps its store.
    """
    if own.held_inside() is None and guc.can_run_in_transaction(own.connection):
        guc.set_local(own.connection, None if around is None else around.store)


def _refuse_to_leave_open(own: Block) -> None:
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
