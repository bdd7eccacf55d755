"""Runs a block as one store: ``tenant_context`` and ``current_store_id``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from uuid import UUID

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import TenantContextError
from salon_jobs.tenancy import guc
from salon_jobs.tenancy.round_trip import in_one_trip


def current_store_id() -> UUID | None:
    """Return the store of the surrounding ``tenant_context``; None outside. New threads start without one."""
    return guc.current.get().store


@contextmanager
def tenant_context(store_id: UUID | str, *, atomic: bool = True, using: str | None = None) -> Generator[None]:
    """Run a block with the store on the connection, so that row-level security shows that store alone.

    ``atomic=True`` opens a transaction (or a savepoint) and sets the store locally in it. ``atomic=False`` holds no
    transaction: the store is set at every transaction the block begins, and between them no rows are seen.
    ``on_commit`` callbacks registered inside run with the store as well; those of a bare ``transaction.atomic()`` in
    a block without a transaction run between its transactions. Nested with the same store is fine; with another one
    raises TenantContextError. Raises it too for a store that is no uuid. In async code it belongs
    inside sync_to_async.
    """
    store = guc.as_uuid(store_id)
    outer = guc.current.get()
    if outer.store not in (None, store):
        raise TenantContextError(f"already inside the context of store {outer.store}; it can not switch to {store}")
    connection = connections[using or conf.database]
    is_first = connection not in outer.connections
    if (other := open_store(connection)) not in (None, store):
        raise TenantContextError(f"another context, of store {other}, is open on this connection; end that first")
    goes_on_outside = connection.in_atomic_block or not connection.get_autocommit()
    with ExitStack() as stack:
        # The transaction (or savepoint) first, then whatever sets the store: a rollback takes the store with it, and
        # the end of our savepoint ends those made inside, one of which could bring the store back.
        if atomic or (is_first and connection.in_atomic_block):
            stack.enter_context(transaction.atomic(using=connection.alias))
        if is_first:
            # Not by a token: in async code the end can run in another copy of the caller's context than the beginning.
            stack.callback(guc.current.set, outer)
            guc.current.set(guc.Current(store, outer.connections | {connection}))
            stack.enter_context(connection.execute_wrapper(partial(_set_at_begin, connection, store)))
            if goes_on_outside or not atomic:
                stack.callback(_clear, connection)
        stack.callback(_hand_over, connection, store, waiting=len(connection.run_on_commit))
        if connection.in_atomic_block:
            begins = is_first or guc.at_transaction_start(connection)
        else:
            begins = is_first and guc.in_transaction(connection)
        if begins:
            guc.set_local(connection, store)
        yield


@contextmanager
def tenant_statements(store_id: UUID) -> Generator[None]:
    """Run a block as ``tenant_context(store_id, atomic=False)``, where a statement outside a transaction gets its own.

    For async handlers: Django's async methods can not be put in a transaction, and would see no rows without.
    """
    connection = connections[conf.database]
    with (
        tenant_context(store_id, atomic=False),
        connection.execute_wrapper(partial(_in_transaction_of_its_own, connection, store_id)),
    ):
        yield


class StoreTransaction:
    """Runs a job's block as ``tenant_context(store)`` does, from BEGIN to COMMIT on an idle connection.

    The same steps without the branches for nesting, and in two round trips: a store's job spends most of its own time
    in them. Entering gives what ``and_ask`` says, an expression evaluated as the store; ``afresh`` as in ``begin_as``.
    """

    def __init__(self, connection: BaseDatabaseWrapper, store: UUID, and_ask: str, *, afresh: bool = False) -> None:
        self._connection, self._store, self._question, self._afresh = connection, store, and_ask, afresh
        self._atomic: Any = transaction.atomic(using=connection.alias)
        self._wrapper = partial(_set_at_begin, connection, store)
        self._committed = False

    @staticmethod
    def fits(connection: BaseDatabaseWrapper) -> bool:
        """Tell whether the connection is idle, in autocommit and outside every context."""
        return (
            guc.current.get().store is None
            and not connection.in_atomic_block
            and connection.get_autocommit()
            and open_store(connection) is None
        )

    def __enter__(self) -> bool:
        self._atomic.__enter__()
        try:
            self._token = guc.current.set(guc.Current(self._store, frozenset((self._connection,))))
            self._connection.execute_wrappers.append(self._wrapper)
            return guc.begin_as(self._connection, self._store, and_ask=self._question, afresh=self._afresh)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    def commit_after(self, statement: str) -> bool:
        """Run a last statement and commit, in one round trip; False, with nothing done, where a block is still open.

        When the statement fails nothing is committed. To be called at the end of the block. Raises Django's errors.
        """
        if self._connection.atomic_blocks != [self._atomic]:
            return False
        in_one_trip(self._connection, f"{statement}; COMMIT")
        self._committed = True
        return True

    def __exit__(self, *error: Any) -> None:
        if self._connection.run_on_commit:
            _hand_over(self._connection, self._store, waiting=0)
        self._connection.execute_wrappers.remove(self._wrapper)
        guc.current.reset(self._token)
        # What is committed keeps its callbacks, whatever struck since then.
        self._atomic.__exit__(*((None, None, None) if self._committed else error))


def open_store(connection: BaseDatabaseWrapper) -> UUID | None:
    """Return the store of a context that is open on the connection, in whatever generator or task; None without."""
    for wrapper in connection.execute_wrappers:
        if isinstance(wrapper, partial) and wrapper.func is _set_at_begin:
            store: UUID = wrapper.args[1]
            return store
    return None


def _set_at_begin(
    connection: BaseDatabaseWrapper, store: UUID,
    execute: Callable[..., Any], statement: str, params: Any, many: bool, context: Any,
) -> Any:  # fmt: skip
    """Set the store before the first statement of every transaction that begins inside the context."""
    if guc.at_transaction_start(connection):
        guc.set_local(connection, store)
    return execute(statement, params, many, context)


def _in_transaction_of_its_own(
    connection: BaseDatabaseWrapper, store: UUID,
    execute: Callable[..., Any], statement: str, params: Any, many: bool, context: Any,
) -> Any:  # fmt: skip
    """Give a statement in autocommit a transaction with the store."""
    if connection.in_atomic_block or not connection.get_autocommit() or guc.in_transaction(connection):
        return execute(statement, params, many, context)
    with transaction.atomic(using=connection.alias):
        guc.set_local(connection, store)
        return execute(statement, params, many, context)


def _clear(connection: BaseDatabaseWrapper) -> None:
    """Take the store off a transaction that goes on outside: an outer block's, or one without autocommit.

    RELEASE SAVEPOINT keeps a local set, so it is cleared explicitly; ROLLBACK TO restores the old value by itself, and
    in a broken transaction nothing can run before it.
    """
    if guc.in_transaction(connection) and guc.can_run(connection):
        guc.set_local(connection, None)


def _hand_over(connection: BaseDatabaseWrapper, store: UUID, *, waiting: int) -> None:
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
        """Run it. A transaction of its own holds the store."""
        with tenant_context(self._store, using=self._alias):
            self._function()
