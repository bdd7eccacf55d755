"""Runs a block as one store: ``tenant_context`` and ``current_store_id``."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import TenantContextError
from salon_jobs.tenancy import guc


@dataclass(frozen=True, slots=True)
class _Context:
    """Is the store of a context, and the databases it was opened on."""

    store: UUID | None = None
    aliases: frozenset[str] = frozenset()


_NONE = _Context()
_current: ContextVar[_Context] = ContextVar("salon_jobs_store", default=_NONE)


def current_store_id() -> UUID | None:
    """Return the store of the surrounding ``tenant_context``; None outside. New threads start without one."""
    return _current.get().store


@contextmanager
def tenant_context(store_id: UUID | str, *, atomic: bool = True, using: str | None = None) -> Generator[None]:
    """Run a block with the store on the connection, so that row-level security shows that store alone.

    ``atomic=True`` opens a transaction (or a savepoint) and sets the store locally in it. ``atomic=False`` holds no
    transaction: the store is set at every transaction the block begins, and between them no rows are seen.
    ``on_commit`` callbacks registered inside run with the store as well. Nested with the same store is fine; with
    another one raises TenantContextError. Raises it too for a store that is no uuid. Not for async code.
    """
    store = guc.as_uuid(store_id)
    outer = _current.get()
    if outer.store not in (None, store):
        raise TenantContextError(f"already inside the context of store {outer.store}; it can not switch to {store}")
    connection = connections[using or conf.database]
    is_first = connection.alias not in outer.aliases
    began_outside = connection.in_atomic_block
    with ExitStack() as stack:
        # The transaction (or savepoint) first, then whatever sets the store: a rollback takes the store with it.
        if atomic:
            stack.enter_context(transaction.atomic(using=connection.alias))
        if is_first:
            token = _current.set(_Context(store, outer.aliases | {connection.alias}))
            stack.callback(_current.reset, token)
            stack.enter_context(connection.execute_wrapper(partial(_set_at_begin, connection, store)))
            waiting = len(connection.run_on_commit)
            stack.callback(_leave, connection, store, began_outside=began_outside, waiting=waiting)
        if connection.in_atomic_block and (is_first or guc.at_transaction_start(connection)):
            guc.set_local(connection, store)
        yield


def _set_at_begin(
    connection: BaseDatabaseWrapper, store: UUID,
    execute: Callable[..., Any], statement: str, params: Any, many: bool, context: Any,
) -> Any:  # fmt: skip
    """Set the store before the first statement of every transaction that begins inside the context."""
    if guc.at_transaction_start(connection):
        guc.set_local(connection, store)
    return execute(statement, params, many, context)


def _leave(connection: BaseDatabaseWrapper, store: UUID, *, began_outside: bool, waiting: int) -> None:
    """Hand the store to the callbacks registered inside, and take it off a transaction that goes on outside.

    RELEASE SAVEPOINT keeps a local set, so it is cleared explicitly; ROLLBACK TO restores the old value by itself, and
    in a broken transaction nothing can run before it.
    """
    hooks: list[Any] = connection.run_on_commit  # (savepoint ids, function, robust); the stubs know two of the three
    connection.run_on_commit = hooks[:waiting] + [
        (sids, function if hasattr(function, "storeless") else _in_store(connection.alias, function, store), robust)
        for sids, function, robust in hooks[waiting:]
    ]
    if began_outside and guc.can_run(connection):
        guc.set_local(connection, None)


def _in_store(alias: str, function: Callable[[], object], store: UUID) -> Callable[[], object]:
    def run() -> None:
        with tenant_context(store, using=alias):
            function()

    return run
